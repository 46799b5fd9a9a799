"""Stored values that want to be code: each is refused by name, and nothing runs or is imported.

The payloads are those of the advisories against LangGraph's serializers. They are read in a process
of their own, where an audit hook tells what happened.
"""

import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import ormsgpack
import pytest

from holdfast.errors import CheckpointCorrupted, HoldfastError, TypeNotAllowed, UnsupportedValue
from holdfast.integrations.langgraph.values.serde import strict_serde
from holdfast.integrations.langgraph.values.values import Values

EXTENSIONS = range(-128, 128)


class _Exploit:
    def __reduce__(self) -> Any:
        return (print, ("pickle ran",))


def extension(code: int, *parts: object) -> tuple[str, bytes]:
    """A value as LangGraph's MessagePack stores objects."""
    return "msgpack", ormsgpack.packb(ormsgpack.Ext(code, ormsgpack.packb(parts)))


def lc(**fields: object) -> tuple[str, bytes]:
    return "json", json.dumps(fields).encode()


def deep(depth: int) -> tuple[str, bytes]:
    data = ormsgpack.packb("x")
    for _ in range(depth):
        data = ormsgpack.packb(ormsgpack.Ext(0, ormsgpack.packb(("builtins", "set", ())) + data))
    return "msgpack", data


def nested(depth: int) -> tuple[str, bytes]:
    data = ormsgpack.packb([])
    for _ in range(depth):
        data = ormsgpack.packb(ormsgpack.Ext(7, data))
    return "msgpack", data


