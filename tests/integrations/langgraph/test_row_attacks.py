"""Rows of marks and writes are changed behind Holdfast's back: no saver believes them."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

import pytest
from langgraph.checkpoint.base import CheckpointTuple

from holdfast.errors import IntegrityError
from holdfast.testing.store_suite import async_test
from tests.backends import Backend
from tests.integrations.langgraph.making import config, listed, put_chain
from tests.integrations.langgraph.savers import STOCK, Saver, face_of, opened
from tests.recovery.test_index_attacks import columns

NAME = {"sqlite": "x'00666f72676564'", "postgres": "'\\x00666f72676564'::bytea"}
VALUES = {
    "tags": '\'{"source": "forged"}\'',
    "space": "'forged'",
}

pytestmark = pytest.mark.skipif(bool(STOCK), reason="another saver has no such rows")


async def outcome(ask: Callable[[], Awaitable[Any]]) -> Any:
    try:
        return await ask()
    except IntegrityError:
        return "error"


@pytest.mark.parametrize("table", ["marks", "writes"])
@async_test
async def test_no_column_is_believed(backend: Backend, face: str, table: str) -> None:
    with opened(backend.url) as made:
        saver = face_of(made, face)
        chain = await put_chain(saver, 3)
        for each in chain:
            await saver.aput_writes(each, [("n", 7)], "task")
        asked = reads(saver, chain)
        truth = {name: await outcome(ask) for name, ask in asked.items()}
        assert "error" not in truth.values()
        tried = 0
        with backend.raw() as raw:
            raw.execute(f"CREATE TEMP TABLE saved AS SELECT * FROM {table}")
            wanted = [each for each in columns(raw, backend) if each[0] == table]
            for _, column, is_number in wanted:
                if column in ("tenant", "run_id"):
                    continue
                other = NAME[backend.name] if column in ("name", "parent") else VALUES.get(column)
                value = f"{column} + 100" if is_number else other
                newest = (
                    "version = 3" if table == "marks" else "seq = (SELECT max(seq) FROM writes)"
                )
                assert raw.execute(f"UPDATE {table} SET {column} = {value} WHERE {newest}") == 1
                for name, ask in asked.items():
                    found = await outcome(ask)
                    is_hidden = column in ("name", "space") and shows_less(found, truth["list"])
                    assert found in (truth[name], "error") or is_hidden, (column, name)
                tried += 1
                raw.execute(f"DELETE FROM {table}")
                raw.execute(f"INSERT INTO {table} SELECT * FROM saved")
        assert tried == len(wanted) - 2
        assert {name: await outcome(ask) for name, ask in asked.items()} == truth


def reads(saver: Saver, chain: list[Any]) -> dict[str, Callable[[], Awaitable[Any]]]:
    return {
        "latest": lambda: saver.aget_tuple(config()),
        "newest": lambda: saver.aget_tuple(chain[-1]),
        "list": lambda: listed(saver, config()),
        "oldest": lambda: saver.aget_tuple(chain[0]),
    }


def shows_less(found: Any, stored: Sequence[CheckpointTuple]) -> bool:
    """Whether all that was given back was stored so, but that rows may be hidden."""
    if isinstance(found, str):
        return False
    given = cast("list[CheckpointTuple | None]", found if isinstance(found, list) else [found])
    return all(each is None or any(_is_part(each, one) for one in stored) for each in given)


def _is_part(each: CheckpointTuple, one: CheckpointTuple) -> bool:
    return each._replace(pending_writes=None) == one._replace(pending_writes=None) and (
        each.pending_writes in (one.pending_writes, [])
    )
