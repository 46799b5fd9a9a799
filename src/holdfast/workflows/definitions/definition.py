"""What a workflow is: inputs, blocks that depend on each other, and outputs. Data, nothing else.

A definition is stored whole with its run: editing or deleting its file changes no run.
"""

from datetime import datetime
from typing import Any, Final, Literal, get_args

import msgspec

from holdfast import codec
from holdfast.errors import UnsupportedValue

InputType = Literal["str", "int", "num", "bool", "list", "dict", "any"]
LoopMode = Literal["parallel", "sequential"]

INPUT_TYPES: Final[tuple[str, ...]] = get_args(InputType)
MAX_PARALLEL: Final = 5


class Input(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """What a workflow is given. It must be given unless it has a default, or is not `required`."""

    type: InputType = "str"
    description: str = ""
    default: Any = msgspec.UNSET
    required: bool = True
    choices: list[Any] | None = None

    @property
    def must_be_given(self) -> bool:
        return self.required and self.default is msgspec.UNSET


class Output(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """What a workflow gives: `value` is an expression, converted to the type if one is given."""

    value: Any
    type: InputType = "any"
    description: str = ""


class Dependency(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """Another block that must have ended; one that is `required` must have succeeded as well."""

    block: str
    required: bool = True


class Block(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """A step. Texts in `inputs`, `condition` and `for_each` may have expressions: `{{ ... }}`."""

    id: str
    type: str
    description: str = ""
    inputs: dict[str, Any] = {}
    depends_on: list[str | Dependency] = []
    condition: str | bool | None = None
    for_each: Any = None
    for_each_mode: LoopMode = "parallel"
    max_parallel: int = MAX_PARALLEL
    continue_on_error: bool = False
    timeout: float | None = None
    retries: int = 0

    @property
    def dependencies(self) -> list[Dependency]:
        return [Dependency(block=d) if isinstance(d, str) else d for d in self.depends_on]

    @property
    def is_loop(self) -> bool:
        return self.for_each is not None


class Workflow(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    forbid_unknown_fields=True,
    weakref=True,
):
    """A definition: read from YAML with `holdfast.workflows.load`, or built in Python."""

    name: str
    description: str = ""
    version: str = ""
    inputs: dict[str, Input] = {}
    blocks: list[Block] = []
    outputs: dict[str, Any] = {}
    """Each is an expression, or an Output."""
    max_parallel: int | None = None
    """How many blocks are carried out at once; None leaves it to the machine."""
    strict: bool = False
    """Whether what `validate` only warns of is a mistake."""

    def block(self, block_id: str) -> Block:
        return next(block for block in self.blocks if block.id == block_id)

    @property
    def output_specs(self) -> dict[str, Output]:
        return {name: output_of(given) for name, given in self.outputs.items()}


def output_of(given: Any) -> Output:
    """Return an output given as `{value: ..., type: ...}`, or as its value alone."""
    if isinstance(given, Output):
        return given
    if isinstance(given, dict) and "value" in given:
        return msgspec.convert(given, Output)
    return Output(value=given)


def plain(workflow: Workflow) -> dict[str, Any]:
    """Return a definition as plain data to store; raises UnsupportedValue for other values."""
    _check(workflow)
    return msgspec.to_builtins(workflow, builtin_types=(bytes, datetime))


def of_plain(given: Any) -> Workflow:
    """Build a definition from checked plain data; raises UnsupportedValue if it does not fit."""
    try:
        return msgspec.convert(given, Workflow)
    except msgspec.ValidationError as error:
        raise UnsupportedValue(f"this is no definition of a workflow: {error}") from error


def _check(workflow: Workflow) -> None:
    """Refuse sets and the like, which would become lists, also where shapes are wrong."""
    for block in workflow.blocks:
        data = [block.inputs, block.for_each] if isinstance(block, Block) else block  # pyright: ignore[reportUnnecessaryIsInstance] - checked for users without a type checker
        codec.encode(data, name="a block")
