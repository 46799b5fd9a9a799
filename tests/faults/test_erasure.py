"""A process that dies while it drops versions and erases bodies: all of it is done, or nothing."""

import hashlib
import signal
from itertools import product
from typing import Any

import pytest

import holdfast
from holdfast.testing.store_suite import async_test
from holdfast.testing.store_suite.mark_commits import commit, saved, written
from tests import forked
from tests.backends import Backend, Raw

BEFORE = ("batch.before_begin", "batch.after_begin", "commit.after_entries", "commit.after_changes")
BEFORE += ("batch.before_commit",)
AFTER = ("batch.after_commit", "batch.before_acknowledge")


def struck() -> list[Any]:
    """Every point meets each action and each verb; the other pairs of them with --chaos."""
    found: list[Any] = []
    for number, point in enumerate((*BEFORE, *AFTER)):
        pairs = product(("raise", "kill"), ("commit", "late"))
        for place, pair in enumerate(pairs):
            is_usual = (place in (0, 3)) == (number % 2 == 0)
            marks = [] if is_usual else [pytest.mark.chaos]
            found.append(pytest.param(point, *pair, marks=marks))
    return found


async def prepare(url: str) -> None:
    async with holdfast.open(url) as hf:
        await hf.runs.create("a", input="x" * 1000)
        for version in (1, 2, 3):
            name = f"n{version}"
            drafts = (saved(version, name, f"n{version - 1}"), written(name))
            await commit(hf, "a", *drafts)


def digests_of(raw: Raw) -> dict[int, bytes]:
    """The digest of each body, by the documented formula."""
    return {row[0]: hashlib.sha256(row[10] + row[11]).digest() for row in raw.entries()}


def rows(raw: Raw) -> tuple[list[Any], ...]:
    return (
        raw.rows("SELECT version FROM checkpoints ORDER BY version"),
        raw.rows("SELECT version FROM marks ORDER BY version"),
        raw.rows("SELECT name FROM writes ORDER BY name"),
    )


@pytest.mark.parametrize(("point", "action", "verb"), struck())
@async_test
async def test_erasure_is_whole_or_not_at_all(
    backend: Backend, point: str, action: str, verb: str
) -> None:
    await prepare(backend.url)
    with backend.raw() as raw:
        digests = digests_of(raw)
    ended = forked.run(["-m", "tests.faults.eraser", backend.url, point, action, verb])
    assert ended.returncode == (-signal.SIGKILL if action == "kill" else 0), ended.stderr
    with backend.raw() as raw:
        entries = raw.entries()
        is_done = any(row[1] == "BODIES_ERASED" for row in entries)
        if is_done:
            assert point in AFTER
            assert [row[0] for row in entries if row[11] is None] == [1, 2, 3, 4, 5]
            told = raw.rows("SELECT seq, erased_digest FROM journal WHERE body IS NULL AND seq < 6")
            assert dict(told) == {seq: digests[seq] for seq in range(1, 6)}
            assert rows(raw) == ([(3,)], [(3,)], [(b"\x00n3",)])
        else:
            assert point in BEFORE
            assert digests_of(raw) == digests
            assert [len(found) for found in rows(raw)] == [3, 3, 3]
    async with holdfast.open(backend.url) as hf:
        assert await hf.journal.verify("a") == []
        assert len(await hf.journal.read("a")) == len(entries)
