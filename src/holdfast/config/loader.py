"""A configuration from a file and the environment: which block counts, what overrides what.

`load` checks what it uses and raises all problems at once; `check` checks every block.
"""

import json
import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from holdfast import settings
from holdfast.broker_urls import is_broker, read_nats
from holdfast.config import documents
from holdfast.config.documents import ConfigDocument, MappingNode, Node, Scalar, nearest, shown_key
from holdfast.config.values import (
    DEFAULT,
    KEYS,
    NAME,
    SPELLINGS,
    ConfigProblem,
    Configured,
    Unfit,
    Value,
    ValueOrigin,
    from_node,
    from_variable,
)
from holdfast.errors import InvalidConfig, MisuseError, NotFoundError
from holdfast.settings import Settings, StoreLocation

PathLike = str | os.PathLike[str]
MEMORY: Final = "memory://"
_PREFIX: Final = "HOLDFAST_"


@dataclass(frozen=True, kw_only=True)
class Config:
    """What a file and the environment say for one agent, checked, each value with its origin."""

    values: Mapping[str, Configured] = field(repr=False)
    warnings: tuple[ConfigProblem, ...] = ()

    @property
    def agent(self) -> str:
        """The agent's name; empty if the configuration is for no particular agent."""
        return str(self.values["agent"].value)

    @property
    def settings(self) -> Settings:
        """The settings, with defaults for what is not configured."""
        chosen: dict[str, Any] = {name: self.values[name].value for name in settings.TYPES}
        return Settings(**chosen)

    @property
    def is_checkpointing(self) -> bool:
        """Whether runs are stored: `stateless_checkpointing`."""
        return self.values["stateless_checkpointing"].value is True

    @property
    def store_url(self) -> str:
        """Where runs are kept: `session_db_url`, or memory if checkpointing is off."""
        return str(self.values["session_db_url"].value) if self.is_checkpointing else MEMORY

    def origin(self, key: str) -> ValueOrigin:
        """Where the value of a key comes from, by its own name or the seed's spelling of it."""
        return self.values[SPELLINGS.get(key, key)].origin


class ConfigReport(msgspec.Struct, frozen=True):
    """What `check` found: the agents a file names, the problems, the warnings."""

    agents: tuple[str, ...]
    problems: tuple[ConfigProblem, ...]
    warnings: tuple[ConfigProblem, ...]


def load(
    path: PathLike | None, *, agent: str | None = None, environ: Mapping[str, str] | None = None
) -> Config:
    """Read a configuration, or only the environment if no file is named.

    Raises InvalidConfig with every problem, NotFoundError for a file or an agent that is not there,
    and OSError for a file that cannot be read.
    """
    source = _ConfigSource(path, settings.environment() if environ is None else environ)
    config = source.config(agent)
    if source.problems or config is None:
        raise _invalid(source.problems)
    return config


def of(path: PathLike | Config | None, *, agent: str | None = None) -> Config:
    """Return the given configuration, or load it."""
    if not isinstance(path, Config):
        return load(path, agent=agent)
    if agent not in (None, path.agent):
        raise MisuseError(f"the configuration is loaded for {path.agent!r} already, not {agent!r}")
    return path


def check(path: PathLike, *, environ: Mapping[str, str] | None = None) -> ConfigReport:
    """Check every block of a file; nothing is opened."""
    source = _ConfigSource(path, settings.environment() if environ is None else environ)
    warnings: list[ConfigProblem] = []
    for name in source.names or (None,):
        config = source.config(name)
        warnings += () if config is None else config.warnings
    return ConfigReport(source.names, _once(source.problems), _once(warnings))


def _once(problems: list[ConfigProblem]) -> tuple[ConfigProblem, ...]:
    return tuple(sorted(dict.fromkeys(problems), key=lambda problem: problem.line))


def _invalid(problems: list[ConfigProblem]) -> InvalidConfig:
    texts = tuple(map(str, _once(problems)))
    count = f"the configuration has {len(texts)} problems: " if len(texts) > 1 else ""
    return InvalidConfig(count + "; ".join(texts), problems=texts)


