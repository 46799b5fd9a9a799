"""A process killed while it calls tools of another MCP server: nothing is called again blindly."""

import asyncio
from pathlib import Path

import pytest

import holdfast
from holdfast.errors import RunBlocked
from holdfast.testing.store_suite import async_test
from tests.edges.mcp import servers
from tests.edges.mcp.payer import payers, tools_of
from tests.forked import Forked


@pytest.mark.chaos(backend=["postgres"])
@async_test
async def test_killed_in_the_middle_of_calls_they_are_not_made_again_blindly(
    store: str, tmp_path: Path
) -> None:
    file = tmp_path / "ledger"
    process = Forked(["-m", "tests.edges.mcp.payer", store, file], kind="mcp")
    try:
        await asyncio.to_thread(servers.wait_for, lambda: len(payments(file)) == 2)
    finally:
        process.kill()
        process.wait(servers.LIMIT_SECONDS)
    (server,) = {line.pid for line in payments(file)}
    await asyncio.to_thread(servers.wait_for, lambda: not servers.is_alive(server))

    tools = await tools_of(file)
    await tools["look"](number=0)
    verifies, asks = payers(tools)
    settings = holdfast.Settings(lease_seconds=0.5)
    async with holdfast.Holdfast(store, agents=[verifies, asks], settings=settings) as hf:
        assert await hf.run(verifies, 0, run_id="verifies") == "found 0"
        with pytest.raises(RunBlocked):
            await hf.run(asks, 1, run_id="asks")
        assert len(payments(file)) == 2
        (effect,) = await hf.effects.unsettled()
        await hf.effects.settle(effect.effect_id, "not_done", retry=True, by="ann")
        (tmp_path / "go").touch()
        assert await hf.run(asks, 1, run_id="asks") == "paid 1"
    await tools.close()
    of_asks = [line.key for line in payments(file) if line.run == "asks"]
    assert len(of_asks) == 2
    assert len(set(of_asks)) == 1
    assert len(payments(file)) == 3


def payments(file: Path) -> list[servers.Line]:
    return [line for line in servers.lines(file) if line.what == "pay"]