OS_SYSTEM = {"lc": 2, "type": "constructor", "id": ["os", "system"]}
NOT_ALLOWED: dict[str, tuple[str, bytes]] = {
    # CVE-2025-64439: "json" mode made what the data named.
    "CVE-2025-64439": lc(**OS_SYSTEM, kwargs={"command": "touch ran"}),
    "CVE-2025-64439 args": lc(**OS_SYSTEM, args=["touch ran"]),
    "CVE-2025-64439 nested": lc(a=[{"b": {**OS_SYSTEM, "args": ["touch ran"]}}]),
    "json subprocess": lc(
        lc=2, type="constructor", id=["subprocess", "Popen"], args=[["touch", "ran"]]
    ),
    "json safe type": lc(lc=2, type="constructor", id=["builtins", "set"], args=[[1]]),
    "json lc 1": lc(
        lc=1, type="constructor", id=["langchain_core", "messages", "HumanMessage"], kwargs={}
    ),
    "json secret": lc(lc=1, type="secret", id=["PATH"]),
    # GHSA-fjqc-hq36-qh5p: the data named a method of what it named.
    "GHSA-fjqc": lc(
        lc=2,
        type="constructor",
        id=["pydantic", "BaseModel"],
        method=[None, "parse_raw"],
        kwargs={"b": "x", "proto": "pickle"},
    ),
    # CVE-2026-28277: a MessagePack extension named what to import and call.
    "CVE-2026-28277 one argument": extension(0, "os", "system", "touch ran"),
    "CVE-2026-28277 arguments": extension(1, "os", "system", ["touch ran"]),
    "CVE-2026-28277 keywords": extension(2, "os", "system", {"command": "touch ran"}),
    "CVE-2026-28277 method": extension(3, "builtins", "str", "touch ran", "format"),
    "CVE-2026-28277 pydantic 1": extension(4, "subprocess", "Popen", {"args": ["touch", "ran"]}),
    "CVE-2026-28277 pydantic 2": extension(
        5, "subprocess", "Popen", {"args": ["touch", "ran"]}, "model_validate_json"
    ),
    "import": extension(0, "antigravity_of_the_payload", "x", 1),
    "safe type, other method": extension(3, "datetime", "datetime", "2026-01-01", "strptime"),
    "method of another safe type": extension(3, "uuid", "UUID", "x", "fromisoformat"),
    "safe module": extension(0, "pathlib", "os", 1),
    "dotted name": extension(0, "datetime", "datetime.now", 1),
    "builtins": extension(0, "builtins", "eval", "open('ran', 'w')"),
    "no name": extension(0, ["os"], {"system": 1}, 1),
    "hidden in a list": ("msgpack", b"\x91" + extension(0, "os", "system", "touch ran")[1]),
    "hidden in an argument": (
        "msgpack",
        ormsgpack.packb(
            ormsgpack.Ext(
                0,
                b"\x93\xa8builtins\xa3set" + extension(1, "os", "system", ["touch ran"])[1],
            )
        ),
    ),
    # CVE-2026-27794: pickle as a second codec.
    "CVE-2026-27794": ("pickle", pickle.dumps(_Exploit())),
    "unknown codec": ("yaml", b"!!python/object/apply:os.system ['touch ran']"),
    "unknown extension": extension(99, "os", "system", "touch ran"),
    # T10: a row without a cipher's name.
    "T10": ("msgpack+aes", b"x"),
}
DAMAGED: dict[str, tuple[str, bytes]] = {
    "empty": ("msgpack", b""),
    "cut": ("msgpack", extension(0, "builtins", "set", [1])[1][:-3]),
    "trailing": ("msgpack", ormsgpack.packb(1) + b"\x01"),
    "claims much": ("msgpack", b"\xdd\xff\xff\xff\xff"),
    "not utf-8": ("msgpack", b"\xa2\xff\xfe"),
    "lists 100,000 deep": ("msgpack", b"\x91" * 100_000 + b"\x01"),
    "objects 3,000 deep": nested(3_000),
    "too few parts": extension(0, "builtins"),
    "too many parts": extension(0, "builtins", "set", 1, 2),
    "parts of another kind": ("msgpack", ormsgpack.packb(ormsgpack.Ext(0, ormsgpack.packb("abc")))),
    "arguments are no list": extension(1, "builtins", "set", "abc"),
    "trailing in an object": deep(1),
    "not JSON": ("json", b"{"),
    "JSON 100,000 deep": ("json", b"[" * 100_000),
}
UNMAKEABLE: dict[str, tuple[str, bytes]] = {
    "uuid": extension(0, "uuid", "UUID", "no"),
    "decimal": extension(0, "decimal", "Decimal", "x"),
    "zone": extension(0, "zoneinfo", "ZoneInfo", "../../../etc/passwd"),
    "message": extension(5, "langchain_core.messages.human", "HumanMessage", {"content": 1}, "x"),
    "keywords are no dict": extension(2, "langgraph.types", "Interrupt", [1]),
    "keys are no text": extension(2, "langgraph.types", "Interrupt", {"1": 1}),
    "array": extension(6, "|O", [1], "C", b"12345678"),
}
HOSTILE: dict[str, tuple[tuple[str, bytes], type[HoldfastError]]] = {
    **{name: (stored, TypeNotAllowed) for name, stored in NOT_ALLOWED.items()},
    **{name: (stored, CheckpointCorrupted) for name, stored in DAMAGED.items()},
    **{name: (stored, UnsupportedValue) for name, stored in UNMAKEABLE.items()},
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_value_is_refused_by_a_typed_error(name: str) -> None:
    stored, error = HOSTILE[name]
    with pytest.raises(error):
        strict_serde().loads_typed(stored)


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_value_is_refused_as_a_token_too(name: str) -> None:
    stored, error = HOSTILE[name]
    token = msgspec.msgpack.encode([0, *stored])
    for kind in ("list", "value"):
        with pytest.raises(error):
            Values(strict_serde()).assemble(kind, [token])


@pytest.mark.parametrize("code", [code for code in EXTENSIONS if not -1 <= code <= 7])
def test_extension_of_another_type_is_refused(code: int) -> None:
    """-1 is MessagePack's own time."""
    with pytest.raises((TypeNotAllowed, CheckpointCorrupted)):
        strict_serde().loads_typed(("msgpack", b"\xd4" + code.to_bytes(1, signed=True) + b"x"))


READS_ALL = """
import json, sys
from base64 import b64decode
from holdfast.errors import HoldfastError
from holdfast.integrations.langgraph.values.serde import strict_serde

serde = strict_serde()
# What safe types need is imported before anybody listens; numpy is named by our code, not by data.
serde.loads_typed(serde.dumps_typed({1}))
BAD = {"os.system", "os.exec", "os.posix_spawn", "subprocess.Popen", "pickle.find_class",
       "marshal.loads", "exec", "compile", "open"}
seen, events = [], []

def hook(event, args):
    if not seen:
        return
    if event in BAD:
        events.append([seen[-1], event, repr(args)[:80]])
    if event == "import" and args[0] in ("antigravity_of_the_payload", "subprocess"):
        events.append([seen[-1], event, args[0]])

sys.addaudithook(hook)
modules = set(sys.modules)
answers = {}
for name, kind, data in json.loads(sys.stdin.read()):
    seen.append(name)
    try:
        answers[name] = repr(serde.loads_typed((kind, b64decode(data))))
    except HoldfastError as error:
        answers[name] = type(error).__name__
    seen.clear()
new = sorted(set(sys.modules) - modules)
print(json.dumps({"answers": answers, "events": events, "new": new}))
"""


@pytest.mark.parametrize("strict", ["false", "true"])
@pytest.mark.parametrize("flags", [[], ["-O"]], ids=["", "-O"])
def test_nothing_is_imported_or_run_that_stored_data_names(
    flags: list[str], strict: str, tmp_path: Path
) -> None:
    """Under -O too, where LangGraph's checks by `assert` are gone, and whatever its flag says."""
    payloads = [
        (name, stored[0], stored[1])
        for name, (stored, _) in HOSTILE.items()
        if name not in ("array", "zone")  # these read an installed file, by a name that we chose
    ]
    done = subprocess.run(
        [sys.executable, *flags, "-c", READS_ALL],
        input=msgspec.json.encode(payloads),
        capture_output=True,
        cwd=tmp_path,
        env={"PYTHONPATH": ":".join(sys.path), "LANGGRAPH_STRICT_MSGPACK": strict},
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    told = json.loads(done.stdout)
    expected = {name: HOSTILE[name][1].__name__ for name, _, _ in payloads}
    assert told["answers"] == expected
    assert told["events"] == []
    assert not any(name.startswith("antigravity") for name in told["new"])
    assert list(tmp_path.iterdir()) == []


def test_the_hook_would_have_told(tmp_path: Path) -> None:
    """The same listener hears LangGraph's own serializer run a command out of stored data."""
    theirs = READS_ALL.replace(
        "from holdfast.integrations.langgraph.values.serde import strict_serde",
        "from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer as strict_serde",
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", theirs],
        input=msgspec.json.encode([("x", *NOT_ALLOWED["CVE-2026-28277 one argument"])]),
        capture_output=True,
        cwd=tmp_path,
        env={"PYTHONPATH": ":".join(sys.path), "PATH": "/usr/bin:/bin"},
        timeout=600,
        check=False,
    )
    told = json.loads(done.stdout)
    assert [event for _, event, _ in told["events"]] == ["os.system"]
    assert (tmp_path / "ran").exists()
