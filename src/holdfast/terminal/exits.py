"""Exit codes, and reporting an error: the one table from families of errors to codes."""

import itertools
import json
import os
import re
import sys
import threading
from enum import IntEnum
from typing import Any, Final

import msgspec

from holdfast.errors import (
    ConflictError,
    HoldfastError,
    IntegrityError,
    MisuseError,
    NotFoundError,
    StoreNotPermitted,
    UnavailableError,
    WorkflowInvalid,
)
from holdfast.terminal.text import HINTS, printable


class Exit(IntEnum):
    """What the exit code of every command says."""

    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    NOT_ALLOWED = 4
    CONFLICT = 5
    NEEDS_PERSON = 6  # the awaited run is blocked, or asks a question
    INTEGRITY = 7
    UNAVAILABLE = 8
    TIMED_OUT = 124  # the awaited run is still running, or can continue
    INTERRUPTED = 130
    BROKEN_PIPE = 141


FAMILIES: Final[dict[type, Exit]] = {
    ConflictError: Exit.CONFLICT,
    NotFoundError: Exit.NOT_FOUND,
    UnavailableError: Exit.UNAVAILABLE,
    IntegrityError: Exit.INTEGRITY,
    StoreNotPermitted: Exit.NOT_ALLOWED,
    MisuseError: Exit.USAGE,
    HoldfastError: Exit.FAILED,
    PermissionError: Exit.NOT_ALLOWED,
    OSError: Exit.FAILED,
}


def code_of(error: HoldfastError | OSError) -> Exit:
    """The code of the nearest family an error belongs to."""
    return next(FAMILIES[family] for family in type(error).__mro__ if family in FAMILIES)


def tell(error: HoldfastError | OSError, *, as_json: bool = False) -> Exit:
    """Report on stderr what happened, why, and what to do next; return the exit code for it.

    A closed pipe is not reported.
    """
    if isinstance(error, OSError):
        _forget_output()
    if isinstance(error, BrokenPipeError):
        return Exit.BROKEN_PIPE
    if as_json:
        tell_json(type(error).__name__, str(error), **_more(error))
    else:
        for line in _lines(error):
            print(printable(HINTS.complete(line)), file=sys.stderr)
    return code_of(error)


def tell_json(name: str, message: str, **more: Any) -> None:
    """Report an error on stderr as one object."""
    print(json.dumps({"error": name, "message": message, **more}), file=sys.stderr)


def wants_json(arguments: list[str]) -> bool:
    """Whether the words of a command ask for JSON, also when they cannot be understood."""
    pairs = itertools.pairwise([*arguments, ""])
    return any(
        word == "--json"
        or word in ("--output=json", "--output=jsonl", "-ojson", "-ojsonl")
        or (word in ("-o", "--output") and following in ("json", "jsonl"))
        for word, following in pairs
    )


def end_after(seconds: float) -> None:
    """End the process even if a tool's thread, or a loop that hangs, does not let it."""
    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()


def end() -> None:
    """End the process as interrupted, now."""
    sys.stderr.flush()
    os._exit(Exit.INTERRUPTED)


def _forget_output() -> None:
    """Discard buffered output: Python would write it again at exit, and report an error."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _more(error: HoldfastError | OSError) -> dict[str, Any]:
    """Return extra fields for programs: the mistakes of a workflow, one by one."""
    if not isinstance(error, WorkflowInvalid):
        return {}
    return {
        "problems": [
            msgspec.structs.asdict(each)
            if isinstance(each, msgspec.Struct)
            else {"reason": str(each)}
            for each in error.problems
        ]
    }


def _lines(error: HoldfastError | OSError) -> list[str]:
    if isinstance(error, WorkflowInvalid) and len(error.problems) > 1:
        return [
            "Error: nothing was done, because:",
            *(f"  {problem}" for problem in error.problems),
        ]
    lines = [f"Error: {error}"]
    cause = error.__cause__
    if cause is not None and str(cause) not in str(error):
        lines.append(f"Cause: {cause}")
    advice = (type(error).__doc__ or "").partition(". ")[2]
    # A message that continues after its first clause gives its own advice there.
    if isinstance(error, HoldfastError) and advice and not re.search(r"[;.] ", str(error)):
        lines.append(f"Next: {advice}")
    return lines
