"""HTTP requests that go to the address that was checked, and to no other; redirects too."""

import httpx

from holdfast.workflows.access.networks import AddressNotAllowed, Networks

_PORTS = {"http": 80, "https": 443}


def transport_for(networks: Networks) -> httpx.AsyncBaseTransport | None:
    """Return what sends the requests of a block; None if it may reach all addresses."""
    return None if networks.is_any else _PinnedTransport(networks)


class _PinnedTransport(httpx.AsyncBaseTransport):
    """Resolves and checks the host of each request, and connects to what it has found."""

    def __init__(self, networks: Networks) -> None:
        self._networks = networks
        self._inner = httpx.AsyncHTTPTransport()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        host = request.url.host
        try:
            port = request.url.port or _PORTS.get(request.url.scheme, 0)
            addresses = await self._networks.addresses_of(host, port)
        except AddressNotAllowed as error:
            raise httpx.ConnectError(str(error), request=request) from error
        except OSError as error:
            raise httpx.ConnectError(f"{host}: {error.strerror}", request=request) from error
        for address in addresses[:-1]:
            try:
                return await self._send(request, address)
            except httpx.ConnectError:  # such as an address of IPv6 on a machine without it
                continue
        return await self._send(request, addresses[-1])

    async def _send(self, request: httpx.Request, address: str) -> httpx.Response:
        pinned = httpx.Request(
            request.method,
            request.url.copy_with(host=address),
            headers=request.headers,  # with the host as it was named
            stream=request.stream,
            extensions={**request.extensions, "sni_hostname": request.url.host},
        )
        return await self._inner.handle_async_request(pinned)

    async def aclose(self) -> None:
        await self._inner.aclose()
