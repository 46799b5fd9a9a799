"""What SQLite lacks and our statements call: a digest, and the comparison of tags."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Protocol

from holdfast.kernel import journal, tags


class Definer(Protocol):
    """What we use of a connection here."""

    def create_scalar_function(
        self,
        name: str,
        callable: Callable[..., Any] | None,
        numargs: int = -1,
        *,
        deterministic: bool = False,
    ) -> None: ...


def register(connection: Definer) -> None:
    """Make the functions known to a connection."""
    for name, function, arguments in (
        ("holdfast_sha256", journal.digest_of, 2),
        ("holdfast_tags_match", _do_tags_match, 2),
    ):
        connection.create_scalar_function(name, function, arguments, deterministic=True)


def _do_tags_match(found: str, wanted: str) -> bool:
    return tags.is_matched(tags.decode(found), _decoded(wanted))


@lru_cache(maxsize=64)
def _decoded(wanted: str) -> dict[str, Any]:
    return tags.decode(wanted)
