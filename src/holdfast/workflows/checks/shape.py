"""The shape of a definition: its keys and the types of their values.

Mistakes are reported and left out, so that the rest can be checked as well.
"""

from typing import Any, Final, cast

import msgspec

from holdfast.workflows.checks.problem_texts import value as shown_value
from holdfast.workflows.checks.problems import Findings, WorkflowProblem
from holdfast.workflows.checks.type_checks import TypeChecks
from holdfast.workflows.definitions.definition import Block, Input, Output, Workflow
from holdfast.workflows.definitions.sources import DefinitionSource, Place

DEEPEST: Final = 45
_OWN: Final = ("inputs", "blocks", "outputs")


class WorkflowDraft(msgspec.Struct, frozen=True, kw_only=True):
    """A definition as far as it could be understood, and what is wrong with its shape."""

    workflow: Workflow
    blocks: list[tuple[int, Block]]
    """With their numbers in the definition: those without an id are left out."""
    source: DefinitionSource
    problems: list[WorkflowProblem]
    broken: frozenset[Place]

    def is_broken(self, place: Place) -> bool:
        """Whether something at a place, or in it, was left out."""
        return any(each[: len(place)] == place for each in self.broken)


def drafted(data: Any, source: DefinitionSource) -> WorkflowDraft:
    """Build a draft from any plain data. Never raises: every mistake is in its problems."""
    findings = Findings(source)
    given: dict[Any, Any] = {"name": "?"}
    if isinstance(data, dict):
        given = cast("dict[Any, Any]", data)
    if not isinstance(data, dict):
        findings.tell((), f"a workflow is a map with name and blocks, not {shown_value(data)}")
    elif _depth_over(given, DEEPEST):
        findings.tell((), f"the workflow is nested deeper than {DEEPEST}")
        given = {"name": "?"}
    head = {key: value for key, value in given.items() if key not in _OWN}
    TypeChecks(findings.tell, "the workflow").check(head, Workflow, ())
    blocks = _blocks(given.get("blocks", []), findings)
    workflow = Workflow(
        name=_text(head, "name"),
        description=_text(head, "description"),
        version=_text(head, "version"),
        inputs=_inputs(given.get("inputs", {}), findings),
        blocks=[block for _, block in blocks],
        outputs=_outputs(given.get("outputs", {}), findings),
        max_parallel=_number(head, "max_parallel"),
        strict=head.get("strict") is True,
    )
    return WorkflowDraft(
        workflow=workflow,
        blocks=blocks,
        source=source,
        problems=findings.problems,
        broken=frozenset(findings.places),
    )


def _text(head: dict[Any, Any], key: str) -> str:
    value = head.get(key, "")
    return value if isinstance(value, str) else ""


def _number(head: dict[Any, Any], key: str) -> int | None:
    value = head.get(key)
    return value if type(value) is int else None


def _inputs(given: Any, findings: Findings) -> dict[str, Input]:
    if not isinstance(given, dict):
        findings.tell(("inputs",), f"inputs must be a map, not {shown_value(given)}")
        return {}
    found: dict[str, Input] = {}
    for name, spec in cast("dict[Any, Any]", given).items():
        place = ("inputs", str(name))
        fits = TypeChecks(findings.tell, f"input {str(name)[:64]}", place).check(spec, Input, place)
        found[str(name)] = (
            msgspec.convert(spec, Input) if fits else Input(type="any", required=False)
        )
    return found


def _blocks(given: Any, findings: Findings) -> list[tuple[int, Block]]:
    if not isinstance(given, list):
        advice = "write each as `- id: NAME`"
        findings.tell(
            ("blocks",), f"blocks must be a list, not {shown_value(cast(object, given))}", advice
        )
        return []
    made = (
        (at, _block(block, ("blocks", at), findings))
        for at, block in enumerate(cast("list[Any]", given))
    )
    return [(at, block) for at, block in made if block is not None]


def _block(given: Any, place: Place, findings: Findings) -> Block | None:
    """Return a block with all that fits; None if it has no id."""
    raw = cast("dict[Any, Any]", given) if isinstance(given, dict) else {}
    block_id = raw.get("id")
    named = isinstance(block_id, str)
    noun = f"block {block_id[:64]}" if named else f"block number {cast(int, place[1]) + 1}"
    TypeChecks(findings.tell, noun, place).check(given, Block, place)
    if not named:
        return None
    fields = {field.name: field.type for field in msgspec.structs.fields(Block)}
    quiet = TypeChecks(_say_nothing, "")
    kept = {
        name: raw[name]
        for name, kind in fields.items()
        if name in raw and quiet.check(raw[name], kind, ())
    }
    return msgspec.convert({"type": "", **kept}, Block)


def _say_nothing(place: Place, reason: str, suggestion: str) -> None:
    """Ignore a mistake: it was reported before."""


def _outputs(given: Any, findings: Findings) -> dict[str, Any]:
    if not isinstance(given, dict):
        findings.tell(("outputs",), f"outputs must be a map, not {shown_value(given)}")
        return {}
    found: dict[str, Any] = {}
    for name, value in cast("dict[Any, Any]", given).items():
        place = ("outputs", str(name))
        is_whole = isinstance(value, dict) and "value" in value
        fitting = TypeChecks(findings.tell, f"output {str(name)[:64]}", place)
        if not is_whole or fitting.check(value, Output, place):
            found[str(name)] = value
    return found


def _depth_over(data: Any, most: int) -> bool:
    """Whether data is nested deeper than `most`; it may contain itself."""
    level: list[Any] = [data]
    for _ in range(most + 1):
        inner = {id(item): item for each in level for item in _items(each)}
        level = [each for each in inner.values() if isinstance(each, dict | list)]
        if not level:
            return False
    return True


def _items(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(cast("dict[Any, Any]", value).values())
    return cast("list[Any]", value) if isinstance(value, list) else []
