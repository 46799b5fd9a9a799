"""The command: see the package's docstring."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tools.blocking_face.faces import MODULES
from tools.blocking_face.project import Project
from tools.blocking_face.sources import Untranslatable

ROOT = Path(__file__).parents[2]


def main(arguments: Sequence[str] | None = None, project: Project | None = None) -> int:
    parser = argparse.ArgumentParser(prog="tools.blocking_face", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if a file is stale")
    options = parser.parse_args(arguments)
    project = project or Project(ROOT, MODULES)
    try:
        if options.check:
            problems = project.problems()
            print("\n".join(problems), end="\n" if problems else "", file=sys.stderr)
            return 1 if problems else 0
        for path in project.write():
            print(f"wrote {path.relative_to(project.root)}")
    except Untranslatable as error:
        print(f"{error}; add a rule to tools/blocking_face, or change the class", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
