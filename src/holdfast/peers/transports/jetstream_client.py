"""A NATS client that never sends clear text where TLS is required."""

from typing import Any

import nats.errors
from nats.aio.client import Client

_REFUSALS = (
    "authorization violation",
    "user authentication expired",
    "user authentication revoked",
    "account authentication expired",
    "authentication timeout",
)


class NoTls(nats.errors.Error):
    """A server offers no TLS, and we may not speak without."""


class SecureClient(Client):
    """Ends a connection before anything is sent on it, if it must be encrypted and is not.

    By default the client uses TLS only if the server asks for it, and sends passwords unencrypted.
    """

    has_jetstream = False

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        if initial_connection:
            if "tls" in self.options and not info.get("tls_required"):
                raise NoTls("the server does not speak TLS")
            self.has_jetstream = bool(info.get("jetstream"))
        await super()._process_info(info, initial_connection)


def is_refusal(error: Exception) -> bool:
    """Whether a server does not accept who we are; the client has no class for most of these."""
    if isinstance(error, nats.errors.AuthorizationError | nats.errors.InvalidUserCredentialsError):
        return True
    return any(refusal in str(error).lower() for refusal in _REFUSALS)
