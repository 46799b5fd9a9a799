"""Who calls, and whose runs they see.

Without authentication there is no principal: a caller over the server's pipe or on its own machine
may see everything, as with the command line. With it, runs belong to the caller who started them.
"""

import hashlib
from typing import Final
from urllib.parse import quote

import msgspec
from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.auth.provider import AccessToken, principal_components

from holdfast import names

OPERATOR: Final = "operator"
"""The scope of those who see the runs of all."""


class Principal(msgspec.Struct, frozen=True):
    """Who was authenticated; without a name, nobody was."""

    name: str = ""
    is_operator: bool = True

    def may_see(self, owner: str) -> bool:
        return self.is_operator or (bool(self.name) and owner == self.name)

    @property
    def owner(self) -> str | None:
        """Whose runs are listed; None for those of all."""
        return None if self.is_operator else self.name


_PERSON: Final = "person:"
_DIGEST: Final = "sha256:"

ANYBODY: Final = Principal()


def present() -> Principal:
    """The principal of the request that is being handled."""
    token = get_access_token()
    return ANYBODY if token is None else principal_of(token)


def principal_of(token: AccessToken) -> Principal:
    """Return a person, the same through any client, or else the client itself.

    Neither can be taken for the other, nor a subject of one issuer for that of another.
    """
    client, issuer, subject = principal_components(token)
    name = _client(client) if subject is None else _person(subject, issuer)
    is_name = 0 < len(name) <= names.MAX_LENGTH and name.isprintable()
    return Principal(name if is_name else _digest(name), is_operator=OPERATOR in token.scopes)


def _client(client: str) -> str:
    return _digest(client) if client.startswith((_PERSON, _DIGEST)) else client


def _person(subject: str, issuer: str | None) -> str:
    of = "" if issuer is None else f"@{quote(issuer, safe='')}"
    return f"{_PERSON}{quote(subject, safe='')}{of}"


def _digest(text: str) -> str:
    return _DIGEST + hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
