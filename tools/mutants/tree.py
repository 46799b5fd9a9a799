"""A copy of the tree to mutate, and proof that Python imports that copy and not the original."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from tools.mutants.candidates import PACKAGE
from tools.mutants.mutant import Mutant

_COPIED = ("src", "tests", "tools", "docs", "examples", "benchmarks", "changelog.d")
_FILES = ("pyproject.toml", "Makefile", "README.md", "ARCHITECTURE.md", "CHANGELOG.md")


class WrongCopy(Exception):
    """Python would import another Holdfast than the copy: nothing that tests say would count."""


class Tree:
    """A copy of the working tree in a temporary folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        # The bytecode of a file counts as current while its seconds and size are the same, and a
        # mutant may have both: each gets a moment of its own.
        self._moments: Iterator[int] = count(1_000_000_000)

    @classmethod
    @contextmanager
    def copied(cls, original: Path) -> Generator["Tree"]:
        with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
            for name in _COPIED:
                if (original / name).exists():
                    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
                    shutil.copytree(original / name, Path(folder, name), ignore=ignored)
            for name in _FILES:
                if (original / name).exists():
                    shutil.copy2(original / name, folder)
            tree = cls(Path(folder))
            tree.check()
            yield tree

    def environment(self) -> dict[str, str]:
        path = os.pathsep.join([str(self.root / "src"), str(self.root)])
        return {**os.environ, "PYTHONPATH": path, "MUTANTS_TREE": str(self.root)}

    def check(self) -> None:
        """Raise unless a new process imports the copy."""
        asked = "import holdfast, holdfast.kernel; print(holdfast.kernel.__file__)"
        done = subprocess.run(
            [sys.executable, "-c", asked],
            env=self.environment(),
            cwd="/",
            capture_output=True,
            text=True,
            check=True,
        )
        if not Path(done.stdout.strip()).is_relative_to(self.root):
            raise WrongCopy(f"Python imports {done.stdout.strip()}, not the copy in {self.root}")

    @contextmanager
    def mutated(self, mutant: Mutant) -> Generator[None]:
        """The tree with one mutant in it."""
        file = self.root / PACKAGE / mutant.path
        source = file.read_bytes()
        try:
            self.write(file, mutant.apply(source))
            yield
        finally:
            self.write(file, source)

    def write(self, file: Path, content: bytes) -> None:
        file.write_bytes(content)
        moment = next(self._moments)
        os.utime(file, (moment, moment))
