"""The tokens that values are flattened to. They are a stored format: forms are added, not changed.

Tokens are in the order in which they are read, and say how much follows:

    None, bool, int, float, str     themselves
    bytes                           anything else, as the serializer's MessagePack
    [0, type, bytes]                the same in another form of the serializer
    [1, n]                          a list: the tokens of n items follow
    [2, keys]                       a dict: the tokens of its values follow
    [3, bytes]                      a message without its content, which follows
    [4, node]                       a Send: the tokens of its argument follow
    [5]                             the snapshot of a delta channel: its value follows
"""

from typing import Final

ATOM: Final = 0
ITEMS: Final = 1
ENTRIES: Final = 2
SHELL: Final = 3
SEND: Final = 4
SNAPSHOT: Final = 5

LONG_TEXT: Final = 256
LARGE_DICT: Final = 16
MAX_DEPTH: Final = 32
