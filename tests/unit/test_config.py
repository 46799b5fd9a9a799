"""Configuration: what counts and why, and every way in which a file can be wrong."""

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast import config
from holdfast.config import Config, documents
from holdfast.config.values import KEYS, SPELLINGS
from holdfast.errors import (
    HoldfastError,
    InvalidConfig,
    InvalidIdentifier,
    InvalidSetting,
    MisuseError,
    NotFoundError,
)
from holdfast.settings import Settings, shown_store, shown_transport

SECRET = "hunter2"
ON = "stateless_checkpointing: true\nsession_service: sql\nsession_db_url: agents.db\n"


class Files:
    """Writes files and loads them with an environment of the test's own."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "agents.yaml"

    def load(self, text: str, *, agent: str | None = None, **environ: str) -> Config:
        self.path.write_text(text, encoding="utf-8")
        return config.load(self.path, agent=agent, environ=environ)

    def check(self, text: str, **environ: str) -> config.ConfigReport:
        self.path.write_text(text, encoding="utf-8")
        return config.check(self.path, environ=environ)

    def problems(self, text: str, *, agent: str | None = None, **environ: str) -> list[str]:
        """What load() complains of, with the file's name taken out."""
        with pytest.raises(InvalidConfig) as raised:
            self.load(text, agent=agent, **environ)
        assert all(problem in str(raised.value) for problem in raised.value.problems)
        return [problem.replace(str(self.path), "") for problem in raised.value.problems]


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


# What counts.


@pytest.mark.mission("S0-071")
def test_checkpointing_is_off_by_default_and_means_memory(files: Files) -> None:
    for found in (files.load(""), files.load("agent:\n"), config.load(None, environ={})):
        assert found.values["stateless_checkpointing"].value is False
        assert found.store_url == "memory://"
        assert found.settings == Settings()
        assert "stateless_checkpointing is off" in str(found.warnings[0])


@pytest.mark.mission("S0-009", "S0-071")
def test_checkpointing_is_switched_on_by_a_bool(files: Files) -> None:
    assert files.load(ON).store_url == "agents.db"
    assert files.problems("stateless_checkpointing: maybe") == [
        ":1: stateless_checkpointing must be true or false, not 'maybe'"
    ]
    assert files.problems("stateless_checkpointing: 1") == [
        ":1: stateless_checkpointing must be true or false, not '1'"
    ]


@pytest.mark.mission("S0-009", "S0-072")
@pytest.mark.parametrize("service", ["", "session_service: memory\n"])
def test_checkpointing_without_a_sql_service_is_an_error(files: Files, service: str) -> None:
    text = f"{service}session_db_url: agents.db\nagent:\n  stateless_checkpointing: true\n"
    (problem,) = files.problems(text)
    line = text.splitlines().index("  stateless_checkpointing: true") + 1
    assert problem.startswith(f":{line}: ")
    assert "needs session_service: sql" in problem


@pytest.mark.mission("S0-009", "S0-072")
@pytest.mark.parametrize("url", ["", "session_db_url: memory://\n"])
def test_checkpointing_without_a_lasting_store_is_an_error(files: Files, url: str) -> None:
    (problem,) = files.problems(f"stateless_checkpointing: true\nsession_service: sql\n{url}")
    assert problem.startswith(":1: stateless_checkpointing: true needs ")
    assert "session_db_url" in problem


def test_all_that_checkpointing_lacks_is_told_at_once(files: Files) -> None:
    told = files.problems("stateless_checkpointing: true\n")
    assert [problem.split("needs ")[1].split(" ")[0].rstrip(":,") for problem in told] == [
        "session_service",
        "session_db_url",
    ]


def test_yaml_is_told_of_without_what_it_holds(files: Files) -> None:
    (told,) = files.problems("tenant: &a &b x\n%hunter2: 'pass\\word'\n")
    assert "hunter2" not in told
    assert "something" not in told


