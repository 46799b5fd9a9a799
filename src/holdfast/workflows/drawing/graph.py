"""A workflow as a picture in text: Mermaid, as GitHub and many others draw it.

`states_of` returns the state of each block of a run; `svg` draws the same as a file.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Final

from holdfast.kernel.runs import RunStatus
from holdfast.workflows.definitions.definition import Block, Workflow
from holdfast.workflows.drawing import style
from holdfast.workflows.drawing.layout import links_of, waves_in
from holdfast.workflows.drawing.style import BlockState
from holdfast.workflows.execution.outcome import Outcome

_LONGEST: Final = 48
_NOT_PLAIN: Final = re.compile(r"[^\w -]")
_NAMES_IN_PATH: Final = re.compile(r"(?:^|/)([^/\[]+)")


def states_of(outcome: Outcome) -> dict[str, BlockState]:
    """The state of each block of a run: ended, asked about, at work, or not yet begun."""
    names = [name for wave in outcome.waves for name in wave]
    if outcome.status == RunStatus.CANCELLED:
        return {name: _ended(outcome, name) or "cancelled" for name in names}
    open_here = {name for name in _current(outcome) if name not in outcome.blocks}
    waiting = {_first_of(open_here, each.block) for each in outcome.waiting}
    meanwhile = _meanwhile(outcome)
    return {
        name: _ended(outcome, name)
        or ("waiting" if name in waiting else meanwhile if name in open_here else "not yet")
        for name in names
    }


def _current(outcome: Outcome) -> list[str]:
    """The wave that has not ended."""
    for wave in outcome.waves:
        if any(name not in outcome.blocks for name in wave):
            return wave
    return []


def _ended(outcome: Outcome, name: str) -> BlockState | None:
    result = outcome.blocks.get(name)
    return result.status if result is not None else None


def _meanwhile(outcome: Outcome) -> BlockState:
    """The state of the current wave's blocks that ask nothing."""
    if outcome.status == RunStatus.BLOCKED:
        return "waiting"
    if outcome.status == RunStatus.FAILED:
        return "not yet"
    is_untouched = outcome.status == RunStatus.READY and not outcome.blocks and not outcome.waiting
    return "not yet" if is_untouched else "running"


def _first_of(names: set[str], path: str) -> str | None:
    """The block that a path leads through. Paths in a run below others begin above it."""
    return next((name for name in _NAMES_IN_PATH.findall(path) if name in names), None)


def mermaid(workflow: Workflow, states: Mapping[str, BlockState] | None = None) -> str:
    """A flowchart in Mermaid: waves as frames, dashed lines where only the order counts."""
    return "\n".join(_lines(workflow, style.complete(workflow, states))) + "\n"


def _lines(workflow: Workflow, states: Mapping[str, BlockState] | None) -> Iterator[str]:
    waves = waves_in(workflow)
    blocks = {block.id: block for block in workflow.blocks}
    keys = {name: f"b{number}" for number, name in enumerate(blocks, 1)}
    yield from ("---", f"title: {json.dumps(workflow.name)}", "---", "flowchart LR")
    for number, wave in enumerate(waves, 1):
        yield f'    subgraph w{number}["wave {number}"]'
        yield "        direction TB"
        for name in wave:
            yield f"        {keys[name]}{_shape(blocks[name], states)}"
        yield "    end"
    for link in links_of(workflow):
        arrow = "-->" if link.required else "-.->"
        yield f"    {keys[link.source]} {arrow} {keys[link.target]}"
    if states is not None:
        yield from _colours({key: states[name] for name, key in keys.items()})


def _shape(block: Block, states: Mapping[str, BlockState] | None) -> str:
    kind = style.kind_of(block)
    about = [block.type, style.subject_of(block)]
    lines = [f"<b>{_text(block.id)}</b>", " · ".join(_text(each) for each in about if each)]
    lines += style.marks_of(block)
    if states is not None:
        state = states[block.id]
        lines.append(f"{style.STATES[state].mark} {state}")
    return f'{kind.opening}"{"<br/>".join(lines)}"{kind.closing}'


def _text(text: str) -> str:
    """A text that neither Mermaid nor a browser takes for anything else."""
    short = style.shortened(text, lambda each: len(each) <= _LONGEST)
    return _NOT_PLAIN.sub(lambda found: f"#{ord(found[0])};", short)


def _colours(states: Mapping[str, BlockState]) -> Iterator[str]:
    for state, look in style.STATES.items():
        keys = [key for key, each in states.items() if each == state]
        if keys:
            name = state.replace(" ", "_")
            yield f"    classDef {name} fill:{look.fill},stroke:{look.line},color:{style.INK}"
            yield f"    class {','.join(keys)} {name}"
