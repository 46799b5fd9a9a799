"""Secrets: given where they are used, and in no stored byte, log, event or outcome."""

import base64
import html
import json
import logging
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

import pytest

import holdfast
from holdfast import codec
from holdfast.errors import BlockFailed, NotDone, WorkflowInvalid
from holdfast.testing.store_suite import async_test
from holdfast.workflows import Block
from holdfast.workflows.access.secrets import Secrets, environment_secrets, file_secrets, named_in
from tests.backends import Backend
from tests.workflows.reaching import block, flow, opened, result
from tests.workflows.unchecked import started_unchecked
from tests.workflows.web import Web, serving

HERE = "memory://"
SEAL = "0123456789abcdef"
ODD = 'pa\'ss "wörd"\\/&+%$x'
CANARY = "cAnArY-7f3e'\"9!zq/+ü"
PLAIN = "canary_plain_5d1c88"


def secrets(**values: str) -> Secrets:
    return Secrets(values.get, SEAL)


def ref(made: Secrets, name: str) -> str:
    return str(made.reference(name))


def written(value: str) -> dict[str, str]:
    """The ways in which a program may show a text."""
    raw = value.encode()
    coded = [base64.b64encode(b"x" * at + raw).decode() for at in range(3)]
    return {
        "as it is": value,
        "json": json.dumps(value)[1:-1],
        "json in unicode": json.dumps(value, ensure_ascii=False)[1:-1],
        "url": quote(value, safe=""),
        "form": quote_plus(value),
        "shell": shlex.quote(value).strip("'"),
        "repr": repr(value)[1:-1],
        "bytes": repr(raw)[2:-1],
        "html": html.escape(value),
        "hex": raw.hex(),
        "base64": coded[0],
        "base64 from 1": coded[1],
        "base64 from 2": coded[2],
        "base64 for urls": base64.urlsafe_b64encode(raw).decode(),
    }


def telling(form: str, shown: str) -> str:
    """What of it would tell the secret: of base64 not the ends, which may hold others' bits."""
    return shown[4:-4] if form.startswith("base64") else shown


@pytest.fixture
def web() -> Iterator[Web]:
    with serving() as served:
        yield served


@pytest.mark.parametrize("form", written(ODD))
def test_a_value_is_taken_out_in_every_form(form: str) -> None:
    made = secrets(odd=ODD)
    made.reveal(ref(made, "odd"))
    shown = written(ODD)[form]
    told = made.redact({"text": f"before {shown} after", "raw": [shown.encode()], shown: 1})
    assert told["text"].startswith("before ")
    assert told["text"].endswith(" after")
    assert telling(form, shown) not in repr([*told, told["text"], told["raw"][0].decode()])


def test_lines_of_a_value_and_wrapped_base64_are_taken_out() -> None:
    key = "-----BEGIN KEY-----\n" + "\n".join(f"line{n}" * 8 for n in range(4)) + "\n"
    made = secrets(key=key)
    made.reveal(ref(made, "key"))
    assert made.redact(f"> {key.splitlines()[2]} <") == "> *** <"
    assert "line2" not in made.redact(key.replace("\n", "\n| "))
    wrapped = base64.encodebytes(key.encode()).decode()
    assert not [line for line in wrapped.splitlines()[:-1] if line[4:-4] in made.redact(wrapped)]


def test_a_reference_is_revealed_wherever_it_stands() -> None:
    made = secrets(a="alpha", b="beta!")
    given = {ref(made, "a"): [f"x{ref(made, 'a')}{ref(made, 'b')}", ref(made, "b").encode(), 1]}
    assert made.names_in(given) == {"a", "b"}
    assert made.reveal(given) == {"alpha": ["xalphabeta!", b"beta!", 1]}


@pytest.mark.parametrize(
    ("value", "reason"),
    [(None, "there is no secret 'x' here"), ("abc", "fewer than 4"), ("  a\n ", "fewer than 4")],
)
def test_a_secret_that_cannot_be_had_is_told(value: str | None, reason: str) -> None:
    made = Secrets({"x": value}.get, SEAL)
    with pytest.raises(BlockFailed, match=reason):
        made.reveal(ref(made, "x"))


