"""`holdfast webhooks`: who receives events, how far they are, and what to do when one fails."""

import asyncio
from dataclasses import replace

import click

from holdfast import config
from holdfast.app import Holdfast
from holdfast.cli import worker
from holdfast.subscribers.webhooks import DAY_SECONDS, Webhook
from holdfast.terminal import inputs, output
from holdfast.terminal.exits import Exit
from holdfast.terminal.options import Options, common
from holdfast.terminal.output import say
from holdfast.terminal.records import Record, record_of
from holdfast.terminal.text import count as counted
from holdfast.terminal.text import moment, printable

_COLUMNS = {
    "WEBHOOK": "name",
    "URL": "url",
    "STATUS": "status",
    "DELIVERED": "delivered",
    "FAILING SINCE": "failing_since",
    "ERROR": "error",
}


@click.group()
def command() -> None:
    """Let events be delivered to others, signed, each at least once."""


@command.command()
@click.argument("url")
@click.option("--name", required=True, help="What it is called.")
@click.option(
    "--secret",
    default="",
    metavar="secret://NAME",
    help="Which secret signs; needed for http and https, not for transport:QUEUE.",
)
@click.option("--kind", "kinds", metavar="KIND", multiple=True, help="Only of such entries.")
@click.option("--agent", "agents", metavar="NAME", multiple=True, help="Only of its runs.")
@click.option("--after", metavar="POSITION", help="Begin after it; 'start': at the beginning.")
@click.option(
    "--give-up",
    type=click.FloatRange(min=0, min_open=True),
    default=DAY_SECONDS,
    show_default=True,
    metavar="SECONDS",
    help="Block it when it fails for so long.",
)
@common
def add(
    options: Options,
    *,
    url: str,
    name: str,
    secret: str,
    kinds: tuple[str, ...],
    agents: tuple[str, ...],
    after: str | None,
    give_up: float,
) -> None:
    """Deliver events to URL, from now on, as long as a worker runs.

    URL is of http or https, or transport:QUEUE for a queue of the workers' transport. secret://HOOK
    is the value of HOLDFAST_SECRET_HOOK where workers run; it is not stored.
    """
    with options.open_existing() as hf:
        added = hf.webhooks.add(
            url,
            name=name,
            secret=secret,
            kinds=kinds,
            agents=agents,
            after=after,
            give_up_seconds=give_up,
        )
    options.output.one(_record(added), ids="name", draw=output.fields)


@command.command()
@common
def deliver(options: Options) -> Exit:
    """Deliver the events of all webhooks until stopped.

    For programs without agents, such as those that use the checkpoint service: every worker
    delivers webhooks beside its runs. Secrets are read from HOLDFAST_SECRET_NAME, the transport for
    transport:QUEUE from HOLDFAST_TRANSPORT. SIGTERM or Ctrl-C stops it.
    """
    options.open_existing()
    found = config.of(None).settings
    hf = Holdfast(options.url, settings=replace(found, tenant=options.tenant))
    record = asyncio.run(worker.work(hf, concurrency=1, agents=[]))
    options.output.one(record, ids="worker", draw=worker.draw)
    return Exit.INTERRUPTED if record["stopped"] == "at once" else Exit.OK


@command.command("list")
@common
def list_(options: Options) -> None:
    """List all webhooks, by name."""
    with options.open_existing() as hf:
        found = hf.webhooks.list()
    options.output.many(
        map(_record, found), ids="name", draw=output.table(_COLUMNS, empty="no webhooks")
    )


@command.command()
@click.argument("name")
@click.option("--by", metavar="NAME", help="Who says so [default: your user name].")
@common
def remove(options: Options, *, name: str, by: str | None) -> None:
    """Deliver nothing more; the record stays, and the name can be used again."""
    with options.open_existing() as hf:
        found = hf.webhooks.get(name)
        hf.webhooks.remove(name, by=by or inputs.user_name())
    options.output.one(_record(found), ids="name", draw=_tell_removed)


@command.command()
@click.argument("name")
@click.option("--by", metavar="NAME", help="Who says so [default: your user name].")
@common
def resume(options: Options, *, name: str, by: str | None) -> None:
    """Deliver again what was given up, from where it was, with nothing left out."""
    with options.open_existing() as hf:
        found = hf.webhooks.resume(name, by=by or inputs.user_name())
    options.output.one(_record(found), ids="name", draw=output.fields)


def _tell_removed(record: Record) -> None:
    delivered = counted(record["delivered"], "event")
    say(f"webhook {printable(record['name'])} delivers nothing more; it had {delivered}")


def _record(webhook: Webhook) -> Record:
    since = webhook.failing_since
    return record_of(webhook) | {"failing_since": moment(since) if since else None}
