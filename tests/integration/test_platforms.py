"""A system that is not POSIX: Holdfast is imported and works there; what does not says so.

Simulated in a process of its own: the modules and names that Windows lacks are taken away.
"""

import subprocess
import sys
from pathlib import Path

import pytest

TAKE_AWAY = """
import asyncio, asyncio.unix_events, os, signal, sys

MODULES = "fcntl resource pwd grp termios tty pty syslog readline curses".split()
sys.modules.update(dict.fromkeys(MODULES))
NAMES = {
    os: "O_DIRECTORY O_NOFOLLOW O_NONBLOCK O_CLOEXEC fork forkpty register_at_fork killpg getuid"
    " geteuid getpgid setsid fchmod fchown chown WNOHANG statvfs pread pwrite uname getloadavg",
    signal: "SIGKILL SIGHUP SIGSTOP SIGCONT SIGUSR1 SIGALRM SIGCHLD setitimer",
}
for module, names in NAMES.items():
    for name in filter(vars(module).__contains__, names.split()):
        delattr(module, name)
os.supports_dir_fd.clear()

def add_signal_handler(*_):
    raise NotImplementedError

asyncio.unix_events._UnixSelectorEventLoop.add_signal_handler = add_signal_handler
"""

RUNS_AN_AGENT = """
import holdfast

@holdfast.tool
def charge(amount: int) -> str:
    return f"paid {amount}"

@holdfast.agent(tools=[charge])
async def payer(run: holdfast.Run, amount: int) -> str:
    receipt = await run.call(charge, amount)
    run.log("receipts", str).append(receipt)
    await run.checkpoint()
    return receipt

async def main():
    async with holdfast.open(sys.argv[1], agents=[payer]) as hf:
        print(await hf.run(payer, 5, run_id="r"))
        print(await hf.journal.verify("r"))

asyncio.run(main())
"""

IMPORT_ALL = """
import importlib, pkgutil, sys, holdfast
for found in pkgutil.walk_packages(holdfast.__path__, "holdfast."):
    importlib.import_module(found.name)
"""

# What others have written finds out by itself where it runs: it is imported before.
FORGET = """
for name in [name for name in sys.modules if name.split(".")[0] == "holdfast"]:
    del sys.modules[name]
"""

SPOOLS = """
import holdfast
from pathlib import Path
from holdfast.errors import InvalidSetting

async def main():
    settings = holdfast.Settings(on_store_failure="spool", spool_folder=sys.argv[1] + ".spool")
    try:
        async with holdfast.open(sys.argv[1], settings=settings):
            pass
    except InvalidSetting as error:
        print(error)

asyncio.run(main())
"""

READS_A_FILE = """
from pathlib import Path
from holdfast.errors import BlockFailed
from holdfast.workflows.access.files import Folder
try:
    Folder(Path(sys.argv[1]).parent).read("a.txt", at_most=10)
except BlockFailed as error:
    print(error)
"""

RUNS_A_COMMAND = """
from pathlib import Path
from holdfast.errors import NotDone
from holdfast.workflows.access import commands
asked = commands.Command(command="echo hi", cwd=Path.cwd(), env={}, seconds=5)
try:
    asyncio.run(commands.run(asked))
except NotDone as error:
    print(error)
"""


def run_without_posix(program: str, folder: Path, *, before: str = "") -> str:
    done = subprocess.run(
        [sys.executable, "-c", before + TAKE_AWAY + program, str(folder / "store.db")],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_agent_runs_on_a_store_in_a_file(tmp_path: Path) -> None:
    assert run_without_posix(RUNS_AN_AGENT, tmp_path) == "paid 5\n[]"


def test_every_module_is_imported(tmp_path: Path) -> None:
    run_without_posix(IMPORT_ALL, tmp_path, before=IMPORT_ALL + FORGET)


@pytest.mark.parametrize(
    ("program", "said"),
    [
        (SPOOLS, "on_store_failure='spool' is not supported on linux"),
        (READS_A_FILE, "blocks cannot read or write files on linux"),
        (RUNS_A_COMMAND, "commands cannot be run on linux"),
    ],
    ids=["spool", "file", "command"],
)
def test_what_is_not_supported_says_so(tmp_path: Path, program: str, said: str) -> None:
    assert said in run_without_posix(program, tmp_path)