CHANGING = [
    "{{ secrets.x | upper }}",
    "{{ secrets.x | truncate(12, true, '', 0) }}",
    "{{ secrets.x | base64 }}",
    "{{ ('user:' ~ secrets.x) | base64 }}",
    "{{ ('a' ~ secrets.x) | upper }}",
    "{{ ('a' ~ secrets.x) | urlencode }}",
    "{{ ('a' ~ secrets.x)[5:] }}",
    "{{ ('a' ~ secrets.x) | reverse }}",
    "{{ secrets.x | length }}",
    "{{ secrets.x | int }}",
    "{{ secrets.x | float }}",
    "{{ secrets.x == 'guess' }}",
    "{{ secrets.x[0] }}",
    "{{ secrets['no name'] }}",
]
SEEN_AT_RUN_TIME = ("{{ ('a' ~ secrets.x)[5:] }}", "{{ secrets.x[0] }}", "{{ secrets['no name'] }}")


@pytest.mark.parametrize("expression", [e for e in CHANGING if e not in SEEN_AT_RUN_TIME])
@async_test
async def test_a_definition_that_changes_a_secret_is_not_started(
    tmp_path: Path, expression: str
) -> None:
    async with opened(HERE, tmp_path, secrets={"x": "valuable"}) as hf:
        with pytest.raises(WorkflowInvalid, match="use it as it is"):
            await hf.workflows.run(flow(block("Shell", command=["echo", expression])), run_id="r")
        assert await hf.workflows.list() == []


@pytest.mark.parametrize("expression", CHANGING)
@async_test
async def test_a_secret_can_only_be_put_in_as_it_is(tmp_path: Path, expression: str) -> None:
    made = flow(block("Shell", command=["echo", expression]))
    async with opened(HERE, tmp_path, secrets={"x": "valuable"}) as hf:
        found = (await started_unchecked(hf, made)).blocks["it"]
    assert found.status == "failed"
    assert not found.outputs


@pytest.mark.parametrize(
    ("expression", "given"),
    [
        ("{{ secrets.x }}", "valuable"),
        ("{{ secrets['x'] | trim }}", "valuable"),
        ("a{{ secrets.x }}b", "avaluableb"),
        ("{{ 'a' ~ secrets.x ~ 'b' }}", "avaluableb"),
        ("{{ 'a' + secrets.x + 'b' }}", "avaluableb"),
        ("{{ [secrets.x, 'b'] | join('-') }}", "valuable-b"),
    ],
)
@async_test
async def test_a_secret_is_given_to_a_command(tmp_path: Path, expression: str, given: str) -> None:
    made = block("Shell", command=["sh", "-c", 'printf %s "$0" > got', expression])
    found = await result(HERE, tmp_path, made, secrets={"x": "valuable"})
    assert (found.status, found.error) == ("completed", "")
    assert (tmp_path / "got").read_text() == given


@async_test
async def test_a_text_that_looks_like_a_reference_of_another_run_is_left_alone(
    tmp_path: Path,
) -> None:
    other = str(secrets().reference("x"))
    made = block("Shell", command=["printf", "%s", other])
    found = await result(HERE, tmp_path, made, secrets={"x": "valuable"})
    assert found.outputs["stdout"] == other


@async_test
async def test_a_secret_means_nothing_to_the_shell(tmp_path: Path) -> None:
    value = "x'; touch hacked; '"
    outcome = await result(
        HERE, tmp_path, block("Shell", command="echo '{{ secrets.x }}'"), secrets={"x": value}
    )
    assert outcome.status == "failed"
    assert "put it in env" in outcome.error
    assert not (tmp_path / "hacked").exists()
    by_env = block("Shell", command='printf %s "$V" > got', env={"V": "{{ secrets.x }}"})
    await result(HERE, tmp_path, by_env, secrets={"x": value})
    assert (tmp_path / "got").read_text() == value


@async_test
async def test_a_secret_that_is_missing_has_let_nothing_happen(tmp_path: Path) -> None:
    async with opened(HERE, tmp_path, tools=[leak]) as hf:
        made = flow(
            block("Shell", "shell", command=["echo", "{{ secrets.no }}"]),
            block("HttpCall", "http", method="POST", url="http://127.0.0.1:1/{{ secrets.no }}"),
            block("Tool", "tool", tool="leak", args={"how": "x", "value": "{{ secrets.no }}"}),
        )
        outcome = await hf.workflows.run(made, run_id="r")
        begun = await hf.effects.of_run("r")
    assert (outcome.status, begun) == ("blocked", [])
    assert "secret 'no' (HOLDFAST_SECRET_NO" in outcome.error


def test_secrets_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_SECRET_API_TOKEN", "first")
    monkeypatch.setenv("WORKFLOW_SECRET_API_TOKEN", "second")
    monkeypatch.setenv("WORKFLOW_SECRET_OTHER", "third")
    source = environment_secrets()
    found = [source(name) for name in ("api_token", "api-token", "OTHER", "none")]
    assert found == ["first", "first", "third", None]


