"""Webhooks: each event reaches its receiver, in order for each run, whoever dies or is away."""

import asyncio
import json
import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

import holdfast
from holdfast import codec
from holdfast.errors import ConflictError, IllegalMove, MisuseError, WebhookNotFound
from holdfast.peers.transports import open_transport
from holdfast.testing.nats import nats_server
from holdfast.testing.store_suite import async_test
from tests.backends import Backend, SQLiteBackend
from tests.events.judging import ids_on_record, judge, until
from tests.processes import Child

SECRET = "canary-8f1d0c55-do-not-store"
ENVIRONMENT = {"HOLDFAST_SECRET_HOOK": SECRET}
POINTS = ["webhook.before_post", "webhook.after_post", "webhook.after_commit"]
RUNS = [f"run-{n}" for n in range(3)]


class Ledger:
    """What a receiver has noted."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def ids(self) -> list[str]:
        """The events, each where it came first."""
        lines = self.path.read_text().split("\n")[:-1] if self.path.exists() else []
        return list(dict.fromkeys(json.loads(line)["id"] for line in lines))

    def has_all(self, backend: Backend) -> bool:
        return len(self.ids()) >= len(ids_on_record(backend))


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


@contextmanager
def receiving(mood: str, port: int, ledger: Ledger, secret: str = SECRET) -> Generator[None]:
    with Child("tests.events.receiver", mood, port, secret, ledger.path) as child:
        assert child.answer() == port
        yield


def worker(backend: Backend, point: str = "", skip: int = 0, transport: str = "") -> Child:
    return Child("tests.events.worker", backend.url, transport, point, skip, env=ENVIRONMENT)


async def add(url: str, to: str, give_up_seconds: float = 600.0) -> None:
    async with holdfast.open(url) as hf:
        await hf.webhooks.add(
            to,
            name="hook",
            secret="secret://HOOK",
            after="start",
            give_up_seconds=give_up_seconds,
        )


async def write(url: str, turns: int) -> None:
    async with holdfast.open(url) as hf:

        async def one(name: str) -> None:
            run = await hf.runs.open(name)
            for turn in range(turns):
                run.append("log", turn)
                await run.checkpoint()
            await run.release()

        await asyncio.gather(*map(one, RUNS))


@pytest.mark.mission("S3-190")
@pytest.mark.parametrize("point", POINTS)
def test_deliverer_that_is_killed_at_a_point_leaves_nothing_out(
    backend: Backend, tmp_path: Path, point: str
) -> None:
    ledger, port = Ledger(tmp_path / "ledger"), free_port()
    asyncio.run(add(backend.url, f"http://127.0.0.1:{port}/hook"))
    asyncio.run(write(backend.url, 4))
    with receiving("well", port, ledger):
        with worker(backend, point) as victim:
            victim.wait()
        asyncio.run(write(backend.url, 3))
        with worker(backend):
            until(lambda: ledger.has_all(backend), "delivering")
    judge(ledger.ids(), ids_on_record(backend))


@pytest.mark.mission("S3-190")
@pytest.mark.chaos(backend=["postgres"])
def test_receiver_and_deliverers_that_are_killed_at_random_count_each_event_once(
    backend: Backend, tmp_path: Path
) -> None:
    ledger, port, random_ = Ledger(tmp_path / "ledger"), free_port(), random.Random(5)
    asyncio.run(add(backend.url, f"http://127.0.0.1:{port}/hook"))
    for _ in range(4):
        with worker(backend), worker(backend):
            asyncio.run(write(backend.url, 5))
            with receiving("badly", port, ledger):
                known = len(ledger.ids())
                wanted = known + random_.randrange(1, 15)
                until(has(ledger, backend, wanted), "some events")
    with worker(backend), receiving("well", port, ledger):
        until(lambda: ledger.has_all(backend), "delivering")
    judge(ledger.ids(), ids_on_record(backend))


def has(ledger: Ledger, backend: Backend, wanted: int) -> Callable[[], bool]:
    return lambda: len(ledger.ids()) >= wanted or ledger.has_all(backend)


def test_webhook_whose_receiver_is_away_is_blocked_and_resumed(
    backend: Backend, tmp_path: Path
) -> None:
    ledger, port = Ledger(tmp_path / "ledger"), free_port()
    asyncio.run(add(backend.url, f"http://127.0.0.1:{port}/hook", give_up_seconds=1.0))
    asyncio.run(write(backend.url, 2))
    with worker(backend):
        until(lambda: shown(backend).status == "blocked", "giving up")
        found = shown(backend)
        assert "not reached" in found.note
        assert found.delivered == 0
        with receiving("well", port, ledger):
            asyncio.run(resume(backend.url))
            until(lambda: ledger.has_all(backend), "delivering")
            until(lambda: not shown(backend).error, "well again")
    judge(ledger.ids(), ids_on_record(backend))


@pytest.mark.mission("S3-190")
def test_process_without_agents_delivers_the_webhooks_of_its_checkpoint_service(
    backend: Backend, tmp_path: Path
) -> None:
    ledger, port = Ledger(tmp_path / "ledger"), free_port()
    asyncio.run(add(backend.url, f"http://127.0.0.1:{port}/hook"))
    with (
        Child("tests.events.serving", backend.url, env=ENVIRONMENT),
        receiving("well", port, ledger),
    ):
        until(lambda: len(ledger.ids()) == 3 and ledger.has_all(backend), "delivering")
    judge(ledger.ids(), ids_on_record(backend))
    kinds = [json.loads(line)["type"] for line in ledger.path.read_text().splitlines()]
    assert sorted(kinds) == [
        "holdfast.CHECKPOINT_CREATED",
        "holdfast.CHECKPOINT_FINALIZED",
        "holdfast.RUN_CREATED",
    ]


@pytest.mark.mission("S3-190")
def test_command_delivers_webhooks_without_a_program(backend: Backend, tmp_path: Path) -> None:
    ledger, port = Ledger(tmp_path / "ledger"), free_port()
    asyncio.run(add(backend.url, f"http://127.0.0.1:{port}/hook"))
    asyncio.run(write(backend.url, 2))
    with receiving("well", port, ledger):
        main = "from holdfast.cli import main; main()"
        command = [sys.executable, "-c", main, "webhooks", "deliver", "--json"]
        process = subprocess.Popen(
            [*command, "--store", backend.url],
            env={**os.environ, **ENVIRONMENT},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            until(lambda: ledger.has_all(backend), "delivering")
            process.send_signal(signal.SIGTERM)
            told, errors = process.communicate(timeout=60)
        finally:
            process.kill()
            process.wait()
    assert process.returncode == 0, errors
    assert "messages and webhooks only" in errors
    assert (json.loads(told)["agents"], json.loads(told)["stopped"]) == ([], "after its turns")
    judge(ledger.ids(), ids_on_record(backend))


async def resume(url: str) -> None:
    async with holdfast.open(url) as hf:
        await hf.webhooks.resume("hook")
        with pytest.raises(IllegalMove):
            await hf.webhooks.resume("hook")


def shown(backend: Backend) -> holdfast.Webhook:
    async def get() -> holdfast.Webhook:
        async with holdfast.open(backend.url) as hf:
            return await hf.webhooks.get("hook")

    return asyncio.run(get())


def test_receiver_with_another_secret_is_given_nothing(backend: Backend, tmp_path: Path) -> None:
    ledger, port = Ledger(tmp_path / "ledger"), free_port()
    asyncio.run(add(backend.url, f"http://127.0.0.1:{port}/hook"))
    asyncio.run(write(backend.url, 2))
    with worker(backend), receiving("well", port, ledger, secret="another"):
        until(lambda: shown(backend).failing_since > 0, "failing")
        assert shown(backend).error == "the answer was 401"
    assert ledger.ids() == []


def test_secret_is_nowhere_in_the_store_nor_in_what_is_said(
    backend: Backend, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    ledger, port = Ledger(tmp_path / "ledger"), free_port()
    asyncio.run(add(backend.url, f"http://127.0.0.1:{port}/hook"))
    asyncio.run(write(backend.url, 2))
    with worker(backend):
        until(lambda: shown(backend).failing_since > 0, "failing")
        with receiving("well", port, ledger):
            until(lambda: ledger.has_all(backend), "delivering")
    told = capfd.readouterr()
    assert SECRET not in told.out + told.err
    assert SECRET.encode() not in stored_bytes(backend)
    assert SECRET not in ledger.path.read_text()


def stored_bytes(backend: Backend) -> bytes:
    """Every row of every table, or the file; and what is compressed in bodies, unpacked."""
    with backend.raw() as raw:
        entries = raw.entries()
        found = [bytes(entry[11] or b"") + bytes(entry[9]) for entry in entries]
        found += [codec.unpack(e[7], bytes(e[11])) for e in entries if e[11] is not None]
        rows = [raw.rows(f"SELECT * FROM {table}") for table in ("runs", "checkpoints", "messages")]
    files = b""
    if backend.name == "sqlite":
        folder = Path(backend.url).parent
        files = b"".join(file.read_bytes() for file in folder.glob("store.db*"))
    return b"\n".join(found) + repr(rows).encode() + files


@async_test
async def test_webhook_is_added_once_and_its_name_can_be_used_again(backend: Backend) -> None:
    async with holdfast.open(backend.url) as hf:
        url, secret = "https://example.org/hook", "secret://HOOK"
        first = await hf.webhooks.add(url, name="a", secret=secret, kinds=["RUN_FAILED"])
        again = await hf.webhooks.add(url, name="a", secret=secret, kinds=["RUN_FAILED"])
        assert first.run_id == again.run_id
        with pytest.raises(ConflictError, match="differs"):
            await hf.webhooks.add(url, name="a", secret=secret)
        await hf.webhooks.add("transport:events", name="b")
        assert [each.name for each in await hf.webhooks.list()] == ["a", "b"]
        await hf.webhooks.remove("a")
        with pytest.raises(WebhookNotFound):
            await hf.webhooks.get("a")
        assert (await hf.webhooks.add(url, name="a", secret=secret)).run_id != first.run_id
        for wrong in ("ftp://example.org", "example.org", "https://u:p@example.org/", "http://"):
            with pytest.raises(MisuseError):
                await hf.webhooks.add(wrong, name="c", secret=secret)
        with pytest.raises(MisuseError) as refused:
            await hf.webhooks.add(url, name="c", secret=SECRET)
        assert SECRET not in str(refused.value)


@async_test
async def test_entries_of_webhooks_are_no_events(backend: Backend) -> None:
    async with holdfast.open(backend.url) as hf:
        await hf.webhooks.add("transport:events", name="b")
        await hf.runs.create("a")
        assert (await anext(hf.events("start"))).id == "a/1"


def test_events_go_to_a_queue_of_the_transport_each_once_and_in_order(
    backend: Backend, tmp_path: Path
) -> None:
    publish_and_judge(backend, f"sqlite:///{tmp_path}/queues.db")


def test_events_go_to_jetstream_each_once_and_in_order(tmp_path: Path) -> None:
    with nats_server(tmp_path / "nats") as server:
        publish_and_judge(SQLiteBackend(tmp_path / "store.db"), server.url)


def publish_and_judge(backend: Backend, queues: str) -> None:
    asyncio.run(queue_up(backend.url))
    asyncio.run(write(backend.url, 4))
    with worker(backend, "webhook.after_post", transport=queues) as victim:
        victim.wait()
    asyncio.run(write(backend.url, 3))
    with worker(backend, transport=queues):
        until(lambda: shown(backend).delivered >= len(ids_on_record(backend)), "publishing")
    told = asyncio.run(taken(queues, len(ids_on_record(backend))))
    judge(told, ids_on_record(backend))


async def queue_up(url: str) -> None:
    async with holdfast.open(url) as hf:
        await hf.webhooks.add("transport:news", name="hook", after="start")


async def taken(queues: str, most: int) -> list[str]:
    transport = open_transport(queues)
    await transport.open()
    found: list[str] = []
    async for delivery in transport.consume("news", lease=30.0):
        event = json.loads(delivery.body)
        assert delivery.key == event["id"]
        assert delivery.headers["content-type"] == "application/cloudevents+json"
        found.append(event["id"])
        await delivery.ack()
        if len(found) == most:
            break
    await transport.close()
    return found