def test_file_of_several_agents_says_how_to_choose(files: Files) -> None:
    (told,) = files.problems("agents:\n  writer: {}\n  the other: {}\n")
    assert told.endswith('; say which one is meant: --agent writer, or agent="writer" in Python')


def test_transport_is_shown_with_its_options_and_without_secrets() -> None:
    options = "?stream=X&prefix=y&creds=/etc/a.creds"
    for login in ("me:hunter2@", "hunter2@", ""):
        assert shown_transport(f"nats://{login}h:4222{options}") == f"nats://h:4222{options}"
    assert shown_transport("nats://me:hun?ter2@h") == "nats://…"
    assert shown_transport("postgresql://me:hunter2@h/db") == "postgresql://me@h/db"


@pytest.mark.mission("S0-073")
@pytest.mark.parametrize(
    "url", ["agents.db", "sqlite:///agents.db", "postgresql://me@db.example/agents"]
)
def test_session_db_url_names_the_store(files: Files, url: str) -> None:
    found = files.load(ON.replace("agents.db", url))
    assert found.store_url == url
    assert str(found.origin("session_db_url")) == f"{files.path}:3"


def test_agent_has_its_block_and_shares_the_rest(files: Files) -> None:
    text = ON + (
        "lease_seconds: 20\nagents:\n  support:\n    lease_seconds: 30\n  research:\n"
        "  other: {peer_timeout_seconds: 5, reader_threads: 2, prepared_statements: off}\n"
    )
    support = files.load(text, agent="support")
    assert (support.agent, support.settings.lease_seconds) == ("support", 30.0)
    assert support.origin("agent").kind == "argument"
    assert files.load(text, agent="research").settings.lease_seconds == 20.0
    other = files.load(text, agent="other")
    assert other.settings == Settings(
        lease_seconds=20, peer_timeout_seconds=5, reader_threads=2, prepared_statements=False
    )
    assert [str(other.origin(key)) for key in ("lease_seconds", "reader_threads", "tenant")] == [
        f"{files.path}:4",
        f"{files.path}:9",
        "default",
    ]
    assert files.check(text).agents == ("support", "research", "other")


def test_one_agent_needs_no_choosing(files: Files) -> None:
    found = files.load("agent:\n  name: support\n  lease_seconds: 4\n")
    assert (found.agent, found.settings.lease_seconds) == ("support", 4.0)
    assert str(found.origin("agent")) == f"{files.path}:2"
    assert files.load("agents:\n  support: {lease_seconds: 4}\n").agent == "support"
    assert files.load("agent:\n  lease_seconds: 4\n", agent="mine").settings.lease_seconds == 4.0
    assert files.load("agent:\n  name: ${WHO}-1\n", WHO="support").agent == "support-1"
    with pytest.raises(MisuseError, match="loaded for 'support' already"):
        config.of(found, agent="research")


def test_agent_that_is_not_there_or_not_said_is_named(files: Files) -> None:
    text = "agents:\n  support:\n  research:\n"
    (problem,) = files.problems(text)
    assert "there are 2 agents: support, research; say which" in problem
    with pytest.raises(NotFoundError, match="did you mean support"):
        files.load(text, agent="suport")
    with pytest.raises(NotFoundError, match="it has support"):
        files.load("agent: {name: support}", agent="research")


def test_every_key_can_be_given_by_file_and_by_variable(files: Files) -> None:
    given: dict[str, str] = {
        "stateless_checkpointing": "true",
        "session_service": "sql",
        "session_db_url": "agents.db",
        "tenant": "acme",
        "prepared_statements": "false",
        "transport": "nats://127.0.0.1:4222",
        "on_store_failure": "memory",
        "on_corruption": "block",
        "spool_folder": "/var/spool/holdfast",
        "model_windows": "my-model=32000",
    }
    numbers = {name: "7" for name, key in KEYS.items() if key.kind in (int, float)}
    wanted = given | numbers
    assert set(wanted) == set(KEYS)
    by_file = files.load("".join(f"{name}: {text}\n" for name, text in wanted.items()))
    first = {KEYS[name].variables[0]: text for name, text in wanted.items()}
    last = {KEYS[name].variables[-1]: text for name, text in wanted.items()}
    for found in (config.load(None, environ=first), config.load(None, environ=last)):
        assert found.settings == by_file.settings != Settings()
        assert found.store_url == by_file.store_url == "agents.db"
        assert {found.origin(name).kind for name in KEYS} == {"environment"}