@async_test
async def test_commands_do_not_get_the_secrets_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_SECRET_OTHER", "valuable-one")
    monkeypatch.setenv("WORKFLOW_SECRET_OTHER", "valuable-two")
    found = await result(HERE, tmp_path, block("Shell", command="env"))
    assert "PATH=" in found.outputs["stdout"]
    assert "SECRET" not in found.outputs["stdout"]


def test_secrets_come_from_files(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("valuable\n")
    (tmp_path / "raw").write_bytes(b"\xff\xfe")
    (tmp_path / "folder").mkdir()
    source = file_secrets(tmp_path)
    names = ("token", "none", "folder", "..", "../token", ".")
    assert [source(name) for name in names] == ["valuable", *[None] * 5]
    with pytest.raises(BlockFailed, match="cannot be read as text"):
        source("raw")


def test_names_of_secrets_are_found_in_definitions() -> None:
    texts = ["{{ secrets.one }}", "{% if secrets['two'] %}{% endif %}", "{{ secrets[inputs.x] }}"]
    made = {"a": texts, "b": "no secrets here"}
    assert named_in(made) == {"one", "two"}


@async_test
async def test_what_was_used_before_a_pause_is_taken_out_after_it(tmp_path: Path) -> None:
    """The process that goes on has not revealed the secret, and meets it all the same."""
    made = flow(
        block("Shell", "put", command=["sh", "-c", 'printf %s "$0" > kept', "{{ secrets.x }}"]),
        block("Prompt", "ask", prompt="on?", options={"depends_on": ["put"]}),
        block("ReadFiles", "read", paths=["kept"], options={"depends_on": ["ask"]}),
    )
    store = str(tmp_path / "store.db")
    async with opened(store, tmp_path, secrets={"x": "valuable"}) as hf:
        assert (await hf.workflows.run(made, run_id="r")).status == "waiting"
    async with opened(store, tmp_path, secrets={"x": "valuable"}) as hf:
        outcome = await hf.workflows.resume("r", {"ask": "yes"})
    assert outcome.blocks["read"].outputs["files"][0]["content"] == "***"


class Odd(Exception):
    """Says what it was not given in its arguments."""

    def __init__(self, value: str) -> None:
        super().__init__("odd")
        self.value = value

    def __str__(self) -> str:
        return f"odd {self.value}"


@dataclass
class Holder:
    value: str


class Opaque:
    def __init__(self, value: str) -> None:
        self.value = value

    def __str__(self) -> str:
        return f"opaque {self.value}"


def leaking(how: str, value: str) -> Any:
    if how == "file":
        raise FileNotFoundError(2, "missing", value)
    if how == "odd":
        raise Odd(value)
    if how == "not done":
        raise NotDone(f"not {value}")
    if how == "chained":
        try:
            raise KeyError(value)
        except KeyError as error:
            raise ValueError("no") from error
    if how == "noted":
        error = ValueError("no")
        error.add_note(value)
        raise error
    return {"holder": Holder(value), "opaque": Opaque(value), "bytes": value.encode()}[how]


@holdfast.tool(in_doubt="fail")
async def leak(how: str, value: str) -> Any:
    return leaking(how, value)


@holdfast.tool(effect="idempotent")
def leak_blocking(how: str, holder: Holder) -> Any:
    return leaking(how, holder.value)


async def found_again(value: str) -> holdfast.Happened[Holder]:
    return holdfast.Happened(Holder(value))


@holdfast.tool(verify=found_again)
async def leak_verified(value: str) -> Holder:
    raise ConnectionError(value)


@pytest.mark.parametrize("name", ["leak", "leak_blocking"])
@async_test
async def test_error_of_a_tool_that_was_given_a_secret_fails_its_block(
    tmp_path: Path, name: str
) -> None:
    """The error says what it said, without the secret."""
    value = "{{ secrets.plain }}"
    given: dict[str, Any] = {"value": value} if name == "leak" else {"holder": {"value": value}}
    used = block("Tool", tool=name, args={"how": "not done", **given})
    found = await result(
        HERE, tmp_path, used, secrets={"plain": PLAIN}, tools=[leak, leak_blocking]
    )
    assert found.status == "failed"
    assert found.error is not None
    assert "not ***" in found.error


def leaky_blocks(web: Web) -> list[Block]:
    """Blocks that are given secrets in every way, and show them in every way."""
    odd, plain = "{{ secrets.odd }}", "{{ secrets.plain }}"
    forms = (
        'printf %s "$V" | base64; printf %s "$V" | od -An -tx1 | tr -d \' \\n\'; '
        'printf "%s\\n" "$V" "$0" >&2; cat; env; '
    )
    words = ["sh", "-c", f"{forms} exit $CODE", odd]
    env = {"V": odd, "CODE": "0"}
    shells = [
        block("Shell", "ok", command=words, env=env, stdin=f"in {odd}"),
        block("Shell", "bad", command=words, env={**env, "CODE": "7"}, stdin=plain),
        block("Shell", "text", command=f"echo {plain} >&2; exit 9"),
        block("Shell", "slow", command=f"echo {plain}; sleep 60", options={"timeout": 0.5}),
        block("Shell", "none", command=[odd]),
        block("Shell", "seen", command='echo "$V"', env={"V": plain}, effect="read"),
    ]
    sent = {
        "headers": {"Token": plain, "Cookie": f"a={plain}"},
        "params": {"q": odd},
        "auth": {"username": "user", "password": odd},
    }
    url = f"{web.url}/echo/{plain}"
    https = [
        block("HttpCall", "echo", url=url, method="POST", json={"deep": [odd], odd: 1}, **sent),
        block("HttpCall", "body", url=url, method="PUT", body=f"<{odd}>", **sent),
        block("HttpCall", "refused", url=f"http://127.0.0.1:1/{plain}", method="POST", **sent),
        block("HttpCall", "bad_url", url=f"ftp://{plain}", **sent),
        block("HttpCall", "status", url=f"{web.url}/status/500", method="POST", body=odd),
    ]
    hows = ("file", "odd", "not done", "chained", "noted", "holder", "opaque", "bytes")
    tools = [
        block("Tool", f"t{at}", tool="leak", args={"how": how, "value": odd})
        for at, how in enumerate(hows)
    ]
    tools += [
        block("Tool", f"b{at}", tool="leak_blocking", args={"how": how, "holder": {"value": odd}})
        for at, how in enumerate(hows)
    ]
    tools.append(block("Tool", "verified", tool="leak_verified", args={"value": odd}))
    files = [
        block("CreateFile", "create", path="secret.conf", content=f"token={odd}\n"),
        block("ReadFiles", "read", paths=["secret.*"], options={"depends_on": ["create"]}),
        block(
            "EditFile",
            "edit",
            path="secret.conf",
            edits=[{"old": odd, "new": plain}, {"operation": "append", "new": odd}],
            options={"depends_on": ["read"]},
        ),
    ]
    return shells + https + tools + files


@async_test
async def test_no_byte_anywhere_has_a_secret(
    backend: Backend, tmp_path: Path, web: Web, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    root, told = tmp_path / "root", list[Any]()
    root.mkdir()
    values = {"odd": CANARY, "plain": PLAIN}
    tools = [leak, leak_blocking, leak_verified]
    async with opened(backend.url, root, secrets=values, tools=tools) as hf:
        made = flow(*leaky_blocks(web))
        outcome = await hf.workflows.run(made, run_id="r", timeout=60, observe=told.append)
        bodies = [repr(entry) for entry in await hf.journal.read("r")]
        rows = stored(backend)
    assert outcome.status == "failed"
    assert (root / "secret.conf").read_text() == f"token={PLAIN}\n{CANARY}"
    assert any(CANARY in request["body"] for request in web.seen)
    assert {outcome.blocks[name].status for name in ("ok", "seen", "echo", "edit")} == {"completed"}
    places = {
        "the outcome": repr(outcome),
        "events": repr(told),
        "logs": caplog.text + repr([record.__dict__ for record in caplog.records]),
        "the journal": "".join(bodies),
        "rows": rows,
    }
    places |= {
        f"file {file.name}": file.read_bytes().decode("latin-1")
        for file in tmp_path.glob("store.db*")
    }
    found = [
        f"{place} has {name} {form}"
        for place, text in places.items()
        for name, value in values.items()
        for form, shown in written(value).items()
        if (core := telling(form, shown)) in text or core.encode().decode("latin-1") in text
    ]
    assert found == []


def stored(backend: Backend) -> str:
    """Every column of every row of the journal, and every body as it was before compression."""
    with backend.raw() as raw:
        rows = raw.entries()
    texts = [repr(rows)]
    for row in rows:
        body, encoding = row[-2], row[7]
        if body:
            texts.append(codec.unpack(encoding, bytes(body)).decode("latin-1"))
    return "".join(texts)