class _ConfigSource:
    """One file and one environment, and the problems found in them."""

    def __init__(self, path: PathLike | None, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._place = "" if path is None else os.fspath(path)
        self.problems: list[ConfigProblem] = []
        document = (
            ConfigDocument(MappingNode(1))
            if path is None
            else documents.parse(_content(self._place))
        )
        for fault in document.faults:
            self._tell(fault.line, fault.message)
        self._shared, self._blocks, self._own = (
            MappingNode(1),
            dict[str, MappingNode](),
            MappingNode(1),
        )
        if document.root is not None:
            self._divide(document.root)
        self._from_environment = self._read_environment()

    @property
    def names(self) -> tuple[str, ...]:
        """The agents that the file has a block for."""
        return tuple(self._blocks)

    def config(self, agent: str | None) -> Config | None:
        """Return the configuration of one agent; None, with problems reported, if it is invalid."""
        named, block = self._chosen(agent)
        shared, own = self._values_of(self._shared), self._values_of(block)
        given = {**shared, **own, **self._from_environment}
        values = {"agent": named}
        for key in KEYS.values():
            default = Configured(key.name, key.default, key.shown(key.default), DEFAULT)
            values[key.name] = given.get(key.name, default)
        self._check_store(values)
        self._check_transport(values["transport"])
        if self.problems:
            return None
        warnings = _warnings(values, {**shared, **own}, self._environ)
        return Config(values=values, warnings=tuple(warnings))

    def _tell(self, line: int, message: str, key: str = "") -> None:
        self.problems.append(ConfigProblem(f"{self._place}:{line}", message, line, key))

    def _divide(self, root: Node) -> None:
        """Take the file apart: what all agents share, and the block of each."""
        if not isinstance(root, MappingNode):
            if not (isinstance(root, Scalar) and root.is_plain and not root.text):
                self._tell(root.line, "a configuration is keys and values, as in `agent:`")
            return
        rest = {key: item for key, item in root.items.items() if key not in ("agent", "agents")}
        self._shared = MappingNode(root.line, rest)
        if "agent" in root.items and "agents" in root.items:
            line, _ = root.items["agents"]
            self._tell(line, "give agent: for one or agents: for several, not both", "agents")
        elif "agent" in root.items:
            self._own = self._as_block("agent", *root.items["agent"])
            self._name_own()
        elif "agents" in root.items:
            for name, item in self._as_block("agents", *root.items["agents"]).items.items():
                if unmet := NAME.unmet(name):
                    self._tell(item[0], f"an agent's name {unmet}", "name")
                else:
                    self._blocks[name] = self._as_block(f"agent {shown_key(name)}", *item)

    def _as_block(self, what: str, line: int, node: Node) -> MappingNode:
        if isinstance(node, MappingNode):
            return node
        if not (isinstance(node, Scalar) and node.is_plain and not node.text):
            self._tell(line, f"{what} must be a block of keys and values")
        return MappingNode(line)

    def _name_own(self) -> None:
        """Let the block of `agent:` be known by its `name`, if it has one."""
        if "name" not in self._own.items:
            return
        line, node = self._own.items["name"]
        rest = {key: item for key, item in self._own.items.items() if key != "name"}
        self._own = MappingNode(self._own.line, rest)
        if name := self._name(line, node):
            self._blocks[name] = MappingNode(line, rest)

    def _name(self, line: int, node: Node) -> str:
        """Return an agent's name; report a problem and return "" if it is invalid."""
        try:
            origin = ValueOrigin("file", self._place, line)
            return str(from_node(NAME, "name", node, origin, self._environ).value)
        except Unfit as problem:
            self._tell(line, str(problem), "name")
            return ""

    def _chosen(self, agent: str | None) -> tuple[Configured, MappingNode]:
        """Return the selected agent, and its block."""
        if agent is not None:
            origin = ValueOrigin("argument")
            if self._blocks and agent not in self._blocks:
                known = ", ".join(self._blocks)
                hint = nearest(agent, self._blocks)
                raise NotFoundError(f"{self._place} has no agent {agent!r}; it has {known}{hint}")
            return Configured("agent", agent, agent, origin), self._blocks.get(agent, self._own)
        if not self._blocks:
            return Configured("agent", "", "", DEFAULT), self._own
        if len(self._blocks) > 1:
            known = ", ".join(self._blocks)
            first = next(iter(self._blocks))
            in_python = json.dumps(first, ensure_ascii=False)
            self._tell(
                1,
                f"there are {len(self._blocks)} agents: {known}; say which one is meant: "
                f"--agent {shlex.quote(first)}, or agent={in_python} in Python",
            )
        name, block = next(iter(self._blocks.items()))
        origin = ValueOrigin("file", self._place, block.line)
        return Configured("agent", name, name, origin), block

    def _values_of(self, block: MappingNode) -> dict[str, Configured]:
        """Return the values of a block, by the keys' own names."""
        found: dict[str, Configured] = {}
        for name, (line, node) in block.items.items():
            key = KEYS.get(SPELLINGS.get(name, name))
            if key is None:
                self._tell(line, _unknown(name), shown_key(name))
                continue
            if key.name in found:
                first = found[key.name].origin.line
                self._tell(line, f"{name} says the same as line {first}; keep one of them", name)
                continue
            try:
                origin = ValueOrigin("file", self._place, line)
                found[key.name] = from_node(key, name, node, origin, self._environ)
            except Unfit as problem:
                self._tell(line, str(problem), name)
        return found

    def _read_environment(self) -> dict[str, Configured]:
        found: dict[str, Configured] = {}
        for key in KEYS.values():
            variable = next((each for each in key.variables if self._environ.get(each)), None)
            if variable is not None:
                try:
                    found[key.name] = from_variable(key, variable, self._environ[variable])
                except Unfit as problem:
                    self.problems.append(ConfigProblem("environment", str(problem), 0, key.name))
        return found

    def _check_store(self, values: Mapping[str, Configured]) -> None:
        """Checkpointing needs a database that outlives the process."""
        if values["stateless_checkpointing"].value is not True:
            return
        said = values["stateless_checkpointing"].origin
        service, url = values["session_service"], values["session_db_url"]
        place = str(said) if said.kind == "file" else "environment"
        reported = {problem.key for problem in self.problems}
        wrong = {
            "session_service": _wrong_service(service.value),
            "session_db_url": _wrong_url(str(url.value)),
        }
        for key, message in wrong.items():
            if message and key not in reported:
                why = f"stateless_checkpointing: true {message}"
                self.problems.append(
                    ConfigProblem(place, why, said.line, "stateless_checkpointing")
                )

    def _check_transport(self, transport: Configured) -> None:
        """Check the files that its URL names: they are needed as soon as it is opened."""
        url = str(transport.value)
        if not is_broker(url):
            return
        place = str(transport.origin) if transport.origin.kind == "file" else "environment"
        for message in read_nats(url).unreadable():
            problem = ConfigProblem(
                place, f"transport: {message}", transport.origin.line, "transport"
            )
            self.problems.append(problem)


def _wrong_service(service: Value) -> str:
    is_wrong = service != "sql"
    return "needs session_service: sql; add it, or switch checkpointing off" if is_wrong else ""


def _wrong_url(url: str) -> str:
    if not url:
        return "needs session_db_url, as in agents.db or postgresql://user@host/database"
    if settings.locate_store(url) == StoreLocation("sqlite", ""):
        return "needs a session_db_url that outlives the process, which memory:// does not"
    return ""


def _content(path: str) -> bytes:
    try:
        with Path(path).open("rb") as file:
            return file.read(documents.MAX_BYTES + 1)
    except FileNotFoundError:
        raise NotFoundError(f"there is no configuration at {path}; name a YAML file") from None
    except ValueError:  # a NUL in the path
        raise InvalidConfig("the configuration's path has a NUL; name a file") from None


def _unknown(name: str) -> str:
    if name == "name":
        return "name belongs into the agent: block; under agents: the block's key is the name"
    if name == "<<":
        return "<< is not read; put what agents share at the top level of the file"
    if shown_key(name) != name:
        return "this key is no word"
    return f"there is no key {name}{nearest(name, [*KEYS, *SPELLINGS, 'agent', 'agents', 'name'])}"


def _warnings(
    values: Mapping[str, Configured], written: Mapping[str, Configured], environ: Mapping[str, str]
) -> list[ConfigProblem]:
    """Return warnings: settings that are legal but may surprise."""
    found: list[ConfigProblem] = []

    def warn(given: Configured, message: str) -> None:
        found.append(ConfigProblem(str(given.origin), message, given.origin.line, given.key))

    checkpointing, url = values["stateless_checkpointing"], values["session_db_url"]
    if checkpointing.value is not True:
        warn(checkpointing, "stateless_checkpointing is off: runs are in memory and end with it")
        if url.origin != DEFAULT:
            warn(url, "session_db_url is not used while stateless_checkpointing is off")
    if values["on_store_failure"].value == "memory":
        failure = values["on_store_failure"]
        warn(failure, "on_store_failure: memory goes on without the store: a crash then loses work")
    for given in written.values():
        if given.is_written_out and KEYS[given.key].show and _has_password(str(given.value)):
            warn(given, f"{given.key} holds a password; keep it outside, as in ${{DB_URL}}")
        if values[given.key].origin.kind == "environment":
            variable = values[given.key].origin.place
            warn(given, f"{given.key} is overridden by the environment variable {variable}")
    return [*found, *_unread(environ)]


def _has_password(url: str) -> bool:
    return ":" in url.partition("://")[2].rpartition("@")[0]


def _unread(environ: Mapping[str, str]) -> list[ConfigProblem]:
    """Report variables that look like ours but are not."""
    known = {variable for key in KEYS.values() for variable in key.variables}
    own = [name.removeprefix(_PREFIX) for name in known if name.startswith(_PREFIX)]
    strange = sorted(name for name in environ if name.startswith(_PREFIX) and name not in known)
    hints = {name: nearest(name.removeprefix(_PREFIX), own) for name in strange}
    return [
        ConfigProblem(
            "environment", f"{name} is not read{hint.replace('mean ', f'mean {_PREFIX}')}"
        )
        for name, hint in hints.items()
        if hint
    ]