@pytest.mark.mission("S0-115")
def test_sweep_interval_has_the_names_its_users_know(files: Files) -> None:
    text = "timeout_sweep_interval_seconds: 5\n"
    assert files.load(text).settings.sweep_seconds == 5.0
    found = files.load(text, TIMEOUT_SWEEP_INTERVAL_SECONDS="0.5")
    assert found.settings.sweep_seconds == 0.5
    origin = found.origin("timeout_sweep_interval_seconds")
    assert str(origin) == "environment: TIMEOUT_SWEEP_INTERVAL_SECONDS"
    own = files.load(text, TIMEOUT_SWEEP_INTERVAL_SECONDS="0.5", HOLDFAST_SWEEP_SECONDS="2")
    assert own.settings.sweep_seconds == 2.0
    (problem,) = files.problems(text + "sweep_seconds: 5\n")
    assert problem == ":2: sweep_seconds says the same as line 1; keep one of them"


def test_environment_counts_more_than_the_file_unless_it_is_empty(files: Files) -> None:
    text = ON + "agent:\n  peer_timeout_seconds: 60\n"
    environ = {"PEER_TIMEOUT_SECONDS": "9", "HOLDFAST_STORE": "other.db", "SESSION_DB_URL": "x.db"}
    found = files.load(text, **environ)
    assert (found.settings.peer_timeout_seconds, found.store_url) == (9.0, "other.db")
    told = [str(warning).replace(str(files.path), "") for warning in found.warnings]
    overridden = "is overridden by the environment variable"
    assert f":5: peer_timeout_seconds {overridden} PEER_TIMEOUT_SECONDS" in told
    assert f":3: session_db_url {overridden} HOLDFAST_STORE" in told
    empty = files.load(text, PEER_TIMEOUT_SECONDS="")
    assert empty.settings.peer_timeout_seconds == 60.0


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("${TENANT}", "acme"),
        ("a-${TENANT}-${MISSING:-b}", "a-acme-b"),
        ("${EMPTY:-instead}", "instead"),
        ("'$${TENANT} $5'", "${TENANT} $5"),
        ('"${NUMBER}"', "5"),
    ],
)
def test_variables_in_values_are_replaced(files: Files, written: str, value: str) -> None:
    found = files.load(f"tenant: {written}\n", TENANT="acme", EMPTY="", NUMBER="5")
    assert found.settings.tenant == value


def test_variables_give_numbers_and_switches_too(files: Files) -> None:
    text = "lease_seconds: ${LEASE:-20}\nprepared_statements: ${PREPARE}\n"
    found = files.load(text, PREPARE="no")
    assert (found.settings.lease_seconds, found.settings.prepared_statements) == (20.0, False)


def test_variable_that_is_not_set_is_missed_only_by_who_uses_it(files: Files) -> None:
    text = "agents:\n  support:\n    tenant: ${NOBODY}\n  research:\n"
    assert files.load(text, agent="research").settings == Settings()
    (problem,) = files.problems(text, agent="support")
    assert problem.startswith(":3: the environment variable NOBODY is not set")
    assert len(files.check(text).problems) == 1


# What is wrong.

