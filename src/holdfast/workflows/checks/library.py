"""The definitions that a workflow may use: its own, and those its `Workflow` blocks name.

A name is looked up among the known ones, then as `NAME.yaml` or `NAME.yml` next to the file
that names it; `./sub/other.yaml` is a file relative to it.
"""

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Final

import msgspec

from holdfast.errors import WorkflowInvalid
from holdfast.workflows.blocks.contract import BlockType
from holdfast.workflows.checks import (
    checker,
    definition_reader,
    problem_texts,
    shape,
    shell_quoting,
)
from holdfast.workflows.checks.problems import Findings, WorkflowProblem
from holdfast.workflows.checks.shape import WorkflowDraft
from holdfast.workflows.definitions import sources, waves
from holdfast.workflows.definitions.definition import Block, Workflow
from holdfast.workflows.definitions.expressions import has_expression
from holdfast.workflows.definitions.sources import Place

_SUFFIXES: Final = (".yaml", ".yml", ".json")
_MOST: Final = 200


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """A workflow and all that it may call, by name, with their mistakes."""

    name: str
    definitions: dict[str, Workflow]
    problems: list[WorkflowProblem]
    warnings: list[WorkflowProblem] = []
    """What is allowed and may do harm; in a definition that is `strict` these are problems."""

    def checked(self) -> dict[str, Workflow]:
        """Return the definitions; raises WorkflowInvalid with every mistake in them."""
        if self.problems:
            raise WorkflowInvalid("\n".join(map(str, self.problems)), problems=tuple(self.problems))
        return self.definitions


def collect(
    main: Workflow, known: Mapping[str, Workflow], *, folder: Path | None = None
) -> dict[str, Workflow]:
    """Return a workflow and all it may call, by name; raises WorkflowInvalid if one is missing.

    `folder` is where its files are; by default, where it was read from.
    """
    return examine(main, known, folder=folder).checked()


def examine(
    main: Workflow | str | Path,
    known: Mapping[str, Workflow],
    *,
    types: Mapping[str, BlockType] | None = None,
    tools: Collection[str] | None = None,
    folder: Path | None = None,
) -> Found:
    """Read a workflow, or the file of one, and all that it may call, with every mistake."""
    collector = _Collector(known)
    try:
        first = collector.draft(main)
    except WorkflowInvalid as error:
        problems = [each for each in error.problems if isinstance(each, WorkflowProblem)]
        return Found(name=str(main), definitions={}, problems=problems)
    collector.collect(first, folder)
    definitions = {name: draft.workflow for name, draft in collector.drafts.items()}
    problems = list(collector.problems)
    warnings: list[WorkflowProblem] = []
    for name, draft in collector.drafts.items():
        missing = collector.missing.get(name, [])
        places = {each.where for each in missing}
        more = checker.mistakes_of(draft, types=types, tools=tools, library=definitions)
        reported = [*draft.problems, *missing]
        reported += [each for each in more if each.where not in places]
        is_named = draft is first or bool(draft.source.file)
        doubtful = shell_quoting.unquoted(draft)
        if draft.workflow.strict:
            reported += doubtful
        else:
            warnings += doubtful if is_named else [_of(name, each) for each in doubtful]
        problems += reported if is_named else [_of(name, each) for each in reported]
    problems += _endless(collector.drafts)
    return Found(
        name=first.workflow.name,
        definitions=definitions,
        problems=sorted(problems, key=_place_of),
        warnings=sorted(warnings, key=_place_of),
    )


def _place_of(problem: WorkflowProblem) -> tuple[str, int]:
    return problem.file, problem.line


def _endless(drafts: Mapping[str, WorkflowDraft]) -> list[WorkflowProblem]:
    """Report workflows that always start themselves again."""
    always = {name: dict(_always_named(draft.blocks)) for name, draft in drafts.items()}
    cycle = waves.cycle_in(
        [Block(id=name, type="Workflow", depends_on=list(named)) for name, named in always.items()]
    )
    if not cycle:
        return []
    first, following = cycle[:2]
    findings = Findings(drafts[first].source)
    said = f"without end, workflows begin each other: {' -> '.join(each[:80] for each in cycle)}"
    findings.tell(always[first][following], said, "give one of these blocks a condition")
    return findings.problems


