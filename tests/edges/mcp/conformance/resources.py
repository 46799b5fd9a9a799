"""The kit's resources, beside those that the server has by itself."""

import json
from typing import Any

from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INVALID_PARAMS,
    BlobResourceContents,
    EmptyResult,
    ListResourcesResult,
    ListResourceTemplatesResult,
    PaginatedRequestParams,
    ReadResourceRequestParams,
    ReadResourceResult,
    Resource,
    ResourceTemplate,
    SetLevelRequestParams,
    SubscribeRequestParams,
    TextResourceContents,
    UnsubscribeRequestParams,
)

from tests.edges.mcp.conformance.content import PNG
from tests.edges.mcp.conformance.fixture import Context

_TEXT = TextResourceContents(
    uri="test://static-text",
    mime_type="text/plain",
    text="This is the content of the static text resource.",
)
_BINARY = BlobResourceContents(uri="test://static-binary", mime_type="image/png", blob=PNG)
_WATCHED = TextResourceContents(
    uri="test://watched-resource", mime_type="text/plain", text="Nothing has happened."
)
_TEMPLATE = ("test://template/", "/data")
CONTENTS = {str(each.uri): each for each in (_TEXT, _BINARY, _WATCHED)}


def _resource(uri: str) -> Resource:
    name = uri.removeprefix("test://")
    mime_type = CONTENTS[uri].mime_type
    return Resource(uri=uri, name=name, description=f"The {name}.", mime_type=mime_type)


def _of_template(uri: str) -> TextResourceContents | None:
    before, after = _TEMPLATE
    if not (uri.startswith(before) and uri.endswith(after)):
        return None
    name = uri.removeprefix(before).removesuffix(after)
    data = {"id": name, "templateTest": True, "data": f"Data for ID: {name}"}
    return TextResourceContents(uri=uri, mime_type="application/json", text=json.dumps(data))


def _found(uri: str) -> TextResourceContents | BlobResourceContents:
    found = CONTENTS.get(uri) or _of_template(uri)
    if found is None:
        raise MCPError(code=INVALID_PARAMS, message="Resource not found", data={"uri": uri})
    return found


async def _accept(ctx: Context, params: object) -> EmptyResult:
    return EmptyResult()


class _Resources:
    """The kit's resources before those of the server that they are added to."""

    def __init__(self, server: Server[Any]) -> None:
        self._own = {
            method: entry.handler
            for method in ("resources/list", "resources/templates/list", "resources/read")
            if (entry := server.get_request_handler(method)) is not None
        }

    async def list(self, ctx: Context, params: PaginatedRequestParams) -> ListResourcesResult:
        own = await self._ask("resources/list", ctx, params)
        found = [_resource(uri) for uri in CONTENTS]
        return ListResourcesResult(resources=[*found, *(own.resources if own else ())])

    async def templates(
        self, ctx: Context, params: PaginatedRequestParams
    ) -> ListResourceTemplatesResult:
        own = await self._ask("resources/templates/list", ctx, params)
        template = ResourceTemplate(
            uri_template="{id}".join(_TEMPLATE),
            name="template",
            description="Data of one id.",
            mime_type="application/json",
        )
        rest = own.resource_templates if own else ()
        return ListResourceTemplatesResult(resource_templates=[template, *rest])

    async def read(self, ctx: Context, params: ReadResourceRequestParams) -> Any:
        uri = str(params.uri)
        is_known = uri in CONTENTS or _of_template(uri) is not None
        if "resources/read" in self._own and not is_known:
            return await self._ask("resources/read", ctx, params)
        return ReadResourceResult(contents=[_found(uri)])

    async def _ask(self, method: str, ctx: Context, params: Any) -> Any:
        handler = self._own.get(method)
        return None if handler is None else await handler(ctx, params)


def add_resources(server: Server[Any]) -> None:
    made = _Resources(server)
    server.add_request_handler("resources/list", PaginatedRequestParams, made.list)
    server.add_request_handler("resources/templates/list", PaginatedRequestParams, made.templates)
    server.add_request_handler("resources/read", ReadResourceRequestParams, made.read)
    server.add_request_handler("resources/subscribe", SubscribeRequestParams, _accept)
    server.add_request_handler("resources/unsubscribe", UnsubscribeRequestParams, _accept)
    server.add_request_handler("logging/setLevel", SetLevelRequestParams, _accept)
