"""What was tried and what became of it: one line of JSON each, in a file that is committed."""

import json
import os
import tomllib
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tools.mutants.mutant import Mutant
from tools.mutants.running import Verdict

FILE = Path("tools", "mutants", "results.jsonl")
EQUIVALENT = Path("tools", "mutants", "equivalent.toml")


def load(root: Path) -> dict[str, dict[str, Any]]:
    """The newest result for each mutant, by its id."""
    file = root / FILE
    lines = file.read_text().splitlines() if file.exists() else []
    return {each["id"]: each for each in map(json.loads, lines)}


def killers(root: Path) -> dict[str, set[str]]:
    """Which tests have killed mutants of each file."""
    found: dict[str, set[str]] = {}
    for each in load(root).values():
        if each["verdict"] == "killed":
            found.setdefault(each["path"], set()).add(each["test"])
    return found


def add(root: Path, mutant: Mutant, verdict: Verdict, *, commit: str, seed: int) -> None:
    """Append in one write, so that shards may run at the same time."""
    line = {
        "id": mutant.id,
        "area": mutant.area,
        "path": mutant.path,
        "line": mutant.line,
        "operator": mutant.operator,
        "change": mutant.change,
        **asdict(verdict),
        "commit": commit,
        "seed": seed,
    }
    file = os.open(root / FILE, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(file, json.dumps(line, ensure_ascii=False).encode() + b"\n")
    finally:
        os.close(file)


def explained(root: Path) -> dict[str, str]:
    """Why some survivors change nothing that anybody could notice, by their ids."""
    with (root / EQUIVALENT).open("rb") as file:
        found: list[dict[str, str]] = tomllib.load(file).get("equivalent", [])
    return {each["id"]: each["reason"] for each in found}
