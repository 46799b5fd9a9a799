"""What lies in a store is read and verified by somebody else: MessagePack, zstd, SHA-256.

Only the rows are used. Nothing of Holdfast reads them here, but for the words that are the
dictionary of short bodies.
"""

import hashlib
import pickle
from collections.abc import AsyncIterator, Iterator
from typing import Any, NamedTuple

import msgspec
import pytest
import zstandard

import holdfast
from holdfast import codec
from holdfast.errors import IntegrityError, UnsupportedValue
from holdfast.records import CheckpointService
from holdfast.testing.store_suite import async_test
from tests.backends import Backend, Raw
from tests.integration.test_tampering import flips, make_run

HEADER = (
    "tenant",
    "run_id",
    "seq",
    "kind",
    "at",
    "actor",
    "schema",
    "encoding",
    "key_id",
    "facts",
)


class Row(NamedTuple):
    """An entry, in the columns of `tests.backends.ENTRY`, and its proof."""

    seq: int
    kind: str
    tenant: str
    run_id: str
    at: int
    actor: str
    schema: int
    encoding: str
    key_id: str
    facts: bytes
    nonce: bytes
    body: bytes
    proof: bytes | None
    link: bytes


def rows_in(backend: Backend) -> list[Row]:
    with backend.raw() as raw:
        proofs = raw.proofs()
        found = [Row(*row[:-1], proofs[row[3], row[0]], row[-1]) for row in raw.entries()]
    return [row._replace(**{n: bytes(getattr(row, n)) for n in ("nonce", "body")}) for row in found]


def misfits(rows: list[Row]) -> Iterator[int]:
    """The numbers of entries that do not continue the chain as it was written."""
    link = bytes(32)
    for number, row in enumerate(rows, 1):
        columns = [getattr(row, name) for name in HEADER]
        header = msgspec.msgpack.encode(columns if row.proof is None else [*columns, row.proof])
        digest = hashlib.sha256(row.nonce + row.body).digest()
        link = hashlib.sha256(link + header + digest).digest()
        if (row.seq, row.link) != (number, link):
            yield number


def unpacked(row: Row) -> bytes:
    """The MessagePack of a body."""
    if row.encoding == "mp":
        return row.body
    words = zstandard.ZstdCompressionDict(codec.WORDS) if row.encoding == "zstd1" else None
    return zstandard.ZstdDecompressor(dict_data=words).decompress(row.body)


@pytest.mark.mission("S3-088", "S3-106", "S3-196", "S3-202")
@async_test
async def test_somebody_else_verifies_a_chain_and_finds_every_change(backend: Backend) -> None:
    async with holdfast.open(backend.url) as hf:
        await make_run(hf)
    rows = rows_in(backend)
    assert len(rows) >= 10
    assert list(misfits(rows)) == []
    assert {len(row.nonce) for row in rows} == {16}
    assert len({row.nonce for row in rows}) == len(rows), "no two are drawn alike"
    for at, row in enumerate(rows):
        for name in Row._fields:
            for changed in flips(getattr(row, name))[:3]:
                others = [*rows[:at], row._replace(**{name: changed}), *rows[at + 1 :]]
                assert at + 1 in misfits(others), f"{name} of entry {row.seq}"
    for at in range(len(rows) - 1):
        assert list(misfits(rows[:at] + rows[at + 1 :])), f"entry {at + 1} is gone"
        swapped = [*rows[:at], rows[at + 1], rows[at], *rows[at + 2 :]]
        assert list(misfits(swapped)), f"entries {at + 1} and {at + 2} are swapped"


TABLES = ("runs", "checkpoints", "effects", "waits", "wait_groups", "signals", "records")


