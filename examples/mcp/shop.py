"""What the server in this example has: a workflow that refunds an order, and an agent that talks.

The ledger is a file with a line for each refund that was made: the world outside.
"""

from pathlib import Path

import holdfast
from holdfast.workflows import Kit, load

LEDGER = Path("refunds.txt")


def find_refund(order: str, cents: int) -> holdfast.Happened | holdfast.NotDone:
    """Whether a refund has happened, by what the world says."""
    told = LEDGER.read_text().splitlines() if LEDGER.exists() else []
    line = f"{order} {cents}"
    return holdfast.Happened(f"refunded {line}") if line in told else holdfast.NotDone()


@holdfast.tool(effect="mutate", verify=find_refund, limit_seconds=5)
def refund(order: str, cents: int) -> str:
    """Give a customer money back."""
    with LEDGER.open("a") as file:
        file.write(f"{order} {cents}\n")
    return f"refunded {order} {cents}"


@holdfast.agent(tools=[refund])
async def support(run: holdfast.Run, order: str) -> str:
    """Help with an order: ask what is wrong with it, and refund it if somebody permits that."""
    wrong = await run.ask(f"What is wrong with order {order}?", name="wrong")
    if not await run.ask(f"Refund {order} ({wrong})?", schema=bool, name="permit"):
        return f"order {order} was not refunded"
    return await run.call(refund, order=order, cents=1250)


hf = holdfast.Holdfast(
    "shop.db",
    agents=[support],
    workflows=Kit(tools=[refund], definitions=[load(Path(__file__).with_name("refund.yaml"))]),
)
