"""Text in a drawing: how wide it is at most, about, and as XML that nothing can break out of."""

import re
import unicodedata
from typing import Final

from holdfast.workflows.drawing import style

_NARROW: Final = frozenset("iljtfrI.,:;'|!()[] ")
_WIDE: Final = frozenset("mwMW@%…—")
_UNSAFE: Final = re.compile(
    # What XML cannot hold, what a terminal may act on, and what changes the direction of text.
    "[^\t\n\x20-\x7e\xa0-\u200d\u2010-\u2027\u202f-\u2065\u206a-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]"
)
_ESCAPES: Final = {
    "&": "&amp;",
    "<": "&lt;",
    ">": "&gt;",
    '"': "&quot;",
    "'": "&apos;",
    "\n": "&#10;",
    "\t": "&#9;",
}


def width_of(text: str, size: float, *, is_bold: bool = False) -> float:
    """How wide a text is in a wide sans serif: fonts differ, so rather too much than too little."""
    return sum(map(_width, text)) * size * (1.07 if is_bold else 1.0)


def _width(letter: str) -> float:
    if letter in _NARROW:
        return 0.4
    if letter in _WIDE or unicodedata.east_asian_width(letter) in "WF":
        return 1.0
    if letter.isupper():
        return 0.75
    return 0.64 if letter.isascii() else 0.8


def shortened(text: str, room: float, size: float, *, is_bold: bool = False) -> str:
    """A text that needs no more room than there is; the middle of a long one is left out."""
    return style.shortened(text, lambda each: width_of(each, size, is_bold=is_bold) <= room)


def escaped(text: str) -> str:
    """A text for XML, between tags or in an attribute; what is not safe becomes a mark."""
    return re.sub("[&<>\"'\n\t]", lambda found: _ESCAPES[found[0]], _UNSAFE.sub("\ufffd", text))
