"""Whether plain data fits a type: every misfit, with its place, not the first one only."""

import types
from collections.abc import Callable, Collection, Iterator
from typing import Annotated, Any, Final, Literal, Union, cast, get_args, get_origin

import msgspec

from holdfast.workflows.checks import problem_texts
from holdfast.workflows.definitions.expressions import has_expression
from holdfast.workflows.definitions.sources import Place, shown

Tell = Callable[[Place, str, str], None]
"""Takes a mistake: its place, the reason, and what to do about it."""

ALSO_CALLED: Final = {
    "needs": "depends_on",
    "dependencies": "depends_on",
    "requires": "depends_on",
    "if": "condition",
    "when": "condition",
    "with": "inputs",
    "params": "inputs",
    "args": "inputs",
    "loop": "for_each",
    "foreach": "for_each",
    "parallel": "for_each_mode",
    "mode": "for_each_mode",
    "steps": "blocks",
    "jobs": "blocks",
    "tasks": "blocks",
    "uses": "type",
    "kind": "type",
    "title": "name",
    "ignore_errors": "continue_on_error",
    "retry": "retries",
    "message": "prompt",
    "question": "prompt",
    "options": "choices",
    "cmd": "command",
    "run": "command",
}
"""What people call a key, and its name here."""

_TYPES_ELSEWHERE: Final = {
    "string": "str",
    "text": "str",
    "integer": "int",
    "number": "num",
    "float": "num",
    "boolean": "bool",
    "array": "list",
    "object": "dict",
    "map": "dict",
}


class TypeChecks:
    """Compares values with types. `lenient`: a text with an expression can become anything.

    `around` are keys that belong to what holds the value.
    """

    def __init__(
        self,
        tell: Tell,
        noun: str,
        base: Place = (),
        *,
        lenient: bool = False,
        around: Collection[str] = (),
    ) -> None:
        self._tell = tell
        self._noun = noun
        self._base = base
        self._is_lenient = lenient
        self._around = around

    def check(self, value: Any, wanted: Any, place: Place) -> bool:
        """Whether a value fits; reports every reason why not."""
        if self._is_lenient and has_expression(value):
            return True
        wanted = _narrowed(wanted, value)
        origin = get_origin(wanted) or wanted
        if isinstance(origin, type) and issubclass(origin, msgspec.Struct):
            return self._struct(value, origin, place)
        if origin is list and isinstance(value, list):
            return self._items(enumerate(cast("list[Any]", value)), wanted, place)
        if origin is dict and isinstance(value, dict):
            return self._items(cast("dict[Any, Any]", value).items(), wanted, place)
        if wanted is Any or _converts(value, wanted, lenient=self._is_lenient):
            return True
        expected, found = problem_texts.kind(wanted), problem_texts.value(value)
        said = f"{self._named(place)} must be {expected}, not {found}"
        self._tell(place, said, _advice(value, wanted, lenient=self._is_lenient))
        return False

    def _items(self, items: Any, wanted: Any, place: Place) -> bool:
        kind = (get_args(wanted) or (Any,))[-1]
        fits = True
        for at, item in items:
            fits &= self.check(item, kind, (*place, at if isinstance(at, int) else str(at)))
        return fits

    def _struct(self, value: Any, wanted: type[msgspec.Struct], place: Place) -> bool:
        if not isinstance(value, dict):
            said = f"{self._named(place)} must be a map, not {problem_texts.value(value)}"
            self._tell(place, said, "")
            return False
        given = cast("dict[Any, Any]", value)
        fields = {field.encode_name: field for field in msgspec.structs.fields(wanted)}
        fits = True
        for key in given:
            fits &= self._is_known(key, fields, place)
        for name, field in fields.items():
            if name in given:
                fits &= self.check(given[name], field.type, (*place, name))
            elif field.required:
                self._tell(place, f"{self._named(place)} lacks {name!r}", f"add `{name}:`")
                fits = False
        return fits

    def _is_known(self, key: Any, fields: dict[str, Any], place: Place) -> bool:
        if key in fields:
            return True
        if self._is_lenient and has_expression(key):
            said, advice = f"{self._named(place)} has a key with an expression", "name the key"
        else:
            said = f"{self._named(place)} knows no key {str(key)[:64]!r}"
            advice = problem_texts.nearest(key, fields, _synonyms(fields))
            if place == self._base and key in self._around:
                advice = f"`{key}:` belongs one level up, to the block itself"
        self._tell((*place, str(key)), said, advice)
        return False

    def _named(self, place: Place) -> str:
        """What a place is called: `block build: timeout`."""
        inner = shown(place[len(self._base) :])
        return f"{self._noun}: {inner}" if inner else self._noun


def _advice(value: Any, wanted: Any, *, lenient: bool) -> str:
    if has_expression(value) and not lenient:
        return "expressions are not evaluated here"
    if get_origin(wanted) is Literal:
        return problem_texts.nearest(value, map(str, get_args(wanted)), _TYPES_ELSEWHERE)
    if wanted is str and isinstance(value, int | float):
        return "put it in quotes"
    if wanted is bool and isinstance(value, str) and value.lower() in ("yes", "no", "on", "off"):
        return f"write {'true' if value.lower() in ('yes', 'on') else 'false'}"
    return ""


def _synonyms(fields: dict[str, Any]) -> dict[str, str]:
    return {said: name for said, name in ALSO_CALLED.items() if name in fields}


def _narrowed(wanted: Any, value: Any) -> Any:
    """The arm of a union that a list or a map can only be meant for; else the type itself."""
    if get_origin(wanted) is Annotated:
        inner = get_args(wanted)[0]
        is_container = isinstance(value, list | dict)
        return _narrowed(inner, value) if is_container else wanted
    if get_origin(wanted) not in (Union, types.UnionType):
        return wanted
    arms = [arm for arm in get_args(wanted) if arm not in (type(None), msgspec.UnsetType)]
    if Any in arms:
        return Any
    fitting = [arm for arm in arms if _takes(arm, value)]
    return fitting[0] if len(fitting) == 1 else wanted


def _takes(arm: Any, value: Any) -> bool:
    origin = get_origin(arm) or arm
    if isinstance(value, list):
        return origin is list
    is_struct = isinstance(origin, type) and issubclass(origin, msgspec.Struct)
    return isinstance(value, dict) and (origin is dict or is_struct)


def _converts(value: Any, wanted: Any, *, lenient: bool) -> bool:
    if lenient and any(has_expression(text) for text in texts_in(value)):
        return True
    try:
        msgspec.convert(value, wanted)
    except msgspec.ValidationError:
        return False
    except Exception:  # a type that cannot be judged: it says so when it is carried out
        return True
    return True


def texts_in(value: Any, place: Place = ()) -> Iterator[str]:
    """Every text in plain data, keys too."""
    for text, _ in placed_texts(value, place):
        yield text


def placed_texts(value: Any, place: Place) -> Iterator[tuple[str, Place]]:
    """Every text in plain data with its place; that of a key is where its value is."""
    if isinstance(value, str):
        yield value, place
    elif isinstance(value, dict):
        for key, item in cast("dict[Any, Any]", value).items():
            at = (*place, str(key))
            yield from placed_texts(key, at)
            yield from placed_texts(item, at)
    elif isinstance(value, list):
        for number, item in enumerate(cast("list[Any]", value)):
            yield from placed_texts(item, (*place, number))
