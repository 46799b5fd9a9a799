"""What is named as `MODULE:NAME` and imported as from the present folder: a Holdfast, a type."""

import importlib
import inspect
import os
import sys
import traceback
from collections.abc import Callable
from types import ModuleType
from typing import Any, TypeVar

from holdfast import sync
from holdfast.app import Holdfast
from holdfast.config import Config
from holdfast.errors import HoldfastError, MisuseError

T = TypeVar("T")


def load(target: str, config: Config | None = None) -> Holdfast:
    """The object named, or what the function named returns; it is not entered yet.

    A configuration is given to the function, for the Holdfast it makes.
    """
    module, name = _named(target, like="app:hf")
    found = _attribute(module, name, _known_to)
    if isinstance(found, sync.Holdfast):
        raise MisuseError(
            f"{target} is a holdfast.sync.Holdfast; a worker needs a holdfast.Holdfast"
        )
    if isinstance(found, Holdfast) and config is not None:
        raise MisuseError(
            f"{target} is made already, so --config comes too late; name a function that takes the "
            "configuration and returns Holdfast.from_config(config, agents=[...])"
        )
    if not isinstance(found, Holdfast) and callable(found):
        found = _made_by(found, target, () if config is None else (config,))
    if not isinstance(found, Holdfast):
        raise MisuseError(
            f"{target} is {_kind_of(found)}, not a Holdfast; name an object made with "
            "Holdfast(...), or a function that returns one"
        )
    return found


def load_type(target: str) -> type:
    """The class that is named."""
    module, name = _named(target, like="app:Order")
    found = _attribute(module, name, lambda _: "name a class that it has")
    if not isinstance(found, type):
        raise MisuseError(f"{target} is {_kind_of(found)}, not a class; name a class")
    return found


def _named(target: str, *, like: str) -> tuple[ModuleType, str]:
    """The module of MODULE:NAME, imported, and the name in it."""
    module_name, colon, name = target.partition(":")
    if not (module_name and colon and name) or module_name.startswith("."):
        raise MisuseError(f"{target!r} is not MODULE:NAME; name both, as in {like}")
    return _import(module_name), name


def _import(name: str) -> ModuleType:
    folder = os.getcwd()
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        return _guarded(lambda: importlib.import_module(name), doing=f"importing {name}")
    except ModuleNotFoundError as error:
        # A package that is found but lacks the module inside it is meant as well.
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise HoldfastError(f"importing {name} failed: {_last_line(error)}") from None
        hint = "; name it without .py" if name.endswith(".py") else ""
        raise MisuseError(
            f"there is no module {error.name!r} in this folder, and none is installed; run this "
            f"where `import {name.removesuffix('.py')}` works{hint}"
        ) from None


def _attribute(module: ModuleType, name: str, hint: Callable[[ModuleType], str]) -> object:
    found: Any = module
    for part in name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise MisuseError(f"module {module.__name__} has no {name!r}; {hint(module)}") from None
    return found


def _known_to(module: ModuleType) -> str:
    known = [name for name, value in vars(module).items() if isinstance(value, Holdfast)]
    return f"it has: {', '.join(known)}" if known else "it has no Holdfast object at all"


def _made_by(function: Callable[..., object], target: str, arguments: tuple[Config, ...]) -> object:
    if inspect.iscoroutinefunction(function):
        raise MisuseError(f"{target} is an async function; it must return a Holdfast when called")
    try:
        inspect.signature(function).bind(*arguments)
    except (TypeError, ValueError) as error:
        how = "with a configuration" if arguments else "without arguments"
        wanted = "that takes the configuration" if arguments else "without parameters"
        raise MisuseError(
            f"{target} cannot be called {how}: {error}; name a Holdfast, or a function {wanted}"
        ) from None
    try:
        return _guarded(lambda: function(*arguments), doing=f"calling {target}")
    except ModuleNotFoundError as error:
        raise HoldfastError(f"calling {target} failed: {_last_line(error)}") from None


def _guarded(function: Callable[[], T], *, doing: str) -> T:
    """Call user code; report what it raises in one line, except a module not found."""
    try:
        return function()
    except (ModuleNotFoundError, HoldfastError):
        raise
    except (Exception, SystemExit) as error:
        raise HoldfastError(f"{doing} failed: {_last_line(error)}") from None


def _last_line(error: BaseException) -> str:
    """The last line of a traceback, and where in the program that was."""
    text = traceback.format_exception_only(error)[-1].strip()
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith("<frozen") and frame.filename != __file__
    ]
    if isinstance(error, SyntaxError) and error.filename:
        return f"{text} ({error.filename}, line {error.lineno})"
    frames = [frame for frame in frames if not frame.filename.endswith("importlib/__init__.py")]
    return f"{text} ({frames[-1].filename}, line {frames[-1].lineno})" if frames else text


def _kind_of(value: object) -> str:
    return "None" if value is None else f"a {type(value).__name__}"
