"""`Shell`: runs a command, as an effect. It and all that it starts end with the block.

What it starts in a separate session (`setsid`, a daemon) is not ended: it left on purpose.
"""

import re
from typing import Any, ClassVar, Final

import msgspec

from holdfast import settings
from holdfast.agents.definitions.tool_arguments import Key
from holdfast.agents.definitions.tools import Happened
from holdfast.errors import BlockFailed, NotDone
from holdfast.workflows.access import commands
from holdfast.workflows.access.commands import Command, CommandResult
from holdfast.workflows.access.files import Folder
from holdfast.workflows.access.secrets import Secrets
from holdfast.workflows.blocks import outside
from holdfast.workflows.blocks.contract import BlockRun
from holdfast.workflows.blocks.outside import CutOff, EffectClass

KEY_VARIABLE: Final = "HOLDFAST_EFFECT_KEY"
"""The variable with the idempotency key of a command; its `verify` gets the same."""

_FORM: Final = {"stdout": "", "stderr": "", "exit_code": 0}
_PLAIN: Final = re.compile(r"[A-Za-z0-9_@%+=:,./-]*")


class ShellInputs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`command` is a text for /bin/sh, or a list of words that no shell looks at.

    `verify` is a command that finds out what became of one that was interrupted, took too long or
    was ended by a signal: it exits with 0 if that happened (and prints what it would have printed),
    with 1 if it did not, and with anything else if it cannot tell.
    """

    command: str | list[str]
    cwd: str = "."
    env: dict[str, str | int | float] = {}
    stdin: str = ""
    effect: EffectClass = "mutate"
    verify: str | list[str] | None = None
    exit_codes: tuple[int, ...] = (0,)


class Shell:
    name: ClassVar[str] = "Shell"
    inputs: ClassVar[type[msgspec.Struct]] = ShellInputs
    waits: ClassVar[bool] = False
    takes_secrets: ClassVar[bool] = True

    async def execute(self, block: BlockRun, inputs: ShellInputs) -> dict[str, Any]:
        if not inputs.command:
            raise BlockFailed("a Shell block needs a command")
        if inputs.verify is not None and inputs.effect != "mutate":
            raise BlockFailed(f"verify is for commands that mutate; this one says {inputs.effect}")
        running = _Running(block.secrets, block.folder, block.seconds, inputs.exit_codes)
        found = await outside.call(
            block,
            running.run,
            name=self.name,
            effect=inputs.effect,
            verify=running.verify if inputs.verify is not None else None,
            given={
                "command": inputs.command,
                "cwd": inputs.cwd,
                "env": {name: str(value) for name, value in inputs.env.items()},
                "stdin": inputs.stdin,
                "verify": inputs.verify,
            },
        )
        found = outside.in_form(found, _FORM, "stdout")
        return _judged(found, inputs.exit_codes, block.seconds, is_once=inputs.effect == "mutate")


class _Running:
    """Runs the commands of one block."""

    def __init__(
        self, secrets: Secrets, folder: Folder, seconds: float, exit_codes: tuple[int, ...]
    ) -> None:
        self._secrets = secrets
        self._folder = folder
        self._seconds = seconds
        self._exit_codes = exit_codes

    async def run(
        self,
        command: str | list[str],
        cwd: str,
        env: dict[str, str],
        stdin: str,
        verify: str | list[str] | None = None,
        *,
        key: Key,
    ) -> Any:
        """Run the command. If it did not end by itself, `verify` finds out what it has done."""
        with outside.telling_no(self._secrets):
            found = self._outputs(await self._ended(command, cwd, env, stdin, key))
            code = found["exit_code"]
            if verify is not None and code not in self._exit_codes and _is_cut_off(code):
                raise CutOff(_how(code, self._seconds))
            return found

    async def verify(
        self, cwd: str, env: dict[str, str], verify: str | list[str], key: str
    ) -> Happened[dict[str, Any]] | NotDone:
        """Run the command that verifies, and return its verdict."""
        with outside.telling_no(self._secrets):
            ended = await self._ended(verify, cwd, env, "", key)
            if ended.exit_code == 0:
                return Happened(self._outputs(ended))
            if ended.exit_code == 1:
                return NotDone("the command that verifies says that it did not happen")
            code = ended.exit_code
            how = f"exited with {code}" if code is not None else f"took over {self._seconds:g} s"
            said = self._outputs(ended)["stderr"].strip()[-500:]
            raise BlockFailed(f"the command that verifies {how} and so cannot tell: {said}")

    async def _ended(
        self, command: str | list[str], cwd: str, env: dict[str, str], stdin: str, key: str
    ) -> CommandResult:
        own = {**settings.command_environment(), KEY_VARIABLE: key}
        return await commands.run(
            Command(
                command=self._revealed(command),
                cwd=self._folder.directory(cwd),
                env=own | self._secrets.reveal(env),
                stdin=self._secrets.reveal(stdin),
                seconds=self._seconds,
            )
        )

    def _revealed(self, command: str | list[str]) -> str | list[str]:
        """Reveal a command's secrets; in a text for the shell they must mean nothing to it."""
        if isinstance(command, list):
            return self._secrets.reveal(command)
        for name in self._secrets.names_in(command):
            if not _PLAIN.fullmatch(self._secrets.reveal(str(self._secrets.reference(name)))):
                raise BlockFailed(
                    f"secret {name!r} has characters that mean something to the shell; put it in "
                    f'env: {{VALUE: "{{{{ secrets.{name} }}}}"}}, and write "$VALUE" in the command'
                )
        return self._secrets.reveal(command)

    def _outputs(self, ended: CommandResult) -> dict[str, Any]:
        redact, longest = self._secrets.redact, self._secrets.longest
        return {
            "stdout": ended.stdout.text(redact, longest),
            "stderr": ended.stderr.text(redact, longest),
            "exit_code": ended.exit_code,
        }


def _judged(
    found: dict[str, Any], exit_codes: tuple[int, ...], seconds: float, *, is_once: bool
) -> dict[str, Any]:
    """Return what a command gave, or raise BlockFailed. With `is_once`, a command that was cut off
    is not retried: it may have done its work."""
    code = found["exit_code"]
    if code in exit_codes:
        return found
    is_final = is_once and _is_cut_off(code)
    said = found["stderr"].strip().rpartition("\n")[2][:500]
    message = f"{_how(code, seconds)}{f': {said}' if said and code is not None else ''}"
    raise BlockFailed(message, outputs=found, is_final=is_final)


def _is_cut_off(code: int | None) -> bool:
    """Whether a command was ended by its timeout or by a signal."""
    return code is None or code < 0


def _how(code: int | None, seconds: float) -> str:
    if code is None:
        return f"the command took over {seconds:g} s and was ended"
    return (
        f"the command exited with {code}"
        if code >= 0
        else f"the command was ended by signal {-code}"
    )