BROKER = ":1: transport must be a broker's URL without mistakes:"
WRONG = [
    ("lease_second: 4", ":1: there is no key lease_second; did you mean lease_seconds?"),
    ("zebra: 4", ":1: there is no key zebra"),
    ("name: support", ":1: name belongs into the agent: block"),
    ("agents: {support: {name: x}}", ":1: name belongs into the agent: block"),
    ("lease_seconds: soon", ":1: lease_seconds must be a number above 0, not 'soon'"),
    ("lease_seconds: 0", ":1: lease_seconds must be a number above 0, not '0'"),
    ("lease_seconds: 010", ":1: lease_seconds must be a number above 0, not '010'"),
    ("lease_seconds: .inf", ":1: lease_seconds must be a number above 0, not '.inf'"),
    ("lease_seconds: 1e999", ":1: lease_seconds must be a number above 0, not '1e999'"),
    ("lease_seconds: '4'", ":1: lease_seconds must be a number above 0; write it without quotes"),
    ("lease_seconds: [4]", ":1: lease_seconds must be a number above 0, not a list or a block"),
    ("lease_seconds:", ":1: lease_seconds has no value; give one, or remove the line"),
    ("reader_threads: 1.5", ":1: reader_threads must be a whole number above 0, not '1.5'"),
    ("tenant: 5", ":1: tenant must be text; put '5' in quotes"),
    ("tenant: yes", ":1: tenant must be text; put 'yes' in quotes"),
    ("tenant: ''", ":1: tenant must be 1 to 255 printable characters, not ''"),
    ("tenant: ${", ":1: write ${NAME} or ${NAME:-default}"),
    ("session_service: mysql", ":1: session_service must be sql or memory, not 'mysql'"),
    ("session_db_url: mysql://db", ":1: session_db_url must name a store"),
    ("session_db_url: 'postgresql://['", ":1: session_db_url must name a store"),
    ("transport: http://x", ":1: transport must be empty, a broker's URL"),
    ("transport: nats://x:port", f"{BROKER} a server of the NATS URL is host:port, with a port"),
    ("transport: nats://", f"{BROKER} the NATS URL names no host"),
    ("transport: nats://h/x", f"{BROKER} after the servers of the NATS URL come only options"),
    ("transport: nats://to?ken@h", f"{BROKER} write / ? # and @ as % codes in a password"),
    ("transport: nats://h?replicas=many", f"{BROKER} replicas in the NATS URL must be a whole"),
    ("transport: nats://h?patience=-1", f"{BROKER} patience in the NATS URL must be a number"),
    ("transport: nats://h?stream=a.b", f"{BROKER} stream in the NATS URL may have up to 100"),
    ("transport: nats://h?ca=", f"{BROKER} ca in the NATS URL is empty"),
    ("transport: nats://h?ca=x&ca=y", f"{BROKER} the NATS URL has an option twice"),
    ("transport: nats://h?strem=x", f"{BROKER} the NATS URL has strem, which is not known"),
    ("transport: 'nats://[h'", f"{BROKER} the host of the NATS URL cannot be read"),
    ("transport: nats://h?creds=/no/f", ":1: transport: creds=/no/f in the NATS URL names no file"),
    ("transport: tls://h?ca=/no/f", ":1: transport: ca=/no/f in the NATS URL names no file"),
    ("on_store_failure: ignore", ":1: on_store_failure must be raise, memory or spool, not"),
    ("spool_folder: spool", ":1: spool_folder must be empty, or the absolute path of a folder"),
    ("tenant: a\ntenant: b", ":2: tenant is given twice; the first is in line 1"),
    ("agent: {}\nagents: {}", ":2: give agent: for one or agents: for several, not both"),
    ("agent: 5", ":1: agent must be a block of keys and values"),
    ("agents: [a]", ":1: agents must be a block of keys and values"),
    ("agents: {a: 5}", ":1: agent a must be a block of keys and values"),
    ("agent: {name: ''}", ":1: name must be 1 to 255 printable characters, not ''"),
    ("agent: {name: []}", ":1: name must be text, not a list or a block"),
    ("agent: {name: 5}", ":1: name must be text; put '5' in quotes"),
    ("agents: {'': {}}", ":1: an agent's name must be 1 to 255 printable characters"),
    ("- a", ":1: a configuration is keys and values"),
    ("words", ":1: a configuration is keys and values"),
    ("? [a]\n: b", ":1: a key must be a word"),
    ("tenant: !!python/name:os.system x", ":1: tags (!…) are not allowed"),
    ("tenant: !x!y z", ":1: this is not YAML: tags (!…) are not allowed; quote text that"),
    ("tenant: *x", ":1: this alias (*…) has no anchor"),
    ("a: &x {<<: *x}", ":1: this alias (*…) has no anchor"),
    ("agent: {<<: 5}", ":1: << is not read; put what agents share at the top level"),
    ("tenant: a\n---\ntenant: b", ":2: a second document begins here; keep one"),
    ("tenant: [", ":1: this is not YAML: the file ends before a list [ or a block { is closed"),
    ("a: 1\ntenant: [x\n", ":2: this is not YAML: the list that begins here with [ lacks a"),
    ("tenant: {a: 1", ":1: this is not YAML: the block that begins here with { lacks a comma"),
    ("a: 1\ntenant: 'x\n\n", ":2: this is not YAML: the quote that begins here is not closed"),
    ("a: 1\ntenant\n", ":2: this is not YAML: a key without its `:`"),
    ("tenant: a: b", ":1: this is not YAML: a `:` where no key can be; quote a text that has one"),
    ("a:\n  b: 1\n - c\n", ":3: this is not YAML: this does not fit the lines above; check"),
    ("a:\n\tb: 1", ":2: this is not YAML: a tab; indent with spaces"),
    ("tenant: @x", ":1: this is not YAML: a text cannot begin with this character; quote it"),
    ("a: 1\ntenant: \x07", ":2: this is not YAML: it holds a character that YAML does not allow"),
    ('tenant: "\\U99999999"', ":1: this is not YAML: "),
    ("a: " + "[" * 40, ":1: this is nested deeper than 16 levels"),
    ("postgresql://me:hunter2@db: 5", ":1: this key is no word"),
]


