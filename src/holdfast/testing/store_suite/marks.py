"""Marks: a name counts once, a parent has one only child, and what is dropped is gone from all."""

import asyncio
from typing import Any
from uuid import UUID

import pytest

from holdfast.engine.waits import WaitSpec
from holdfast.errors import IntegrityError, UnsupportedValue
from holdfast.kernel.indexes import AddMark
from holdfast.kernel.marks import Marked
from holdfast.stores.contract import Applied, Refused
from holdfast.stores.reads import MarkFilter
from holdfast.testing.clocks import ManualClock
from holdfast.testing.store_suite.backend import Backend, async_test
from holdfast.testing.store_suite.mark_commits import (
    commit,
    commit_late,
    commit_of,
    erased,
    pruned,
    saved,
    store_of,
    written,
)

_HOSTILE = (
    "'; DROP TABLE marks; --",
    '$."a"[0]',
    'a"b\\c',
    "$1 ?1 :tags %s",
    "",
    "\u2028é😀",
    "\0",
)
_DATA: dict[str, Any] = {
    "none": None,
    "yes": True,
    "int": -(2**63),
    "large": 2**64 - 1,
    "whole float": 1.0,
    "float": 0.1,
    "huge": 1.7976931348623157e308,
    "1e23": 1e23,
    "tiny": 5e-324,
    "text": 'a "b" \\u0000 \\ é 😀 \x00 \x1a0 \x1a \x7f',
    "nested": {"b": [1, [2.5, None], {"k": False}], "a": {}, "\x00": "\x00"},
}


def _names(found: list[Marked]) -> list[str]:
    return [mark.name for mark in found]


