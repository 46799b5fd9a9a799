"""Which addresses the requests of blocks may go to: public ones, and the networks of the kit.

A name is resolved once for each request, and the request goes to the address that was checked: an
answer of the name server that changes between the two reaches nothing else.
"""

import asyncio
import socket
from collections.abc import Iterable, Iterator
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

from holdfast.errors import MisuseError

ANY: Final = "any"
_TRANSLATED: Final = IPv6Network("64:ff9b::/96")
"""Addresses of IPv6 that stand for one of IPv4 (NAT64)."""

Address = IPv4Address | IPv6Address


class AddressNotAllowed(Exception):
    """A request would go to an address that blocks may not reach."""


class Networks:
    """The networks that blocks may reach beside public addresses; "any" checks nothing.

    With "any" the proxies of the environment are used, which then decide what is reached.
    """

    def __init__(self, allowed: Iterable[str] | str = ()) -> None:
        given = [allowed] if isinstance(allowed, str) else list(allowed)
        self.is_any = given == [ANY]
        self._allowed = () if self.is_any else tuple(map(_network, given))

    async def addresses_of(self, host: str, port: int) -> list[str]:
        """Return the addresses of a host that may be reached.

        Raises AddressNotAllowed if there is none, and OSError if the name is not known.
        """
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        addresses = list(dict.fromkeys(str(place[0]) for *_, place in found))
        reachable = [each for each in addresses if self._may_reach(ip_address(each))]
        if not reachable:
            raise AddressNotAllowed(
                f"{host} is {', '.join(addresses)}, which is not a public address, and blocks "
                "reach no others. Allow its network with --network or Kit(networks=[…])"
            )
        return reachable

    def _may_reach(self, address: Address) -> bool:
        return all(
            (each.is_global and not each.is_multicast)
            or any(each in network for network in self._allowed)
            for each in _meanings(address)
        )


def _meanings(address: Address) -> Iterator[Address]:
    """Yield an address, or the addresses of IPv4 that it leads to."""
    if isinstance(address, IPv4Address):
        yield address
    elif address.ipv4_mapped is not None:
        yield address.ipv4_mapped
    elif address in _TRANSLATED:
        yield IPv4Address(int(address) & 0xFFFFFFFF)
    else:
        yield address
        if address.sixtofour is not None:
            yield address.sixtofour
        if address.teredo is not None:
            yield from address.teredo


def _network(text: object) -> IPv4Network | IPv6Network:
    try:
        return ip_network(str(text), strict=False)
    except ValueError as error:
        raise MisuseError(
            f"{text!r} is not a network: {error}. Write it as 127.0.0.0/8, or 'any' for all"
        ) from None