@pytest.mark.parametrize(("text", "problem"), WRONG, ids=[text[:30] for text, _ in WRONG])
def test_wrong_file_is_told_with_its_line(files: Files, text: str, problem: str) -> None:
    assert files.problems(text)[0].startswith(problem)
    told = [str(each).replace(str(files.path), "") for each in files.check(text).problems]
    assert told[0].startswith(problem)


def test_all_problems_are_told_at_once_in_order(files: Files) -> None:
    text = "lease_second: 4\ntenant: 5\nagent:\n  batch_commits: 0\n  transport: ftp://x\n"
    problems = files.problems(text, PEER_TIMEOUT_SECONDS="soon", HOLDFAST_TENANT="\n")
    assert [problem.split(" ")[0] for problem in problems] == [
        "environment:",
        "environment:",
        ":1:",
        ":2:",
        ":4:",
        ":5:",
    ]
    assert "PEER_TIMEOUT_SECONDS must be a number above 0, not 'soon'" in " ".join(problems)


def test_aliases_are_read_and_cannot_explode(files: Files) -> None:
    text = "agents:\n  a: &block {lease_seconds: 4}\n  b: *block\n"
    assert files.load(text, agent="b").settings.lease_seconds == 4.0
    bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
        f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 30)
    )
    assert "more than 20,000 values, aliases expanded" in files.problems(bomb)[0]


def test_file_that_is_too_large_or_not_utf8_is_refused(files: Files) -> None:
    assert "at most 262,144 bytes" in files.problems("#" * (documents.MAX_BYTES + 1))[0]
    files.path.write_bytes(b"tenant: a\n# \xff\n")
    with pytest.raises(InvalidConfig, match=r"agents\.yaml:2: this is not UTF-8"):
        config.load(files.path, environ={})


def test_file_that_is_not_there_or_cannot_be_read_is_told(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="there is no configuration at "):
        config.load(tmp_path / "nothing.yaml", environ={})
    with pytest.raises(OSError, match="directory"):
        config.load(tmp_path, environ={})
    with pytest.raises(InvalidConfig, match="NUL"):
        config.load("a\0b", environ={})