def _always_named(blocks: list[tuple[int, Block]]) -> Iterator[tuple[str, Place]]:
    """Yield workflows named by blocks that no condition can skip, their own or an earlier one."""
    named = list(_named(blocks))
    by_place = dict(blocks)
    before = waves.ancestors_of(list(by_place.values())) if named else {}
    deciding = {block.id for _, block in blocks if block.condition not in (None, True)}
    for name, place in named:
        block = by_place[int(place[1])]
        if not block.is_loop and not deciding & {block.id, *before[block.id]}:
            yield name, place


def _of(name: str, problem: WorkflowProblem) -> WorkflowProblem:
    """Add the name of a definition without a file to its mistake."""
    return msgspec.structs.replace(problem, where=f"workflow {name}: {problem.where}")


class _Collector:
    """Follows the names from definition to definition."""

    def __init__(self, known: Mapping[str, Workflow]) -> None:
        self._known = known
        self._files: dict[str, Path] = {}
        self.drafts: dict[str, WorkflowDraft] = {}
        self.problems: list[WorkflowProblem] = []
        """Of files that could not be read."""
        self.missing: dict[str, list[WorkflowProblem]] = {}
        """By the definition that names the missing one."""

    def draft(self, given: Workflow | str | Path) -> WorkflowDraft:
        """Return a definition to check; raises WorkflowInvalid if its file is wholly unreadable."""
        if isinstance(given, Workflow):
            draft = checker.draft_of(given)
            return draft if draft.problems else msgspec.structs.replace(draft, workflow=given)
        document = definition_reader.read(given)
        if not document.is_whole:
            raise WorkflowInvalid("", problems=tuple(document.problems))
        draft = shape.drafted(document.data, document.source)
        sources.remember(draft.workflow, document.source)
        return msgspec.structs.replace(draft, problems=[*document.problems, *draft.problems])

    def collect(self, first: WorkflowDraft, folder: Path | None) -> None:
        self.drafts[first.workflow.name] = first
        ahead = [(first.workflow.name, first, folder or first.source.folder)]
        while ahead:
            own, draft, around = ahead.pop()
            findings = Findings(draft.source)
            for name, place in _named(draft.blocks):
                found = self._find(name, place, around, findings)
                if found is not None:
                    self.drafts[name] = found
                    ahead.append((name, found, found.source.folder))
            self.missing[own] = findings.problems

    def _find(
        self, name: str, place: Place, folder: Path | None, findings: Findings
    ) -> WorkflowDraft | None:
        """Return a definition that is not collected yet; else None, and report what is wrong."""
        path = None if name in self._known else _file(name, folder)
        if name in self.drafts:
            if path is not None and self._files.get(name, path) != path:
                said = f"{name!r:.80} is {self._files[name]} elsewhere, and {path} here"
                findings.tell(place, said, "give one of the files another name")
            return None
        if name not in self._known and path is None:
            findings.tell(place, *_missing(name, folder, [*self.drafts, *self._known]))
            return None
        if len(self.drafts) >= _MOST:
            findings.tell(place, f"more than {_MOST} workflows name each other")
            return None
        try:
            found = self.draft(self._known[name] if path is None else path)
        except WorkflowInvalid as error:
            self.problems += [each for each in error.problems if isinstance(each, WorkflowProblem)]
            findings.tell(place, f"workflow {name[:80]!r} cannot be read: {path} has mistakes")
            return None
        if path is not None:
            self._files[name] = path
        return found


def _named(blocks: list[tuple[int, Block]]) -> Iterator[tuple[str, Place]]:
    for at, block in blocks:
        name = block.inputs.get("workflow") if block.type == "Workflow" else None
        if isinstance(name, str) and name and not has_expression(name):
            yield name, ("blocks", at, "inputs", "workflow")


def _file(name: str, folder: Path | None) -> Path | None:
    if folder is None or len(name) > 255 or "\0" in name:
        return None
    if name.startswith(("./", "../")):
        names = [name] if name.endswith(_SUFFIXES) else []
    elif "/" in name or "\\" in name:
        names = []
    else:
        names = [f"{name}{suffix}" for suffix in _SUFFIXES[:2]]
    try:
        return next((folder / each for each in names if (folder / each).is_file()), None)
    except OSError:
        return None


def _missing(name: str, folder: Path | None, known: list[str]) -> tuple[str, str]:
    said = f"no workflow {name[:80]!r} is known"
    if folder is not None:
        said += f", and no such file is in {folder}"
    return said, problem_texts.nearest(name, known)
