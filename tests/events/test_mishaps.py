"""Webhooks whose store, names, secrets or senders are not as one hopes."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.errors import OutcomeUnknown
from holdfast.kernel.journal import Kind
from holdfast.stores.contract import Commit
from holdfast.testing import faults
from holdfast.testing.store_suite import async_test
from tests.backends import Backend, PostgresBackend
from tests.events.judging import LIMIT_SECONDS, ids_on_record, judge, until
from tests.events.test_webhooks import (
    SECRET,
    Ledger,
    add,
    free_port,
    receiving,
    resume,
    shown,
    stored_bytes,
    worker,
    write,
)
from tests.outages import Outage
from tests.processes import Child
from tests.proxy import Proxy

CANARY = "canary-77b0e2d9"
NOT_GIVEN_BACK = "could not be given back yet"
CUTS = 20
SETTINGS = holdfast.Settings(
    lease_seconds=600.0,  # nobody is to be saved by a lease that is over
    wakeup_poll_seconds=0.05,
    busy_timeout_seconds=0.3,
)


@pytest.fixture(autouse=True)
def secret_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_SECRET_HOOK", SECRET)


class OutageOfHook(Outage):
    """Also knows whether the webhook could not be given back, and may lose one answer to it."""

    is_lost = False
    is_stored = True
    has_refused_release = False

    def submit(self, write: Any) -> Awaitable[Any]:
        is_hook = isinstance(write, Commit) and write.run_id.startswith("webhook:")
        if is_hook and self.is_lost:
            self.is_lost = False
            return self._lose(write)
        if is_hook and self.is_away:
            self.has_refused_release |= write.entries[-1].kind == Kind.RUN_RELEASED
        return super().submit(write)

    async def _lose(self, write: Commit) -> None:
        if self.is_stored:
            await self._submit(write)
        raise OutcomeUnknown("the connection was lost at COMMIT")


async def come(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(LIMIT_SECONDS):
        while not condition():
            await asyncio.sleep(0.02)


async def soon(condition: Callable[[], bool]) -> bool:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(5):
            while not condition():
                await asyncio.sleep(0.02)
    return condition()


@asynccontextmanager
async def delivering(
    url: str, *, is_busy: bool = False
) -> AsyncGenerator[tuple[holdfast.Holdfast, OutageOfHook]]:
    """A worker in this process, which may be busy with all that it takes at a time."""
    idle = asyncio.Event()
    idle.set()

    @holdfast.agent
    async def think(run: holdfast.Run) -> None:
        await idle.wait()

    async with holdfast.open(url, agents=[think], settings=SETTINGS) as hf:
        outage = OutageOfHook(hf)
        worker_ = hf.new_worker(concurrency=1)
        working = asyncio.create_task(worker_.run())
        try:
            if is_busy:
                idle.clear()
                await hf.runs.create("busy", agent="think", input={})
                await come_to(hf, "busy", "running")
            yield hf, outage
        finally:
            idle.set()
            worker_.stop()
            await working


async def come_to(hf: holdfast.Holdfast, run_id: str, status: str) -> None:
    async with asyncio.timeout(LIMIT_SECONDS):
        while (await hf.runs.get(run_id)).status != status:
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("is_stored", [True, False])
@async_test
async def test_webhook_whose_commit_nobody_knows_of_goes_on_by_itself(
    backend: Backend, tmp_path: Path, *, is_stored: bool
) -> None:
    ledger, port = Ledger(tmp_path / "ledger"), free_port()
    await add(backend.url, f"http://127.0.0.1:{port}/hook")
    await write(backend.url, 2)
    with receiving("well", port, ledger):
        async with delivering(backend.url) as (_, outage):
            await come(lambda: ledger.has_all(backend))
            outage.is_stored, outage.is_lost = is_stored, True
            await write(backend.url, 2)
            await come(lambda: not outage.is_lost)
            await write(backend.url, 2)
            await come(lambda: ledger.has_all(backend))
    judge(ledger.ids(), ids_on_record(backend))


@pytest.mark.parametrize("is_busy", [False, True])
@async_test
async def test_webhook_that_could_not_be_given_back_goes_on_once_the_store_is_there(
    backend: Backend, tmp_path: Path, *, is_busy: bool
) -> None:
    ledger, port = Ledger(tmp_path / "ledger"), free_port()
    await add(backend.url, f"http://127.0.0.1:{port}/hook")
    await write(backend.url, 2)
    with receiving("well", port, ledger):
        async with delivering(backend.url, is_busy=is_busy) as (_, outage):
            await come(lambda: ledger.has_all(backend))
            with outage.away():
                await write(backend.url, 2)
                await come(lambda: outage.has_refused_release)
            await write(backend.url, 2)
            recorded = ids_on_record(backend)
            await come(lambda: len(ledger.ids()) >= len(recorded))
            judge(ledger.ids(), recorded)


@async_test
async def test_webhook_goes_on_after_all_connections_to_the_store_were_lost(
    postgres_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    backend, ledger, port = PostgresBackend(postgres_url), Ledger(tmp_path / "ledger"), free_port()
    await add(backend.url, f"http://127.0.0.1:{port}/hook")
    await write(backend.url, 2)
    with receiving("well", port, ledger), Proxy(backend.url) as proxy:
        async with delivering(proxy.url(backend.url)):
            for _ in range(CUTS):
                await come(lambda: ledger.has_all(backend))
                proxy.refuse()
                proxy.cut_now()
                await write(backend.url, 2)
                is_cut_while_held = await soon(lambda: NOT_GIVEN_BACK in caplog.text)
                proxy.accept()
                if is_cut_while_held:
                    break
            await come(lambda: ledger.has_all(backend))
    assert NOT_GIVEN_BACK in caplog.text, "every cut came when nothing was under way"
    judge(ledger.ids(), ids_on_record(backend))


@pytest.mark.parametrize("name", ["café", " lead", "two words", "日本"])
def test_run_of_any_name_reaches_a_receiver_that_reads_headers_as_it_likes(
    backend: Backend, tmp_path: Path, name: str
) -> None:
    ledger, port = Ledger(tmp_path / "ledger"), free_port()
    asyncio.run(add(backend.url, f"http://127.0.0.1:{port}/hook"))
    asyncio.run(create(backend.url, name, "later"))
    with receiving("well", port, ledger), worker(backend):
        until(lambda: ledger.has_all(backend), "delivering")
    judge(ledger.ids(), ids_on_record(backend))


async def create(url: str, *names: str) -> None:
    async with holdfast.open(url) as hf:
        for name in names:
            await hf.runs.create(name)


@pytest.mark.parametrize(
    "secret", [f"whsec_{CANARY}", f"whsec_{CANARY}é", f"{CANARY}\udcff", "whsec_"]
)
def test_secret_that_cannot_sign_blocks_its_webhook_and_no_other(
    backend: Backend, tmp_path: Path, capfd: pytest.CaptureFixture[str], secret: str
) -> None:
    ledger, port = Ledger(tmp_path / "ledger"), free_port()
    to = f"http://127.0.0.1:{port}/hook"
    asyncio.run(add(backend.url, to))
    asyncio.run(add_other(backend.url, to))
    asyncio.run(write(backend.url, 2))
    wrong = {"HOLDFAST_SECRET_HOOK": secret, "HOLDFAST_SECRET_OTHER": SECRET}
    with receiving("well", port, ledger):
        with broken_worker(backend, wrong):
            until(lambda: shown(backend).status == "blocked", "giving up")
            until(lambda: ledger.has_all(backend), "delivering to the other")
        found = shown(backend)
        assert "secret HOOK" in found.note
        assert "holdfast webhooks resume hook" in found.note
        assert found.error == found.note
        assert found.delivered == 0
        told = capfd.readouterr()
        assert CANARY not in found.note + told.out + told.err
        assert CANARY.encode() not in stored_bytes(backend)
        ledger.path.unlink()
        asyncio.run(resume(backend.url))
        with worker(backend):
            until(lambda: ledger.has_all(backend), "delivering")
    judge(ledger.ids(), ids_on_record(backend))


async def add_other(url: str, to: str) -> None:
    async with holdfast.open(url) as hf:
        await hf.webhooks.add(to, name="other", secret="secret://OTHER", after="start")


def broken_worker(backend: Backend, environment: dict[str, str]) -> Child:
    return Child("tests.events.worker", backend.url, "", "", 0, env=environment)


@pytest.mark.parametrize("point", ["webhook.before_post", "webhook.after_post"])
@async_test
async def test_sending_that_breaks_is_told_and_tried_again_under_the_same_lease(
    backend: Backend, tmp_path: Path, point: str
) -> None:
    ledger, port = Ledger(tmp_path / "ledger"), free_port()
    await add(backend.url, f"http://127.0.0.1:{port}/hook")
    await write(backend.url, 2)
    with receiving("well", port, ledger), faults.armed(point, "raise") as armed:
        async with delivering(backend.url) as (hf, _):
            await come(lambda: armed.reached > 1 and ledger.has_all(backend))
            run_id = (await hf.webhooks.get("hook")).run_id
            kinds = [entry.kind for entry in await hf.journal.read(run_id)]
            assert kinds.count(Kind.RUN_LEASED) == 1
            assert Kind.RUN_RELEASED not in kinds
            progress = (await hf.checkpoints.load(run_id, 1))["progress"]
            assert "InjectedFault" in progress["error"]
            assert progress["failing_since"] > 0
    judge(ledger.ids(), ids_on_record(backend))