def test_surprises_are_warnings(files: Files) -> None:
    text = "session_db_url: agents.db\non_store_failure: memory\n"
    report = files.check(text, HOLDFAST_LEASE_SECOND="4", HOLDFAST_ELSEWHERE="x")
    assert report.problems == ()
    told = " ".join(map(str, report.warnings))
    assert "stateless_checkpointing is off" in told
    assert "session_db_url is not used" in told
    assert "on_store_failure: memory goes on without the store" in told
    assert "HOLDFAST_LEASE_SECOND is not read; did you mean HOLDFAST_LEASE_SECONDS?" in told
    assert "HOLDFAST_ELSEWHERE" not in told
    assert files.check(ON).warnings == ()


def test_missing_library_is_told_with_what_to_install(tmp_path: Path) -> None:
    path = tmp_path / "agents.yaml"
    path.write_text("tenant: a\n", encoding="utf-8")
    code = (
        "import sys; from importlib.machinery import PathFinder\n"
        "class Without(PathFinder):\n"
        "    @classmethod\n"
        "    def find_spec(cls, name, path=None, target=None):\n"
        "        return None if name == 'yaml' else PathFinder.find_spec(name, path, target)\n"
        "sys.meta_path = [f for f in sys.meta_path if f is not PathFinder] + [Without]\n"
        "from holdfast import config, errors\n"
        "assert config.load(None, environ={}).store_url == 'memory://'\n"
        "try: config.load(sys.argv[1], environ={})\n"
        "except errors.MisuseError as error: print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, path], capture_output=True, text=True, timeout=60
    )
    assert "pip install 'holdfast[config]'" in done.stdout, done.stderr


# Any input at all.

words = st.sampled_from(
    [
        *KEYS, *SPELLINGS, "agent", "agents", "name", "support", "true", "5", "-1", "1e9", "${X}",
        "${X:-5}", "sql", "memory://", "a.db", "postgresql://a:b@c/d", "nats://a@b:1", "&a", "*a",
        "<<", "!!x", "? ", "- ", ": ", ":", "{", "}", "[", "]", ",", "'", '"', "|", ">", "#", "%",
        "---", "...", "\n", "\n  ", "\n    ", " ", "\t", "\\", "\x00", "\ufeff", "\U0001f600", "~",
    ]
)  # fmt: skip
texts = st.one_of(
    st.text(max_size=200),
    st.lists(words, max_size=30).map("".join),
    st.lists(st.tuples(words, words), max_size=8).map(
        lambda pairs: "".join(f"{key}: {value}\n" for key, value in pairs)
    ),
)
environments = st.dictionaries(
    st.sampled_from(["X", *(each for key in KEYS.values() for each in key.variables)]),
    st.one_of(st.text(max_size=20), words),
    max_size=3,
)


@given(text=texts, environ=environments, agent=st.none() | st.just("support") | st.text(max_size=3))
@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_no_input_breaks_anything(
    tmp_path: Path, text: str, environ: Mapping[str, str], agent: str | None
) -> None:
    path = tmp_path / "any.yaml"
    path.write_bytes(text.encode("utf-8", errors="surrogatepass"))
    report = config.check(path, environ=environ)
    try:
        found = config.load(path, agent=agent, environ=environ)
    except (InvalidConfig, NotFoundError) as error:
        refused: HoldfastError | None = error
    else:
        refused = None
        assert isinstance(found.settings, Settings)
        assert shown_store(found.store_url)
        assert set(found.values) == {"agent", *KEYS}
    if not report.problems and (agent in report.agents or not report.agents):
        assert refused is None


@given(content=st.binary(max_size=300))
@settings(max_examples=100, deadline=None)
def test_no_bytes_break_the_reader(content: bytes) -> None:
    document = documents.parse(content)
    assert document.root is not None or document.faults


# Secrets.


