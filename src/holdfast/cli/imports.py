"""`holdfast import`: threads of other savers, brought into the store."""

import contextlib
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

import click

from holdfast import settings
from holdfast.errors import HoldfastError, InvalidSetting, NotFoundError, TypeNotAllowed
from holdfast.terminal import exits, import_names, output, progress
from holdfast.terminal.exits import Exit
from holdfast.terminal.options import Count, Options, common
from holdfast.terminal.output import say, write
from holdfast.terminal.records import Record
from holdfast.terminal.text import count, printable

if TYPE_CHECKING:
    from holdfast.integrations.langgraph import HoldfastSaver
    from holdfast.integrations.langgraph.imports import ThreadReport
    from holdfast.integrations.langgraph.sources import ThreadSize, ThreadSource

_SIZES: Final = output.table(
    {
        "THREAD": "thread_id",
        "CHECKPOINTS": "checkpoints",
        "WRITES": "writes",
        "BYTES": "stored_bytes",
    },
    empty="no threads: nothing was ever saved there",
)
_DIVERGED: Final = (
    "the store has other checkpoints of this thread, and it was left as it is; "
    "delete it there to import it, or go on with it there"
)


@click.group()
def command() -> None:
    """Bring in what other savers have stored."""


@command.command()
@click.argument("url")
@click.option("--thread", "wanted", multiple=True, metavar="ID", help="Only this one; repeatable.")
@click.option("--limit", type=Count, help="At most this many threads.")
@click.option(
    "--allow",
    multiple=True,
    metavar="MODULE:TYPE",
    help="A type of yours that state may hold; repeatable. It is imported.",
)
@click.option("--dry-run", "is_dry", is_flag=True, help="Count what is there; store nothing.")
@common
def langgraph(
    options: Options,
    *,
    url: str,
    wanted: tuple[str, ...],
    limit: int | None,
    allow: tuple[str, ...],
    is_dry: bool,
) -> Exit:
    """Import the threads of a LangGraph saver: a SQLite file, or postgresql://...

    The database is only read. Killed or interrupted, the same command goes on where it stopped.
    """
    saver = _saver(options, allow)
    with _opened(url, saver) as source:
        threads = _chosen(source.threads(), wanted, url)[:limit]
        if is_dry:
            records = [dict(thread._asdict()) for thread in threads]
            options.output.many(records, ids="thread_id", draw=_SIZES)
            return Exit.OK
        with contextlib.closing(saver):
            importing = _Importing(source, saver)
            records = importing.bring(threads)
            options.output.many(records, ids="thread_id", draw=output.lines(_line))
    tell = write if options.output.is_for_people else say
    tell(importing.summary())
    return importing.code


class _Importing:
    """One pass over threads. One that is refused does not keep the others from being imported."""

    def __init__(self, source: "ThreadSource", saver: "HoldfastSaver") -> None:
        self._source = source
        self._saver = saver
        self._outcomes: Counter[str] = Counter()
        self._checkpoints = 0
        self.code = Exit.OK

    def bring(self, threads: Sequence["ThreadSize"]) -> Iterator[Record]:
        from holdfast.integrations.langgraph.imports import import_thread

        total = sum(thread.checkpoints for thread in threads)
        with progress.counted("imported", "checkpoints", total) as advance:
            for thread in threads:
                report = import_thread(self._source, self._saver, thread.thread_id, advance=advance)
                yield self._judged(report)

    def _judged(self, report: "ThreadReport") -> Record:
        self._outcomes[report.outcome] += 1
        self._checkpoints += report.checkpoints
        message = _error_text(report.error)
        code = exits.code_of(report.error) if report.error else Exit.OK
        if report.outcome == "diverged":
            code, message = Exit.CONFLICT, _DIVERGED
        self.code = self.code or code
        return {
            "thread_id": report.thread_id,
            "outcome": report.outcome,
            "checkpoints": report.checkpoints,
            "writes": report.writes,
            "error": type(report.error).__name__ if report.error else None,
            "message": message,
        }

    def summary(self) -> str:
        outcomes = ", ".join(f"{number:,} {name}" for name, number in self._outcomes.items())
        done = f"{count(self._checkpoints, 'checkpoint')} imported"
        return f"{done}; threads: {outcomes}" if outcomes else f"{done}: there are no threads"


def _error_text(error: HoldfastError | None) -> str | None:
    if isinstance(error, TypeNotAllowed):
        return f"{error}; here: --allow MODULE:TYPE"
    return None if error is None else str(error)


def _saver(options: Options, allow: Iterable[str]) -> "HoldfastSaver":
    try:
        from holdfast.integrations.langgraph import HoldfastSaver
    except ImportError as missing:
        raise InvalidSetting(f"nothing was imported: {missing}") from None
    types = tuple(import_names.load_type(target) for target in allow)
    # Concurrent runs in the source left two children of one checkpoint: both are imported.
    return HoldfastSaver(options.url, settings=options.settings, allow=types, on_conflict="fork")


@contextlib.contextmanager
def _opened(url: str, saver: "HoldfastSaver") -> Generator["ThreadSource"]:
    from holdfast.integrations.langgraph.sources import open_source

    with contextlib.closing(open_source(url, saver.serde)) as source:
        yield source


def _chosen(
    threads: Sequence["ThreadSize"], wanted: Sequence[str], url: str
) -> Sequence["ThreadSize"]:
    if not wanted:
        return threads
    known = {thread.thread_id: thread for thread in threads}
    if missing := [thread_id for thread_id in wanted if thread_id not in known]:
        raise NotFoundError(
            f"there is no thread {missing[0]!r} in {settings.shown_store(url)}; "
            "--dry-run without --thread lists those that are"
        )
    return [known[thread_id] for thread_id in dict.fromkeys(wanted)]


def _line(record: Record) -> str:
    line = f"{record['outcome']:<8}  {printable(record['thread_id'])}"
    if record["checkpoints"]:
        line += f"  {count(record['checkpoints'], 'checkpoint')}"
    return f"{line}\n          {printable(record['message'])}" if record["message"] else line