class MarksSuite:
    """What a store guarantees about marks, writes and erasure."""

    @async_test
    async def test_marks_are_found_by_name_version_and_parent(self, backend: Backend) -> None:
        clock = ManualClock()
        async with backend.open(clock=clock) as hf:
            await hf.runs.create("a", agent="langgraph")
            uuid = "1f0c5b4e-0000-6000-8000-00000000000a"
            drafts = [
                saved(1, "one", step=-1),
                saved(2, uuid, "one"),
                saved(3, "one", space="sub"),
                saved(4, "four", uuid),
            ]
            for draft in drafts:
                assert await commit(hf, "a", draft) == Applied()
            marks = store_of(hf).marks
            one = await marks.get("a", "", "one")
            assert one == Marked(
                tenant="default",
                run_id="a",
                space="",
                name="one",
                version=1,
                parent="",
                created_at=clock.now(),
                tags={"step": -1},
            )
            assert await marks.get("a", "none", "one") is None
            assert await marks.get("b", "", "one") is None
            latest = await marks.latest("a", "")
            assert latest is not None
            assert (latest.name, latest.parent) == ("four", uuid)
            in_sub = await marks.latest("a", "sub")
            assert in_sub is not None
            assert in_sub.version == 3
            assert [mark.version for mark in await marks.of_run("a")] == [1, 2, 3, 4]
            assert await hf.journal.verify("a") == []

    @async_test
    async def test_pages_go_from_the_highest_down(self, backend: Backend) -> None:
        async with backend.open() as hf:
            for run_id in ("a", "b"):
                await hf.runs.create(run_id)
            for version, name in enumerate(["n1", "n3", "n2"], 1):
                await commit(hf, "a", saved(version, name))
            await commit(hf, "a", saved(4, "n9", space="sub"))
            await commit(hf, "b", saved(1, "n2"))

            async def page(**wanted: Any) -> list[tuple[str, str]]:
                found = await store_of(hf).marks.page(MarkFilter(**wanted))
                return [(mark.run_id, mark.name) for mark in found]

            whole = [("a", "n9"), ("a", "n2"), ("a", "n3"), ("a", "n1")]
            assert await page(run_id="a") == whole
            assert await page(run_id="a", space="") == whole[1:]
            assert await page(run_id="a", space="", limit=2) == whole[1:3]
            assert await page(run_id="a", before_version=3) == whole[2:]
            assert await page(run_id="a", space="", before_version=0) == []
            assert await page(run_id="a", before_name="n3") == [("a", "n2"), ("a", "n1")]
            assert await page(run_id="a", name="n9") == [("a", "n9")]
            assert await page(run_id="a", space="", name="n9") == []
            over_all = [("a", "n9"), ("a", "n3"), ("a", "n2"), ("b", "n2"), ("a", "n1")]
            assert await page() == over_all
            assert await page(space="", before_name="n3") == over_all[2:]
            assert await page(name="n2", limit=1) == [("a", "n2")]

    @async_test
    async def test_names_over_all_runs_are_in_order(self, backend: Backend) -> None:
        async with backend.open() as hf:
            uuids = [str(UUID(int=n << 100 | 1)) for n in (1, 2, 300)]
            # Sixteen characters, and a UUID that is written otherwise, are text.
            texts = ["A" * 16, "abc", uuids[2].upper(), "é" * 8, "😀"]
            names = [*sorted(texts), *uuids]
            for number, name in enumerate(reversed(names)):
                await hf.runs.create(f"run-{number}")
                await commit(hf, f"run-{number}", saved(1, name))
            marks = store_of(hf).marks
            assert _names(await marks.page(MarkFilter())) == names[::-1]
            for place, name in enumerate(names):
                assert _names(await marks.page(MarkFilter(before_name=name))) == names[:place][::-1]
                assert _names(await marks.page(MarkFilter(name=name))) == [name]

    @async_test
    async def test_used_name_is_refused_and_nothing_of_it_is_stored(self, backend: Backend) -> None:
        async with backend.open() as hf:
            await hf.runs.create("a")
            assert await commit(hf, "a", saved(1, "one")) == Applied()
            before = await hf.journal.read("a")
            twin = await commit_of(hf, "a", written("one"), saved(2, "one", "other"))
            outcome = await store_of(hf).submit(twin)
            assert isinstance(outcome, Refused)
            assert isinstance(outcome.change, AddMark)
            assert outcome.change.marked.version == 2
            assert await hf.journal.read("a") == before
            assert await store_of(hf).writes.of_run("a") == []
            assert await commit(hf, "a", saved(2, "one", space="sub")) == Applied()
            assert await hf.journal.verify("a") == []

    @async_test
    async def test_marks_form_a_tree(self, backend: Backend) -> None:
        async with backend.open() as hf:
            await hf.runs.create("a")
            assert await commit(hf, "a", saved(1, "one")) == Applied()
            twins = (saved(2, "two", "one"), saved(3, "three", "one"))
            assert await commit(hf, "a", *twins) == Applied()
            assert await commit(hf, "a", saved(4, "four", "one")) == Applied()
            parents = [mark.parent for mark in await store_of(hf).marks.of_run("a")]
            assert parents == ["", "one", "one", "one"]
            assert await hf.journal.verify("a") == []

    @async_test
    async def test_two_in_one_commit_with_the_same_name_are_refused(self, backend: Backend) -> None:
        async with backend.open() as hf:
            await hf.runs.create("a")
            outcome = await commit(hf, "a", saved(1, "one"), saved(2, "one", "p"))
            assert isinstance(outcome, Refused)
            assert await store_of(hf).marks.of_run("a") == []
            assert await hf.checkpoints.history("a") == []

    @async_test
    async def test_one_of_two_that_commit_at_once_is_first(self, backend: Backend) -> None:
        async with backend.open() as hf:
            await hf.runs.create("a")
            await commit(hf, "a", saved(1, "root"))
            twins = [
                await commit_of(hf, "a", saved(2, "same", "root"), written(side))
                for side in ("left", "right")
            ]
            store = store_of(hf)
            outcomes = await asyncio.gather(*(store.submit(twin) for twin in twins))
            assert sorted(type(outcome).__name__ for outcome in outcomes) == ["Applied", "Conflict"]
            assert isinstance(await commit(hf, "a", saved(3, "same", "root")), Refused)
            assert len(await store.marks.of_run("a")) == 2

    @async_test
    async def test_many_runs_save_marks_in_one_batch_and_only_the_culprit_is_refused(
        self, backend: Backend
    ) -> None:
        async with backend.open() as hf:
            store = store_of(hf)
            runs = [f"run-{n}" for n in range(8)]
            for run_id in runs:
                await hf.runs.create(run_id)
            await commit(hf, "run-5", saved(1, "new"))
            version = {run_id: 2 if run_id == "run-5" else 1 for run_id in runs}
            batch = [await commit_of(hf, run_id, saved(version[run_id], "new")) for run_id in runs]
            outcomes = await asyncio.gather(*(store.submit(each) for each in batch))
            refused = [run_id for run_id, o in zip(runs, outcomes, strict=True) if o != Applied()]
            assert refused == ["run-5"]
            assert _names(await store.marks.page(MarkFilter(name="new"))) == ["new"] * 8

    @async_test
    async def test_commit_that_is_sent_again_counts_once(self, backend: Backend) -> None:
        async with backend.open() as hf:
            await hf.runs.create("a")
            store = store_of(hf)
            first = await commit_of(hf, "a", saved(1, "one"), written("one"))
            assert [await store.submit(first) for _ in range(2)] == [Applied()] * 2
            assert len(await store.writes.of_run("a")) == 1
            last = await commit_of(hf, "a", pruned((1, 1)), erased((1, 3)))
            assert [await store.submit(last) for _ in range(2)] == [Applied()] * 2
            assert await store.marks.of_run("a") == []
            assert len(await store.journal.read("a", after=0, limit=100)) == 5

    @async_test
    async def test_writes_are_found_by_their_marks_in_order(self, backend: Backend) -> None:
        async with backend.open() as hf:
            await hf.runs.create("a")
            await commit(hf, "a", written("later"))
            await commit(hf, "a", saved(1, "one"), written("one"), written("one", space="sub"))
            await commit(hf, "a", saved(2, "later", "one"), written("one"))
            writes = store_of(hf).writes
            assert [(w.space, w.name, w.seq) for w in await writes.of_run("a")] == [
                ("", "later", 2),
                ("", "one", 4),
                ("sub", "one", 5),
                ("", "one", 7),
            ]
            await commit(hf, "a", written(str(UUID(int=7))), written("one"))
            assert [w.seq for w in await writes.of_marks("a", [("", str(UUID(int=7)))])] == [8]
            wanted = [("", "one"), ("", "later"), ("", "one"), ("no", "later")]
            assert [w.seq for w in await writes.of_marks("a", wanted)] == [2, 4, 7, 9]
            assert await writes.of_marks("a", []) == []
            assert await writes.of_marks("b", wanted) == []
            assert await hf.journal.verify("a") == []

    @async_test
    async def test_dropping_versions_forgets_their_marks_and_writes(self, backend: Backend) -> None:
        async with backend.open() as hf:
            await hf.runs.create("a")
            for version in range(1, 7):
                name = f"n{version}"
                await commit(hf, "a", saved(version, name), written(name))
            assert await commit(hf, "a", pruned((1, 2), (4, 5))) == Applied()
            store = store_of(hf)
            assert _names(await store.marks.of_run("a")) == ["n3", "n6"]
            assert [w.name for w in await store.writes.of_run("a")] == ["n3", "n6"]
            assert [c.version for c in await hf.checkpoints.history("a")] == [6, 3]
            await hf.checkpoints.delete("a", 3)
            assert _names(await store.marks.of_run("a")) == ["n6"]
            assert [w.name for w in await store.writes.of_run("a")] == ["n6"]
            assert await hf.journal.verify("a") == []
            # What was dropped may be used again.
            assert await commit(hf, "a", saved(7, "n1")) == Applied()

    @async_test
    async def test_one_commit_adds_drops_and_erases_in_order(self, backend: Backend) -> None:
        for commits in (commit, commit_late):
            async with backend.open() as hf:
                run_id = commits.__name__
                await hf.runs.create(run_id)
                await commit(hf, run_id, written("b"), saved(1, "a", "root"))
                await commits(
                    hf,
                    run_id,
                    written("a"),
                    saved(2, "b", "a"),
                    pruned((1, 2)),
                    saved(3, "a", "root"),
                    written("a"),
                    erased((4, 5)),
                )
                store = store_of(hf)
                assert [(m.name, m.version) for m in await store.marks.of_run(run_id)] == [("a", 3)]
                assert [(w.name, w.seq) for w in await store.writes.of_run(run_id)] == [("a", 8)]
                entries = await store.journal.read(run_id, after=0, limit=100)
                assert [entry.seq for entry in entries if entry.body is None] == [4, 5]
                assert await hf.journal.verify(run_id) == []
                before = await store.marks.of_run(run_id)
                await hf.reindex(run_id)
                assert await store.marks.of_run(run_id) == before

    @async_test
    async def test_outside_writers_save_marks_and_drop_them(self, backend: Backend) -> None:
        async with backend.open() as hf:
            await hf.runs.create("a")
            assert await commit_late(hf, "a", saved(1, "one")) == "decided"
            assert await commit_late(hf, "a", written("one")) == "decided"
            assert await commit_late(hf, "a", saved(2, "two", "one")) == "decided"
            with pytest.raises(IntegrityError, match="contradict its journal"):
                await commit_late(hf, "a", saved(3, "two"))
            assert _names(await store_of(hf).marks.of_run("a")) == ["one", "two"]
            await asyncio.gather(
                commit_late(hf, "a", written("two")), commit_late(hf, "a", pruned((1, 2)))
            )
            assert await store_of(hf).marks.of_run("a") == []
            assert await store_of(hf).writes.of_run("a") == []
            assert await hf.journal.verify("a") == []

    @async_test
    async def test_tags_come_back_as_they_were(self, backend: Backend) -> None:
        async with backend.open() as hf:
            await hf.runs.create("a")
            hostile: dict[str, Any] = {key: key for key in _HOSTILE}
            await commit(hf, "a", saved(1, "one", **_DATA))
            await commit(hf, "a", saved(2, "two", **hostile))
            first, second = await store_of(hf).marks.of_run("a")
            assert first.tags == _DATA
            assert {k: type(v) for k, v in first.tags.items()} == {
                k: type(v) for k, v in _DATA.items()
            }
            assert second.tags == hostile
            assert await hf.journal.verify("a") == []

    @async_test
    async def test_tags_that_are_not_json_are_refused_and_others_go_on(
        self, backend: Backend
    ) -> None:
        async with backend.open() as hf:
            store = store_of(hf)
            for number, value in enumerate((float("nan"), float("inf"), b"bytes", {1: "x"})):
                run_id = f"run-{number}"
                await hf.runs.create(run_id)
                await hf.runs.create(f"good-{number}")
                bad = await commit_of(hf, run_id, saved(1, "one", tag=value))
                good = await commit_of(hf, f"good-{number}", saved(1, "one"))
                results = await asyncio.gather(
                    store.submit(bad), store.submit(good), return_exceptions=True
                )
                assert isinstance(results[0], UnsupportedValue)
                assert results[1] == Applied()
                assert await store.marks.of_run(run_id) == []
                assert len(await hf.journal.read(run_id)) == 1

    @pytest.mark.parametrize(
        ("tags", "wanted", "is_found"),
        [
            ({"a": 1}, {"a": 1}, True),
            ({"a": 1}, {"a": 2}, False),
            ({"a": 1}, {"a": 1.0}, True),
            ({"a": 1.0}, {"a": 1}, True),
            ({"a": 1}, {"a": "1"}, False),
            ({"a": 1}, {"a": True}, False),
            ({"a": False}, {"a": 0}, False),
            ({"a": True}, {"a": True}, True),
            ({"a": 1, "b": 2}, {"b": 2, "a": 1}, True),
            ({"a": 1, "b": 2}, {"b": 3, "a": 1}, False),
            ({"a": 1}, {"b": None}, True),
            ({"a": None}, {"a": None}, True),
            ({"a": 0}, {"a": None}, False),
            ({"a": None}, {"a": 0}, False),
            ({}, {"a": 1}, False),
            ({"a": {"x": 1, "y": [1, 2]}}, {"a": {"y": [1.0, 2], "x": 1}}, True),
            ({"a": {"x": 1, "y": 2}}, {"a": {"x": 1}}, False),
            ({"a": [1, 2]}, {"a": [2, 1]}, False),
            ({"a": [1]}, {"a": 1}, False),
            ({"a": [None]}, {"a": []}, False),
            ({"a": {}}, {"a": []}, False),
            ({"a.b": 1}, {"a.b": 1}, True),
            ({"a": {"b": 1}}, {"a.b": 1}, False),
            ({"a": 2**60}, {"a": 2**60 + 1}, False),
            ({"a": 0.1}, {"a": 0.1}, True),
            ({"a": ""}, {"a": ""}, True),
            ({"a": "\x00"}, {"a": "\x00"}, True),
            ({"a": "\x00"}, {"a": "\x1a0"}, False),
            *(({key: "v"}, {key: "v"}, True) for key in _HOSTILE),
            *(({"k": key}, {"k": key}, True) for key in _HOSTILE),
            *(({"k": 1}, {key: 1}, False) for key in _HOSTILE),
        ],
    )
    @async_test
    async def test_tags_are_compared_as_json_data(
        self, backend: Backend, tags: dict[str, Any], wanted: dict[str, Any], is_found: bool
    ) -> None:
        async with backend.open() as hf:
            await hf.runs.create("a")
            await commit(hf, "a", saved(1, "one", **tags))
            scopes: list[dict[str, Any]] = [{}, {"run_id": "a"}, {"run_id": "a", "space": ""}]
            for narrowed in scopes:
                asked = MarkFilter(tags=wanted, **narrowed)
                assert _names(await store_of(hf).marks.page(asked)) == ["one"] * is_found

    @async_test
    async def test_limit_counts_what_has_the_tags(self, backend: Backend) -> None:
        async with backend.open() as hf:
            await hf.runs.create("a")
            for version in range(1, 9):
                source = "input" if version % 4 == 0 else "loop"
                await commit(hf, "a", saved(version, f"n{version}", source=source))
            asked = MarkFilter(run_id="a", space="", tags={"source": "input"}, limit=1)
            assert _names(await store_of(hf).marks.page(asked)) == ["n8"]
            asked = MarkFilter(run_id="a", tags={"source": "input"}, before_version=8, limit=5)
            assert _names(await store_of(hf).marks.page(asked)) == ["n4"]

    @async_test
    async def test_tagged_looks_at_all_runs(self, backend: Backend) -> None:
        async with backend.open() as hf:
            for run_id, tag in (("a", "r1"), ("b", "r2"), ("c", 1), ("d", "\0")):
                await hf.runs.create(run_id)
                await commit(hf, run_id, saved(1, "one", run_id=tag, other="r1"))
            marks = store_of(hf).marks
            found = await marks.tagged("run_id", ["r1", "r2", "1"])
            assert [mark.run_id for mark in found] == ["a", "b"]
            assert [mark.run_id for mark in await marks.tagged("run_id", ["\0"])] == ["d"]
            assert await marks.tagged("run_id", []) == []
            assert await marks.tagged("$.run_id", ["r1"]) == []

    @async_test
    async def test_idle_runs_are_those_nobody_uses(self, backend: Backend) -> None:
        clock = ManualClock()
        async with backend.open(clock=clock) as hf:
            names = ("old", "older", "fresh", "running", "waiting", "unmarked")
            for run_id in ("older", *names[:1], *names[2:]):
                await hf.runs.create(run_id, agent="langgraph")
                clock.advance(1)
            await hf.runs.create("other", agent="else")
            for run_id in (*names[:5], "other"):
                await commit(hf, run_id, saved(1, "one"))
            await hf.runs.open("running")
            waiting = await hf.runs.open("waiting")
            await waiting.open_waits([WaitSpec(wait_id="w")], suspend=True)
            clock.advance(100)
            moment = clock.now()
            await commit(hf, "fresh", saved(2, "two"))
            marks = store_of(hf).marks
            assert await marks.idle_runs("langgraph", moment, 10) == ["older", "old"]
            assert await marks.idle_runs("langgraph", moment, 1) == ["older"]
            clock.advance(100)
            found = await marks.idle_runs("langgraph", clock.now(), 10)
            assert found == ["older", "old", "fresh"]
            await hf.waits.resolve("w", 1)
            found = await marks.idle_runs("langgraph", clock.now(), 10)
            assert found == ["older", "old", "fresh", "waiting"]

    @async_test
    async def test_reindex_gives_the_marks_and_writes_that_were_there(
        self, backend: Backend
    ) -> None:
        async with backend.open() as hf:
            await hf.runs.create("a")
            await commit(hf, "a", saved(1, "one", **_DATA), written("one"))
            await commit(hf, "a", saved(2, "two", "one"), written("two"), written("one"))
            await commit(hf, "a", saved(3, "three", "two"), pruned((2, 2)))
            store = store_of(hf)
            before = (await store.marks.of_run("a"), await store.writes.of_run("a"))
            assert [len(rows) for rows in before] == [2, 2]
            await hf.reindex("a")
            assert (await store.marks.of_run("a"), await store.writes.of_run("a")) == before
            assert await hf.journal.verify("a") == []