@pytest.mark.parametrize(
    "text",
    [
        ON.replace("agents.db", f"postgresql://me:{SECRET}@db/agents"),
        ON.replace("agents.db", f"postgresql://me:a/{SECRET}@db/agents"),
        ON.replace("agents.db", f"postgresql://me@db/agents?password={SECRET}"),
        ON.replace("agents.db", "postgresql://me:${PASSWORD}@db/agents"),
        f"session_db_url: mysql://me:{SECRET}@db/agents\n",
        f"session_db_url: [{SECRET}]\n",
        f"session_db_url: postgresql://me:{SECRET}@db: x\n",
        f"session_db_url: *{SECRET}\n",
        f"session_db_url: !{SECRET}!x y\n",
        f"session_db_url: &{SECRET} *x\n",
        f"session_db_url:\n  postgresql://me:{SECRET}@db: 5\n",
        f"postgresql://me:{SECRET}@db: 5\npostgresql://me:{SECRET}@db: 5\n",
        f"agents:\n  postgresql://me:{SECRET}@db: 5\n",
        f"agent:\n  name: postgresql://me:{SECRET}@db\n",
        f"lease_seconds: postgresql://me:{SECRET}@db\n",
        f"transport: nats://{SECRET}@broker:4222\n",
        f"transport: nats://me:{SECRET}@broker:4222,tls://me:{SECRET}@other\n",
        f"transport: http://me:{SECRET}@broker:4222\n",
        "lease_seconds: ${PASSWORD}\ntenant: ${PASSWORD}\n" + '"${PASSWORD}": 5\n',
        "on_store_failure: ${PASSWORD}\nsession_service: ${PASSWORD}x\n",
    ],
)
def test_secret_is_never_in_anything_that_is_printed(files: Files, text: str) -> None:
    environ = {"PASSWORD": SECRET}
    report = files.check(text, **environ)
    printed = [repr(report)]
    try:
        found = files.load(text, **environ)
    except HoldfastError as error:
        printed += [str(error), repr(error)]
    else:
        printed += [repr(found), repr(found.settings)]
        printed += [str(value.shown) for key, value in found.values.items() if key != "tenant"]
        printed += [shown_store(found.store_url), shown_transport(found.settings.transport)]
    assert SECRET not in " ".join(printed)


@pytest.mark.parametrize("variable", ["HOLDFAST_STORE", "SESSION_DB_URL", "HOLDFAST_TRANSPORT"])
@pytest.mark.parametrize("scheme", ["postgresql", "nats", "what"])
def test_secret_of_a_variable_is_not_printed(files: Files, variable: str, scheme: str) -> None:
    report = files.check(ON, **{variable: f"{scheme}://me:{SECRET}@host:4222"})
    assert SECRET not in repr(report)


def test_password_written_into_the_file_is_warned_of(files: Files) -> None:
    (warning,) = files.check(ON.replace("agents.db", f"postgresql://me:{SECRET}@db/a")).warnings
    assert "session_db_url holds a password; keep it outside" in str(warning)
    outside = ON.replace("agents.db", "postgresql://me:${PASSWORD}@db/a")
    assert files.check(outside, PASSWORD=SECRET).warnings == ()


# Settings that are new with it.


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("peer_timeout_seconds", 0),
        ("sweep_seconds", -1),
        ("sweep_seconds", "1"),
        ("transport", "http://x"),
        ("transport", None),
        ("on_store_failure", "disk"),
        ("spool_folder", "here"),
        ("on_store_failure", None),
    ],
)
def test_setting_with_a_bad_value_is_refused(name: str, value: object) -> None:
    with pytest.raises(InvalidSetting, match=f"^{name} must be "):
        Settings(**{name: value})  # type: ignore[arg-type]


def test_settings_refuse_without_telling_secrets() -> None:
    with pytest.raises(InvalidSetting) as raised:
        Settings(transport=f"http://me:{SECRET}@broker")
    assert SECRET not in str(raised.value)
    with pytest.raises(InvalidIdentifier):
        Settings(tenant="")
