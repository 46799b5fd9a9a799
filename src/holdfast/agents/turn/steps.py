"""Steps: results that must not be computed, or paid for, twice.

A result is given to the agent as it will come back from the record, whether it was just made or is
read from the record: the code cannot tell a first pass from a later one.
"""

import asyncio
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, cast

from holdfast import codec, faults, names
from holdfast.agents.conversion import type_conversion
from holdfast.agents.definitions.messages import WITHOUT_USAGE
from holdfast.agents.exits.containment import is_exit
from holdfast.agents.exits.threads import call_in_thread
from holdfast.agents.turn.call_budget import CallBudget
from holdfast.agents.turn.child_starts import not_placing_starts
from holdfast.agents.turn.replayed_calls import step_of
from holdfast.agents.turn.turn import Turn
from holdfast.agents.turn.views import Log, Value
from holdfast.codec import Ref
from holdfast.errors import MisuseError, UnsupportedValue

_WORTH_NAMING: Final = 64


class Steps:
    """The recorded calls of one pass over a run."""

    def __init__(self, turn: Turn, spending: CallBudget) -> None:
        self._turn = turn
        self._spending = spending

    def stored_as(self, item: object, is_immutable: bool) -> tuple[Ref, bytes] | None:
        """The entry that an object came from, if it may be named in its place, and its bytes."""
        found = self._turn.refs.get(id(item))
        if found is None:
            return None
        body = self._turn.held.stage.recorded.get(found[1].seq)
        # Somebody may have changed it meanwhile: then its current value is stored.
        if body is None or not (is_immutable or codec.encode(item) == body):
            return None
        return found[1], body

    async def call(
        self,
        kind: str,
        function: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> Any:
        """Return the result of a call: the recorded one, or a new one that is staged.

        A call of a model (of a `kind`) is paid for if a budget applies.
        """
        turn = self._turn
        name = names.check(f"{kind}{name_of(function)}"[: names.MAX_LENGTH], what="a step's name")
        digest = turn.places.of("step", name, digest_of(args, kwargs))
        returns = _returned_type(function)
        if turn.is_replayed and (recorded := turn.memo.step(name, digest)) is not None:
            return self._given(returns, name, turn.held.stage.recall(*recorded))
        if not turn.past.is_blank:
            is_told = says_what_is_asked(kind, args, kwargs)
            item = turn.past.next("step", name, digest, may_follow_loss=is_told)
            found = None if item is None else await step_of(turn.context, turn.held.run_id, item)
            if found is not None:
                ref = turn.stage_step(name, codec.decode(found), args_digest=digest)
                return self._given(returns, name, ref)
        if kind and not turn.held.stage.is_unbudgeted:
            ref = await self._call_paid(function, args, kwargs, returns, name, digest)
            return self._given(returns, name, ref)
        result = await self._call(function, args, kwargs)
        if kind and type(result) not in WITHOUT_USAGE:
            self._spending.record_model(name, result)
        return self._given(returns, name, self._stage(returns, name, result, digest))

    async def _call_paid(
        self,
        function: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        returns: Any,
        name: str,
        digest: bytes,
    ) -> Ref:
        """Call a model that a budget pays for, and stage its reply with its cost."""
        ticket = await self._spending.begin_model(name)
        try:
            result = await self._call(function, args, kwargs)
        except Exception as error:
            await self._spending.fail_model(ticket, error)
            raise
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError) or is_exit(error):
                self._spending.lose_model(ticket)
            raise
        cost = self._spending.charge_model(ticket, result)
        try:
            return self._stage(returns, name, result, digest)
        finally:
            await self._spending.tell_others(ticket, cost)

    async def _call(
        self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        with not_placing_starts():
            if type_conversion.is_async(function):
                result = await function(*args, **kwargs)
            else:
                result = await call_in_thread(function, *args, **kwargs)
        faults.point("model.after_call")
        if self._turn.gate.is_closed:
            self._turn.gate.check_open("a step")
        if inspect.iscoroutine(result):
            result.close()
            raise UnsupportedValue(
                f"{name_of(function)} returned a coroutine that was never awaited: make it an "
                "`async def` that awaits it, or give run.step() the async function itself"
            )
        return result

    def _stage(self, returns: Any, name: str, result: object, digest: bytes) -> Ref:
        if returns is None:
            _check_comes_back(name, result)
        return self._turn.stage_step(name, result, args_digest=digest)

    def _given(self, returns: Any, name: str, ref: Ref) -> Any:
        body = self._turn.held.stage.recorded[ref.seq]
        value = codec.decode(body)
        if returns is not None:
            value = type_conversion.convert(value, returns, what=f"the result of {name}")
        if len(body) >= _WORTH_NAMING:
            self._turn.refs[id(value)] = (value, ref)
        return value


def _check_comes_back(name: str, made: object) -> None:
    """Refuse a result of no declared type that would come back from the record as another one."""
    if type_conversion.plain(made, what=f"the result of {name}") != made:
        raise MisuseError(
            f"{name} returned a {type(made).__name__}, which would come back from the record as "
            "plain data: say in its signature what it returns"
        )


def name_of(function: Callable[..., Any]) -> str:
    """What a function is called on the record."""
    while isinstance(function, functools.partial):
        function = function.func
    return getattr(function, "__qualname__", None) or type(function).__qualname__


def digest_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bytes:
    """Return what tells calls apart: a log by name and length, what is not data by its type."""
    by_name = {name: _plain(arg) for name, arg in kwargs.items()}
    given = [_plain(arg) for arg in args]
    try:
        return codec.canonical_digest([given, by_name])
    except UnsupportedValue:
        named = {name: _storable(arg) for name, arg in by_name.items()}
        return codec.canonical_digest([[_storable(arg) for arg in given], named])


def says_what_is_asked(kind: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether equal digests of arguments mean an equal question; of a model's none they do not."""
    given = [*args, *kwargs.values()]
    return all(_is_data(each) for each in given) and bool(given or not kind)


def _is_data(argument: object) -> bool:
    """Whether the digest has all of an argument, not only the length of a log, or a type."""
    if isinstance(argument, Value):
        argument = cast("Value[object]", argument).get()
    return not isinstance(argument, Log) and _storable(argument) is argument


def _plain(argument: object) -> object:
    if isinstance(argument, Log):
        return {"log": argument.name, "length": len(cast("Log[object]", argument))}
    if isinstance(argument, Value):
        return {"value": argument.name, "is": _storable(cast("Value[object]", argument).get())}
    return argument


def _storable(argument: object) -> object:
    """Return an argument, or the name of its type if it is not data."""
    try:
        codec.encode(argument)
    except UnsupportedValue:
        return {"type": type(argument).__qualname__}
    return argument


def _returned_type(function: Callable[..., Any]) -> Any:
    """Return the declared type of a result; None if it is missing or says nothing."""
    while isinstance(function, functools.partial):
        function = function.func
    target = function if hasattr(function, "__annotations__") else type(function).__call__
    kind = getattr(target, "__annotations__", {}).get("return", Any)
    if not isinstance(kind, type):  # the name of one, or a type that is made of others
        kind = type_conversion.hints_of(target, what=name_of(function)).get("return", Any)
    return None if kind is Any else kind
