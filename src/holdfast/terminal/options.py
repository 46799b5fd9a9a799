"""The options that every command has, and the store they name."""

import functools
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import click

from holdfast import names, settings, stores
from holdfast.errors import HoldfastError, NotFoundError, SchemaMismatch
from holdfast.settings import Settings
from holdfast.stores.sqlfiles import Migration
from holdfast.sync import Holdfast
from holdfast.terminal import exits
from holdfast.terminal.exits import Exit
from holdfast.terminal.output import FORMATS, TerminalOutput
from holdfast.terminal.text import HINTS

Count = click.IntRange(min=1, max=1_000_000)
Ordinal = click.IntRange(min=0, max=names.MAX_COUNT)
_NO_STORE: Final = (
    "name one with --store or HOLDFAST_STORE, or make it with `holdfast store migrate`"
)


@dataclass(frozen=True)
class Options:
    """A command's options for the store and the output."""

    store: str | None
    tenant: str
    output: TerminalOutput

    @property
    def url(self) -> str:
        return settings.store_url(self.store)

    @property
    def settings(self) -> Settings:
        return Settings(tenant=self.tenant)

    def open(self, given: Settings | None = None) -> Holdfast:
        """The store, to be entered; it is made, or brought up to date, by that."""
        return Holdfast(self.url, settings=given or self.settings)

    def open_existing(self, *, advice: str = _NO_STORE, given: Settings | None = None) -> Holdfast:
        """The same for a command that must not make or change a store's schema.

        `advice` is what to do if there is no store.
        """
        backend, location = settings.locate_store(self.url)
        place = settings.shown_store(self.url)
        if backend == "sqlite" and location and not os.path.exists(location):
            raise NotFoundError(f"there is no store at {place}; {advice}")
        is_there = backend != "sqlite" or os.path.isfile(location)
        if is_there and (missing := self.pending()):
            raise SchemaMismatch(
                f"the store at {place} lacks {len(missing)} of this version's migrations; "
                "`holdfast store migrate` applies them"
            )
        return self.open(given)

    def pending(self) -> list[Migration]:
        return stores.pending_migrations(self.url, settings=self.settings)


def printing(run: Callable[..., Exit | None]) -> Callable[..., Exit | None]:
    """Give a command the options of its output, as `Output`; its errors become exit codes."""

    @click.option("-o", "--output", type=click.Choice(FORMATS), help="Format [default: table].")
    @click.option("--json", "as_json", is_flag=True, help="The same as -o json.")
    @functools.wraps(run)
    def command(*, output: str | None, as_json: bool, **rest: Any) -> Exit | None:
        if as_json and output not in (None, "json"):
            raise click.UsageError(f"--json and -o {output} contradict each other; give one")
        out = TerminalOutput("json" if as_json else output or "table")
        try:
            return run(out, **rest)
        except (HoldfastError, OSError) as error:
            return exits.tell(error, as_json=out.is_json)

    return command


def common(run: Callable[..., Exit | None]) -> Callable[..., Exit | None]:
    """Give a command the options all have, as `Options`; its errors become exit codes."""

    @click.option("--store", metavar="URL", help="The store: a file's path or a URL.")
    @click.option("--tenant", default="default", show_default=True, help="Whose runs.")
    @functools.wraps(run)
    def command(out: TerminalOutput, *, store: str | None, tenant: str, **rest: Any) -> Exit | None:
        HINTS.name_store(store)
        return run(Options(store, tenant, out), **rest)

    return printing(command)
