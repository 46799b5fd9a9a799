"""What a command lets workflows use: a program's own Kit, or a folder and secrets."""

import contextlib
import functools
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click

from holdfast import settings
from holdfast.app import Holdfast as Program
from holdfast.errors import BodyErased, NotFoundError, RunNotFound
from holdfast.sync.app import Holdfast
from holdfast.sync.lifecycle import around
from holdfast.terminal import import_names
from holdfast.terminal.options import Options
from holdfast.terminal.text import HINTS
from holdfast.workflows.access.secrets import Source, environment_secrets, file_secrets
from holdfast.workflows.checks import library
from holdfast.workflows.definitions.definition import Workflow
from holdfast.workflows.execution.kit import Kit

NO_RUNS: Final = "name that in which the run is with --store or HOLDFAST_STORE"


@dataclass(frozen=True)
class Use:
    """The options of commands that carry out workflows."""

    app: str | None
    root: str | None
    secrets: str | None
    network: tuple[str, ...]

    @property
    def words(self) -> list[str]:
        """The same for the next command."""
        given = {"--app": self.app, "--root": self.root, "--secrets": self.secrets}
        words = [word for name, value in given.items() if value for word in (name, value)]
        words += [word for network in self.network for word in ("--network", network)]
        tenant = click.get_current_context().params.get("tenant", "default")
        return [*words, *(["--tenant", tenant] if tenant != "default" else [])]

    @functools.cached_property
    def _program(self) -> Program | None:
        return None if self.app is None else import_names.load(self.app)

    @functools.cached_property
    def kit(self) -> Kit:
        """What blocks may use."""
        if self._program is not None:
            return self._program.workflows.kit
        return Kit(root=_folder(self.root), secrets=_secrets(self.secrets), networks=self.network)

    def read(self, file: str) -> Workflow:
        """The workflow of a file; raises WorkflowInvalid with what `validate` would tell of it."""
        found = library.examine(file, self.kit.definitions, types=self.kit.types)
        return found.checked()[found.name]

    def open(self, options: Options, *, makes: bool) -> Holdfast:
        """The store with what workflows may use, to be entered; `makes` it if there is none."""
        if self._program is not None:
            self._check_alone(options)
            return around(Holdfast, self._program)
        if not makes:
            options.open_existing(advice=NO_RUNS)
        return Holdfast(options.url, settings=options.settings, workflows=self.kit)

    def program(self, options: Options) -> Program:
        """The same for a command that serves it: not blocking, and made if there is none."""
        if self._program is not None:
            self._check_alone(options)
            return self._program
        return Program(options.url, settings=options.settings, workflows=self.kit)

    def _check_alone(self, options: Options) -> None:
        if self.root or self.secrets or self.network:
            raise click.UsageError(
                "--app names a Kit, which has a root, secrets and networks of its own"
            )
        if options.store is not None or options.tenant != "default":
            raise click.UsageError("--app names a Holdfast, which has a store of its own")


def using(run: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options of `Use`; it gets them as `use`."""

    @functools.wraps(run)
    def command(
        *args: Any,
        app: str | None,
        root: str | None,
        secrets: str | None,
        network: tuple[str, ...],
        **given: Any,
    ) -> Any:
        return run(*args, use=Use(app, root, secrets, network), **given)

    for option in reversed(_OPTIONS):
        command = option(command)
    return command


_OPTIONS = (
    click.option(
        "--app",
        metavar="MODULE:NAME",
        help="A Holdfast with agents and a Kit: tools, types of blocks, other workflows.",
    ),
    click.option(
        "--root",
        metavar="DIR",
        help="The folder of files that blocks may use [default: where the run was started].",
    ),
    click.option(
        "--secrets",
        metavar="DIR",
        help="A folder with a file for each secret [default: HOLDFAST_SECRET_NAME variables].",
    ),
    click.option(
        "--network",
        metavar="CIDR",
        multiple=True,
        help="A network that requests may reach beside public addresses, such as 127.0.0.0/8.",
    ),
)


def _folder(root: str | None) -> Path | None:
    """The folder that was named; without one, a run's files are where it was started."""
    if root is None:
        return None
    found = Path(root)
    if not found.is_dir():
        raise NotFoundError(f"there is no folder {found}; name one with --root")
    return found


def _secrets(folder: str | None) -> Source:
    return environment_secrets() if folder is None else file_secrets(folder)


@contextlib.contextmanager
def asking_for(run_id: str) -> "Generator[None]":
    """Tell of a run that is not there, or no more, what somebody can do who means a workflow."""
    listed = "`holdfast workflows list` shows those that are there"
    try:
        yield
    except RunNotFound as error:
        said = str(error).partition("; ")[0]  # what follows is about runs of any kind
        raise RunNotFound(f"{said}; {listed}") from None
    except BodyErased as error:
        known = f"`holdfast runs show {run_id}` tells what is left of it"
        raise NotFoundError(f"{error}; {known}") from None


def name_store(hf: Holdfast, use: Use) -> None:
    """Let messages name the store of a program, if it is not the one that others would take."""
    if use.app is not None:
        place = hf.info().url
        if place != settings.shown_store(settings.store_url(None)):
            HINTS.name_store(place)
