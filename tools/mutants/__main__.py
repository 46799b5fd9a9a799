"""The command: see the package's docstring."""

import argparse
import signal
import sys
import tempfile
from pathlib import Path

from tests.suite import guardian
from tests.suite.record_files import commit_of, is_dirty
from tests.suite.recording import Shard

from holdfast.testing.postgres import PostgresServer
from tools.mutants import mapping, report, results
from tools.mutants.candidates import candidates
from tools.mutants.mutant import WEIGHTS, Mutant, Plan
from tools.mutants.running import Limits, Runner
from tools.mutants.tree import Tree

SEED = 12


def _number(text: str) -> str:
    """A whole number above 0, or nothing: then the default counts."""
    if text and not (text.isdecimal() and int(text)):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return text


def main() -> int:
    parser = argparse.ArgumentParser(prog="tools.mutants")
    parser.add_argument("what", choices=["map", "run", "report", "list"])
    parser.add_argument("--area", default="", help="packages to mutate; for map: folders of tests")
    parser.add_argument("--shard", default="", help="the k-th of n parts")
    parser.add_argument(
        "--count", type=_number, default="", help="how many mutants of the plan (420)"
    )
    parser.add_argument(
        "--seed", type=_number, default="", help=f"which mutants are chosen ({SEED})"
    )
    parser.add_argument(
        "--budget", type=_number, default="", help="seconds of tests for one mutant (120)"
    )
    parser.add_argument("--again", default="", help="also try what was not killed before")
    parser.add_argument("--only", default="", help="try the mutants with these ids")
    parser.add_argument("--workers", default="2", help="for map: how many tests at once")
    given = parser.parse_args()
    root = Path.cwd()
    if sys.platform == "linux":
        guardian.start()  # all that is started ends with this process, even if it is killed
    for number in (signal.SIGINT, signal.SIGTERM):  # a shell lets what it starts ignore Ctrl-C
        signal.signal(number, signal.default_int_handler)
    try:
        return _COMMANDS[given.what](root, given)
    except KeyboardInterrupt:
        print("\nstopped; what was tried is kept, and the next run continues")
        return 130


def build_map(root: Path, given: argparse.Namespace) -> int:
    folders = given.area.split() or mapping.areas(root)
    count = mapping.build(root, folders, shard=given.shard, workers=given.workers)
    print(f"{count} tests of {', '.join(folders)} are in the map")
    return 0 if count else 1


def run(root: Path, given: argparse.Namespace) -> int:
    seed = int(given.seed or SEED)
    wanted = chosen(root, given, seed)
    tests = mapping.load(root)
    if not tests:
        print(
            'there is no map of the tests: run `make mutants-map` (AREA="unit contract" for a part)'
        )
        return 2
    commit = commit_of(root)[:12] + ("+changes" if is_dirty(root, "src", "tests") else "")
    limits = Limits(float(given.budget or 120), test_seconds=90)
    print(f"{len(wanted)} mutants to try, {len(tests)} tests in the map", flush=True)
    missing = mapping.missing(root, tests)
    if missing:
        print(f"what no test of the map reaches is not recorded: it lacks {', '.join(missing)}")
    with (
        tempfile.TemporaryDirectory(prefix="mutants-postgres-") as folder,
        PostgresServer.start(Path(folder, "server")) as server,
        Tree.copied(root) as tree,
    ):
        runner = Runner(
            tree, tests, limits, postgres_url=server.url(), killers=results.killers(root)
        )
        runner.check_green()
        for number, mutant in enumerate(wanted, 1):
            verdict = runner.attempt(mutant)
            if verdict.verdict != "untouched" or not missing:
                results.add(root, mutant, verdict, commit=commit, seed=seed)
            said = f"{mutant.path}:{mutant.line} {mutant.operator}: {mutant.change}"
            became = f"{verdict.verdict} in {verdict.seconds} s"
            print(f"{number}/{len(wanted)} {became}: {mutant.id} {said}")
            print(f"    {verdict.ran} of {verdict.reaching} tests {verdict.test}", flush=True)
    return 0


def chosen(root: Path, given: argparse.Namespace, seed: int) -> list[Mutant]:
    """The mutants that are still to be tried, in the plan's order."""
    everything = candidates(root)
    if given.only:
        return [each for each in everything if each.id in given.only.split()]
    areas = given.area.split() or list(WEIGHTS)
    plan = [each for each in Plan.default(seed).order(everything) if each.area in areas]
    plan = plan[: int(given.count or sum(WEIGHTS.values()))]
    shard = Shard.parse(given.shard or "1/1")
    known = results.load(root)
    return [each for each in plan if shard.has(each.id) and _is_due(known.get(each.id), given)]


def _is_due(before: dict[str, object] | None, given: argparse.Namespace) -> bool:
    if before is None:
        return True
    return bool(given.again) and before["verdict"] in ("survived", "untouched")


def show(root: Path, given: argparse.Namespace) -> int:
    for each in chosen(root, given, int(given.seed or SEED)):
        print(f"{each.id} {each.path}:{each.line} {each.operator}: {each.change}")
    return 0


def write_report(root: Path, given: argparse.Namespace) -> int:
    del given
    print(report.write(root), end="")
    return 0


_COMMANDS = {"map": build_map, "run": run, "report": write_report, "list": show}

if __name__ == "__main__":
    sys.exit(main())
