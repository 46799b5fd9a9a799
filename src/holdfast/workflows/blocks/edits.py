"""Changes of a text, one after another. Pure."""

from typing import Literal

import msgspec

from holdfast.errors import BlockFailed

Operation = Literal["replace", "insert_before", "insert_after", "append", "prepend"]


class Edit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`replace` puts `new` in the place of `old`; `insert_before` and `insert_after` put it beside
    an `anchor`. What is looked for must be there once, unless `all` of it is meant."""

    operation: Operation = "replace"
    old: str = ""
    new: str = ""
    anchor: str = ""
    all: bool = False


def apply(text: str, edits: list[Edit]) -> str:
    """The text with all changes; raises BlockFailed if one does not fit it."""
    for number, edit in enumerate(edits, start=1):
        text = _applied(text, edit, number)
    return text


def _applied(text: str, edit: Edit, number: int) -> str:
    if edit.operation == "append":
        return text + edit.new
    if edit.operation == "prepend":
        return edit.new + text
    sought = edit.old if edit.operation == "replace" else edit.anchor
    name = "old" if edit.operation == "replace" else "anchor"
    if not sought:
        raise BlockFailed(f"edit {number} ({edit.operation}) must say what is there: {name}")
    count = text.count(sought)
    if count == 0 or (count > 1 and not edit.all):
        hint = "it must be there" if count == 0 else "say more of it, or all: true"
        raise BlockFailed(f"edit {number}: {sought!r:.80} is there {count} times; {hint}")
    put = {"insert_before": edit.new + sought, "insert_after": sought + edit.new}
    return text.replace(sought, put.get(edit.operation, edit.new))
