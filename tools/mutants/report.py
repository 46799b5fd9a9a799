"""Write docs/reference/mutation.md: a table by package, and every survivor."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tools.mutants import results
from tools.mutants.candidates import candidates
from tools.mutants.mutant import WEIGHTS

PAGE = Path("docs", "reference", "mutation.md")
_KILLED = ("killed", "timeout")


def write(root: Path) -> str:
    """Make the page of the results whose mutants still exist; returns its text."""
    exists = {each.id: each for each in candidates(root)}
    found = [
        {**each, "path": exists[id_].path, "line": exists[id_].line}
        for id_, each in results.load(root).items()
        if id_ in exists
    ]
    text = "\n".join(_page(found, results.explained(root), len(exists))) + "\n"
    (root / PAGE).write_text(text)
    return text


_INTRODUCTION = """# Mutation testing

Made by `make mutants-report` of `tools/mutants/results.jsonl`, which `make mutants` writes; do not
edit. {tried} of {total} possible mutants were tried, chosen by seed {seeds}, at {commits}.

A mutant is one change in one place of the source. The tests that reach the place are run, fastest
first, until one fails.

- *Killed*: a test failed; *by time*: a test, or the run as a whole, did not end in time.
- *Survived*: every test that was run passed. It is a gap in the tests, unless the test that would
  kill it was not among those that were run: how many of how many is said.
- *Untouched*: no mapped test reaches the place.
- *Explained*: it was not killed, and nobody could notice the change; the reason is given.
- *Score*: the part that was killed of those that are not explained.

The score is of mutants that were followed up: a survivor got a test, and was tried again. What part
of new mutants the tests would kill is measured by another seed.
"""


def _page(found: list[dict[str, Any]], reasons: dict[str, str], total: int) -> Iterator[str]:
    commits = sorted({each["commit"] for each in found})
    yield _INTRODUCTION.format(
        tried=len(found),
        total=total,
        seeds=", ".join(sorted({str(each["seed"]) for each in found})) or "none",
        commits=", ".join(f"`{commit}`" for commit in commits) or "no commit",
    )
    yield from _table(found, reasons)
    left = [each for each in found if each["verdict"] not in _KILLED]
    yield from _list("Survivors", [each for each in left if each["id"] not in reasons])
    explained = [{**each, "reason": reasons[each["id"]]} for each in left if each["id"] in reasons]
    yield from _list("Explained", explained)


def _table(found: list[dict[str, Any]], reasons: dict[str, str]) -> Iterator[str]:
    yield "| Package | Tried | Killed | By time | Survived | Untouched | Explained | Score |"
    yield "|---|---|---|---|---|---|---|---|"
    for area in (*WEIGHTS, "all"):
        mine = [each for each in found if area in (each["area"], "all")]
        counts = Counter(_kind(each, reasons) for each in mine)
        killed = counts["killed"] + counts["timeout"]
        counted = len(mine) - counts["explained"]
        score = f"{100 * killed / counted:.0f} %" if counted else "-"
        cells = [len(mine), killed, counts["timeout"], counts["survived"], counts["untouched"]]
        shown = " | ".join(map(str, [*cells, counts["explained"]]))
        yield f"| {area if area == 'all' else f'`{area}`'} | {shown} | {score} |"


def _kind(each: dict[str, Any], reasons: dict[str, str]) -> str:
    is_left = each["verdict"] not in _KILLED
    return "explained" if is_left and each["id"] in reasons else each["verdict"]


def _list(title: str, found: list[dict[str, Any]]) -> Iterator[str]:
    yield f"\n## {title}\n"
    areas = list(WEIGHTS)
    for each in sorted(found, key=lambda e: (areas.index(e["area"]), e["path"], e["line"])):
        ran = f"{each['ran']} of {each['reaching']} tests"
        place = f"{each['path']}, line {each['line']} ({ran if each['reaching'] else 'no test'})"
        yield f"- `{each['id']}` {place}: ``{each['change']}`` {each.get('reason', '')}".rstrip()
    if not found:
        yield "None."
