"""`ReadFiles`, `CreateFile` and `EditFile`: files in the folder of the workflow, and no others."""

import base64
import hashlib
from typing import Any, ClassVar, Final, Literal

import msgspec

from holdfast.errors import BlockFailed
from holdfast.workflows.access.files import Folder
from holdfast.workflows.access.secrets import Secrets
from holdfast.workflows.blocks import edits, outside
from holdfast.workflows.blocks.contract import BlockRun
from holdfast.workflows.blocks.edits import Edit

Encoding = Literal["text", "base64"]

MOST_FILES: Final = 1_000
MOST_BYTES: Final = 4 * 1024 * 1024
_MOST_EDITED: Final = 64 * 1024 * 1024


class ReadInputs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`paths` may be patterns (`src/**/*.py`); a path that is none must be there.

    Together they have `max_bytes` at most.
    """

    paths: list[str]
    encoding: Encoding = "text"
    max_bytes: int = MOST_BYTES


class ReadFiles:
    name: ClassVar[str] = "ReadFiles"
    inputs: ClassVar[type[msgspec.Struct]] = ReadInputs
    waits: ClassVar[bool] = False
    takes_secrets: ClassVar[bool] = False

    async def execute(self, block: BlockRun, inputs: ReadInputs) -> dict[str, Any]:
        def read(paths: list[str], encoding: str, max_bytes: int) -> dict[str, Any]:
            found = _read_all(block.folder, paths, encoding, min(max_bytes, MOST_BYTES))
            return {"files": block.secrets.redact(found)}

        return await outside.call(
            block, read, name=self.name, effect="read", given=msgspec.structs.asdict(inputs)
        )


def _read_all(folder: Folder, paths: list[str], encoding: str, at_most: int) -> list[Any]:
    names: dict[str, None] = {}
    for path in paths:
        is_pattern = any(mark in path for mark in "*?[")
        names |= dict.fromkeys(folder.matches(path) if is_pattern else [path])
    if len(names) > MOST_FILES:
        raise BlockFailed(f"these are {len(names):,} files; at most {MOST_FILES:,} are read")
    found: list[Any] = []
    for name in names:
        content = folder.read(name, at_most=at_most)
        if content is None:
            raise BlockFailed(f"there is no file {name}")
        at_most -= len(content)
        found.append(
            {"path": name, "content": _encoded(name, content, encoding), "bytes": len(content)}
        )
    return found


def _encoded(name: str, content: bytes, encoding: str) -> str:
    if encoding == "base64":
        return base64.b64encode(content).decode()
    return _text(name, content)


def _text(name: str, content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise BlockFailed(f"{name} is no text in UTF-8: byte {error.start}") from None


class CreateInputs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file that is there is an error, unless it has the same content, or `overwrite` is true.

    `mode` is as in `chmod`: "600".
    """

    path: str
    content: str
    encoding: Encoding = "text"
    overwrite: bool = False
    mode: str | None = None


class CreateFile:
    name: ClassVar[str] = "CreateFile"
    inputs: ClassVar[type[msgspec.Struct]] = CreateInputs
    waits: ClassVar[bool] = False
    takes_secrets: ClassVar[bool] = True

    async def execute(self, block: BlockRun, inputs: CreateInputs) -> dict[str, Any]:
        mode = _mode(inputs.mode)

        def create(path: str, content: str, encoding: str, overwrite: bool) -> dict[str, Any]:
            raw = _raw(block.secrets.reveal(content), encoding)
            if not _has(block.folder, path, raw):
                block.folder.write(path, raw, mode=mode, overwrite=overwrite)
            return _written(block.folder, path, raw)

        given = {
            "path": inputs.path,
            "content": inputs.content,
            "encoding": inputs.encoding,
            "overwrite": inputs.overwrite,
        }
        return await outside.call(block, create, name=self.name, effect="idempotent", given=given)


def _mode(given: str | None) -> int | None:
    if given is None:
        return None
    try:
        mode = int(given, 8)
    except ValueError:
        mode = -1
    if not 0 <= mode <= 0o777:
        raise BlockFailed(f'mode {given!r} is none: write it as for chmod, as in "600"')
    return mode


def _raw(content: str, encoding: str) -> bytes:
    if encoding == "text":
        return content.encode()
    try:
        return base64.b64decode(content, validate=True)
    except ValueError as error:
        raise BlockFailed(f"the content is no base64: {error}") from None


def _has(folder: Folder, path: str, content: bytes) -> bool:
    try:
        return folder.read(path, at_most=len(content)) == content
    except BlockFailed:
        return False


def _written(folder: Folder, path: str, content: bytes) -> dict[str, Any]:
    shown = folder.shown(folder.path(path))
    return {"path": shown, "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


class EditInputs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The changes of a file, made one after another, all or none of them."""

    path: str
    edits: list[Edit]


class EditFile:
    name: ClassVar[str] = "EditFile"
    inputs: ClassVar[type[msgspec.Struct]] = EditInputs
    waits: ClassVar[bool] = False
    takes_secrets: ClassVar[bool] = True

    async def execute(self, block: BlockRun, inputs: EditInputs) -> dict[str, Any]:
        """Edit the file. Its digests before and after are recorded first: no edit is made twice."""
        editing = _Editing(block.folder, block.secrets)
        plan = await block.run.step(editing.plan, inputs.path, inputs.edits)
        if "refused" in plan:
            raise BlockFailed(plan["refused"])
        return await outside.call(
            block,
            editing.write,
            name=self.name,
            effect="idempotent",
            given={
                "path": inputs.path,
                "edits": msgspec.to_builtins(inputs.edits),
                "before": plan["before"],
                "after": plan["after"],
            },
        )


class _Editing:
    def __init__(self, folder: Folder, secrets: Secrets) -> None:
        self._folder = folder
        self._secrets = secrets

    async def plan(self, path: str, changes: list[Edit]) -> dict[str, str]:
        """Return the digests of the file now and after the edits, or why it cannot be edited.

        A refusal is recorded too: a file that appears or vanishes in a pause changes nothing.
        """
        try:
            now = self._content(path)
            after = self._edited(path, now, changes)
        except BlockFailed as error:
            return {"refused": self._secrets.redact(str(error))}
        return {"before": _digest(now), "after": _digest(after)}

    def write(
        self, path: str, edits: list[dict[str, Any]], before: str, after: str
    ) -> dict[str, Any]:
        """Write what was planned. Raises BlockFailed if the file is neither before nor after."""
        now = self._content(path)
        if _digest(now) == after:
            return _written(self._folder, path, now)
        if _digest(now) != before:
            raise BlockFailed(f"{path} was changed by somebody else; nothing was written")
        made = self._edited(path, now, msgspec.convert(edits, list[Edit]))
        if _digest(made) != after:
            raise BlockFailed(f"a secret in the edits of {path} has changed; nothing was written")
        self._folder.write(path, made)
        return _written(self._folder, path, made)

    def _content(self, path: str) -> bytes:
        found = self._folder.read(path, at_most=_MOST_EDITED)
        if found is None:
            raise BlockFailed(f"there is no file {path}")
        return found

    def _edited(self, path: str, content: bytes, changes: list[Edit]) -> bytes:
        revealed = self._secrets.reveal(msgspec.to_builtins(changes))
        with outside.telling_no(self._secrets):
            return edits.apply(_text(path, content), msgspec.convert(revealed, list[Edit])).encode()


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
