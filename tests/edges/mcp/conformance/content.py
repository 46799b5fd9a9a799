"""Tools that answer at once: every kind of content, an error, and two schemas."""

import base64
import io
import struct
import wave
import zlib
from typing import Any

from mcp_types import (
    AudioContent,
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    TextContent,
    TextResourceContents,
)

from holdfast.edges.mcp.contract import Handler, McpCall
from tests.edges.mcp.conformance.fixture import Given, plain, text


def _chunk(kind: bytes, data: bytes) -> bytes:
    crc = zlib.crc32(kind + data)
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", crc)


def _png() -> str:
    """One red pixel, in base64."""
    header = struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0)
    pixels = zlib.compress(b"\x00\xff\x00\x00")
    chunks = _chunk(b"IHDR", header) + _chunk(b"IDAT", pixels) + _chunk(b"IEND", b"")
    return base64.b64encode(b"\x89PNG\r\n\x1a\n" + chunks).decode()


def _wav() -> str:
    """Eight frames of silence, in base64."""
    raw = io.BytesIO()
    with wave.open(raw, "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(1)
        sound.setframerate(8000)
        sound.writeframes(bytes(8))
    return base64.b64encode(raw.getvalue()).decode()


PNG = _png()

IMAGE = ImageContent(data=PNG, mime_type="image/png")
AUDIO = AudioContent(data=_wav(), mime_type="audio/wav")


def embedded(uri: str, mime_type: str, words: str) -> EmbeddedResource:
    resource = TextResourceContents(uri=uri, mime_type=mime_type, text=words)
    return EmbeddedResource(resource=resource)


def _always(*content: ContentBlock, is_error: bool = False) -> Handler:
    async def handle(call: McpCall, given: Given) -> CallToolResult:
        return CallToolResult(content=list(content), is_error=is_error)

    return handle


async def _greet(call: McpCall, given: Given) -> CallToolResult:
    return text(f"Hello, {given['name']}!")


_ADDRESS = {
    "$anchor": "addressDef",
    "type": "object",
    "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
}
_SCHEMA_2020_12: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {"address": _ADDRESS},
    "properties": {
        "name": {"type": "string"},
        "address": {"$ref": "#/$defs/address"},
        "contactMethod": {"type": "string", "enum": ["phone", "email"]},
        "phone": {"type": "string"},
        "email": {"type": "string"},
    },
    "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
    "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
    "then": {"required": ["phone"]},
    "else": {"required": ["email"]},
    "additionalProperties": False,
}
_NAMED: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string"}},
    "required": ["name"],
}
_HEADED: dict[str, Any] = {
    "type": "object",
    "properties": {"region": {"type": "string", "x-mcp-header": "Region"}},
    "required": ["region"],
}

TOOLS = [
    plain(
        "test_simple_text",
        "Answer with text.",
        _always(TextContent(text="This is a simple text response for testing.")),
    ),
    plain("test_image_content", "Answer with an image.", _always(IMAGE)),
    plain("test_audio_content", "Answer with a sound.", _always(AUDIO)),
    plain(
        "test_embedded_resource",
        "Answer with a resource.",
        _always(
            embedded(
                "test://embedded-resource", "text/plain", "This is an embedded resource content."
            )
        ),
    ),
    plain(
        "test_multiple_content_types",
        "Answer with text, an image and a resource.",
        _always(
            TextContent(text="Multiple content types test:"),
            IMAGE,
            embedded(
                "test://mixed-content-resource", "application/json", '{"test":"data","value":123}'
            ),
        ),
    ),
    plain(
        "test_error_handling",
        "Fail always.",
        _always(
            TextContent(text="This tool intentionally returns an error for testing"), is_error=True
        ),
    ),
    plain(
        "json_schema_2020_12_tool",
        "Have a schema with the words of JSON Schema 2020-12.",
        _always(TextContent(text="The schema is the point.")),
        _SCHEMA_2020_12,
    ),
    plain(
        "test_custom_header",
        "Have an argument that also goes in a header.",
        _always(TextContent(text="The header agrees.")),
        _HEADED,
    ),
    plain("greet", "Greet by name, at once.", _greet, _NAMED),
]
