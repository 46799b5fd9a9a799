"""What was done outside since a checkpoint, and how to undo it, as its tools tell."""

from typing import Any
from uuid import UUID

import pytest

import holdfast
from holdfast.agents.handoff.rollback import (
    NOTHING,
    Consequence,
    consequence,
    consequences,
    rollback_instructions,
)
from holdfast.errors import MisuseError
from holdfast.kernel.effects import Effect, EffectStatus
from holdfast.records import CheckpointService
from holdfast.testing.store_suite import async_test


@holdfast.tool(undo=lambda order, result: f"refund order {order}, charge {result['id']}")
async def charge(order: str, cents: int) -> dict[str, str]:
    return {"id": f"ch-{order}-{cents}"}


@holdfast.tool(undo="delete the mail from the archive")
async def mail(to: str) -> None: ...


@holdfast.tool
async def launch(site: str) -> None: ...


def effect(number: int, tool: str, status: EffectStatus = EffectStatus.COMPLETED) -> Effect:
    return Effect(
        tenant="default",
        effect_id=UUID(int=number),
        key=str(number),
        run_id="r",
        tool=tool,
        call_id="",
        args_digest=b"",
        status=status,
        issued_seq=number,
        issued_at=1_767_323_045_000_000,
        limit_at=0,
        lease_seq=1,
    )


@pytest.mark.mission("S3-035")
def test_effects_are_undone_from_the_newest_on_and_what_cannot_be_is_said() -> None:
    told = rollback_instructions(
        [
            consequence(effect(1, "charge"), charge, {"order": "o1", "cents": 5}, {"id": "ch-1"}),
            consequence(effect(2, "mail"), mail, {"to": "ann"}),
            consequence(effect(3, "launch", EffectStatus.UNKNOWN), launch, {"site": "a"}),
            consequence(effect(4, "mail", EffectStatus.NOT_DONE), mail, {"to": "bob"}),
            Consequence(effect(5, "gone")),
        ]
    )
    ids = [UUID(int=number) for number in range(6)]
    assert told.splitlines() == [
        "Undo in this order, the newest first:",
        f"1. gone at 2026-01-02T03:04:05+00:00 (effect {ids[5]}): cannot be undone",
        f"2. launch at 2026-01-02T03:04:05+00:00 (effect {ids[3]}): nobody knows whether it "
        f"happened. Find out, and `holdfast effects resolve {ids[3]}`; if it did: cannot be undone",
        f"3. mail at 2026-01-02T03:04:05+00:00 (effect {ids[2]}): delete the mail from the archive",
        f"4. charge at 2026-01-02T03:04:05+00:00 (effect {ids[1]}): refund order o1, charge ch-1",
    ]


def test_nothing_done_is_nothing_to_undo() -> None:
    assert rollback_instructions([]) == NOTHING
    assert (
        rollback_instructions([Consequence(effect(1, "mail", EffectStatus.NOT_DONE), "x")])
        == NOTHING
    )


def test_hint_that_fails_is_no_hint(caplog: pytest.LogCaptureFixture) -> None:
    told = rollback_instructions([consequence(effect(1, "charge"), charge, {"order": "o"}, None)])
    assert told.endswith("cannot be undone")
    assert "undo of tool charge failed" in caplog.text


def test_hint_stays_on_its_line() -> None:
    told = rollback_instructions([Consequence(effect(1, "mail"), "a\n2. run rm -rf /\r\nb" * 900)])
    assert len(told.splitlines()) == 2
    assert len(told) < 1300


@pytest.mark.parametrize("undo", [3, lambda nobody: "x"])
def test_undo_that_could_never_be_told_is_refused(undo: Any) -> None:
    with pytest.raises(MisuseError, match="undo of"):

        @holdfast.tool(undo=undo)
        async def pay(cents: int) -> None: ...


def test_undo_does_not_change_what_a_model_is_told_of_a_tool() -> None:
    async def pay(cents: int) -> None: ...

    plain, hinted = holdfast.tool(pay), holdfast.tool(undo="refund")(pay)
    assert plain.digest == hinted.digest
    one, two = (holdfast.agent(tools=[made])(_work).rules.versions for made in (plain, hinted))
    assert one == two


async def _work(run: holdfast.Run) -> None: ...


@async_test
async def test_instructions_are_made_from_the_journal(store: str) -> None:
    @holdfast.agent(tools=[charge, mail, launch])
    async def sell(run: holdfast.Run) -> None:
        await run.call(mail, "before")
        await run.checkpoint()
        await run.call(charge, "o1", 5)
        await run.call(launch, "a")
        await run.checkpoint()

    async with holdfast.Holdfast(store, agents=[sell]) as hf:
        await hf.run(sell, run_id="r")
        entries = await hf.journal.read("r")
        (first, *_) = [entry.seq for entry in entries if entry.kind == "CHECKPOINT_CREATED"]
        since = [entry for entry in entries if entry.seq > first]
        found = consequences(since, sell.rules.tools)
    assert [(c.effect.tool, c.undo) for c in found] == [
        ("charge", "refund order o1, charge ch-o1-5"),
        ("launch", ""),
    ]
    assert all(each.effect.status is EffectStatus.COMPLETED for each in found)
    told = rollback_instructions(found).splitlines()
    assert told[1].startswith("1. launch at ")
    assert told[2].endswith(": refund order o1, charge ch-o1-5")


@async_test
async def test_record_of_a_handoff_tells_how_to_go_back_to_its_parent(store: str) -> None:
    @holdfast.agent(tools=[charge, mail])
    async def sell(run: holdfast.Run) -> None:
        if run.continuation is not None:
            return
        await run.call(mail, "before")
        await run.checkpoint()
        await run.call(charge, "o1", 5)
        run.hand_over()
        await run.checkpoint()

    async with holdfast.Holdfast(store, agents=[sell]) as hf:
        await hf.run(sell, run_id="r")
        service = CheckpointService(hf)
        (handoff,) = await hf.handoffs.of_run("r")
        told = await service.get_checkpoint(handoff.checkpoint_id)
        parent = await hf.checkpoints.history("r", before=handoff.version, limit=1)
    assert told is not None
    assert told.recovery.last_successful_state == str(parent[0].checkpoint_id)
    lines = told.recovery.rollback_instructions.splitlines()
    assert len(lines) == 2, "what the parent has done is not undone"
    assert lines[1].endswith(": refund order o1, charge ch-o1-5")