async def transitions(hf: holdfast.Holdfast) -> AsyncIterator[list[str]]:
    """Change the state of a run in every way, and say each time which entries tell of it."""
    await hf.runs.create("a")
    yield ["RUN_CREATED"]
    run = await hf.runs.open("a")
    yield ["RUN_LEASED"]
    run.append("log", 1)
    await run.checkpoint()
    yield ["CHECKPOINT_CREATED"]
    asked = [holdfast.EffectRequest(tool="t", args=n) for n in range(3)]
    first, second, third = await run.begin_effects(asked)
    yield ["EFFECT_ISSUED"] * 3
    await run.finish_effect(first, "result")
    yield ["EFFECT_COMPLETED"]
    await hf.effects.settle(second.effect.effect_id, "not_done", by="ann")
    yield ["EFFECT_NOT_DONE"]
    await hf.effects.settle(third.effect.effect_id, "completed", result=1, by="ann")
    yield ["EFFECT_COMPLETED"]
    await hf.signals.send("a", "go", 1)
    yield ["SIGNAL_RECEIVED"]
    specs = [holdfast.WaitSpec(wait_id=name, timeout_seconds=3600) for name in "xyz"]
    await run.open_waits(specs, suspend=True)
    yield ["WAITS_OPENED", "RUN_WAITING"]
    await hf.waits.resolve("x", 1, by="bob")
    yield ["WAIT_RESOLVED"]
    await hf.waits.extend("y", timeout_seconds=0)
    yield []  # a sign of life of a peer is a hint
    assert await hf.waits.expire_due() == 1
    yield ["WAIT_EXPIRED"]
    await hf.waits.cancel("z", by="bob")
    yield ["WAIT_CANCELLED", "GROUP_CLOSED"]
    await hf.runs.block("a", "breaker")
    yield ["RUN_BLOCKED"]
    await hf.runs.unblock("a")
    yield ["RUN_UNBLOCKED"]
    run = await hf.runs.open("a")
    yield ["RUN_LEASED"]
    await run.release()
    yield ["RUN_RELEASED"]
    await hf.handoffs.request("a")
    yield ["HANDOFF_REQUESTED"]
    await hf.runs.rewind("a", 1)
    yield ["RUN_REWOUND", "CHECKPOINT_CREATED"]
    await hf.runs.cancel("a")
    yield ["RUN_CANCELLED"]


@pytest.mark.mission("S3-009", "S3-088")
@async_test
async def test_no_state_changes_without_an_entry_that_says_so(backend: Backend) -> None:
    async with holdfast.open(backend.url) as hf:
        with backend.raw() as raw:
            told, before = 0, rows_of(raw)
            async for expected in transitions(hf):
                kinds = [row[1] for row in raw.entries()]
                assert kinds[told:] == expected
                assert rows_of(raw) != before, "it is a change"
                told, before = len(kinds), rows_of(raw)
        assert await hf.journal.verify("a") == []


def rows_of(raw: Raw) -> list[str]:
    """All that is told of runs beside their journals."""
    return sorted(repr(row) for table in TABLES for row in raw.rows(f"SELECT * FROM {table}"))


@pytest.mark.mission("S3-099", "S3-195", "X-006")
@pytest.mark.parametrize(("words", "encoding"), [(2, "mp"), (100, "zstd1"), (10_000, "zstd")])
@async_test
async def test_state_is_messagepack_that_is_compressed_where_it_is_long(
    backend: Backend, words: int, encoding: str
) -> None:
    text = "once more " * words
    async with holdfast.open(backend.url) as hf:
        run = await hf.runs.open("a")
        run.set("note", {"text": text, "count": 7})
        await run.checkpoint()
        with pytest.raises(UnsupportedValue):
            run.set("code", print)
    (row,) = [row for row in rows_in(backend) if row.kind == "CHECKPOINT_CREATED"]
    assert (row.schema, row.encoding) == (1, encoding)
    assert {"text": text, "count": 7} in values_in(msgspec.msgpack.decode(unpacked(row)))
    if encoding != "mp":
        assert len(row.body) < len(text) / 5
    with pytest.raises(IntegrityError):
        codec.decode(pickle.dumps({"text": text}))


@pytest.mark.mission("S3-099")
@async_test
async def test_record_of_a_checkpoint_is_messagepack_too(backend: Backend) -> None:
    async with holdfast.open(backend.url) as hf:
        service = CheckpointService(hf)
        made = await service.create_checkpoint("task", "ada", {"metrics": {"tools_invoked": 3}})
        made = await service.update_checkpoint(
            made.checkpoint_id, {"recovery": {"continuation_prompt": "go on"}}
        )
    *_, created, updated = rows_in(backend)
    whole = msgspec.json.decode(msgspec.json.encode(made))
    told = {name: whole[name] for name in SECTIONS}
    assert msgspec.msgpack.decode(unpacked(updated)) == told
    (first,) = [
        each
        for each in values_in(msgspec.msgpack.decode(unpacked(created)))
        if isinstance(each, dict) and "metadata" in each
    ]
    assert first["metadata"] == told["metadata"]
    assert first["metrics"]["tools_invoked"] == 3


SECTIONS = (
    "version",
    "metadata",
    "execution_state",
    "context_summary",
    "metrics",
    "recovery",
    "compliance",
)


def values_in(value: Any) -> Iterator[Any]:
    """A value, and all that it holds."""
    yield value
    inside = value.values() if isinstance(value, dict) else value
    for each in inside if isinstance(value, dict | list) else ():
        yield from values_in(each)
