"""A refund that two people decide: one says how much, another permits the payment.

    python examples/approval/main.py            starts, asks, and ends: nobody waits with it
    holdfast approvals list --store approval.db
    python examples/approval/main.py            goes on with whatever was answered

See README.md.
"""

import argparse
import asyncio
import logging
import os
import signal
from dataclasses import dataclass
from pathlib import Path

import holdfast
from holdfast import Approval, Happened, Key, NotDone, Run
from holdfast.errors import RunWaiting, ToolFailed

STORE = "approval.db"
PAYMENTS = Path("payments.txt")
# On another machine, a killed process keeps its run for as long as its lease.
SETTINGS = holdfast.Settings(lease_seconds=3)
DIES = False


@dataclass(frozen=True)
class Refund:
    """What the clerk is asked for."""

    cents: int
    reason: str = ""


def find_payment(customer: str, cents: int, key: str) -> Happened[str] | NotDone:
    """Look into the ledger: was this paid?"""
    paid = PAYMENTS.read_text().splitlines() if PAYMENTS.exists() else []
    return Happened("paid") if any(line.endswith(key) for line in paid) else NotDone()


def is_large(customer: str, cents: int) -> bool:
    return cents > 1000


@holdfast.tool(
    verify=find_payment, limit_seconds=4, approval=Approval(when=is_large, expires_seconds=86_400)
)
def pay(customer: str, cents: int, *, key: Key) -> str:
    """Pay a customer: a line in a file that is appended to, once for each payment."""
    with PAYMENTS.open("a") as ledger:
        ledger.write(f"{customer} {cents} {key}\n")
    if DIES:
        print("paid; kill -9 before anybody hears of it", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    return "paid"


@holdfast.agent(tools=[pay])
async def refund(run: Run, customer: str) -> str:
    answer = await run.ask(f"How many cents does {customer} get back?", schema=Refund)
    try:
        await run.call(pay, customer, answer.cents)
    except ToolFailed as refused:
        return f"{customer} gets nothing: {refused}"
    return f"{customer} got {answer.cents} cents back"


async def main(customer: str, wait: float) -> None:
    async with holdfast.open(STORE, agents=[refund], settings=SETTINGS) as hf:
        try:
            print(await hf.run(refund, customer, run_id=f"refund-{customer}", timeout=wait))
        except RunWaiting:
            for asked in await hf.approvals.list(run_id=f"refund-{customer}"):
                print(f"{asked.prompt}\n  holdfast approvals show {asked.wait_id} --store {STORE}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("customer", nargs="?", default="ann")
    parser.add_argument(
        "--die-after-paying", action="store_true", help="kill -9 in the worst moment"
    )
    parser.add_argument("--wait", type=float, default=0.5, help="seconds to stay with the run")
    given = parser.parse_args()
    DIES = given.die_after_paying
    logging.basicConfig(level=logging.ERROR)
    asyncio.run(main(given.customer, given.wait))
