"""Random trees of runs that pay, and what they must have paid: counted from the tree alone.

A program is turns of operations. `pay` makes a call of a tool with some key policy, `peer` lets
another run of the same agent carry out a program, `start` begins one that pays (see STARTS), `both`
does two operations at once, `flow` is a workflow with a tool, a workflow below it and a loop of
agents, `ask` waits for a person, `fail` raises until the code is mended. Nothing of Holdfast is
used here.
"""

import random
from collections import Counter
from typing import Any

MUTATING = ("args", "repeat", "place", "call", "tenant", "own")
POLICIES = (*MUTATING, "safe")
"""How tools key their calls; `safe` is idempotent: it may be repeated, but under its key."""

STARTS = ("", "own id", "asks")
"""How a run is started: plainly, with an id of its own, or to ask a person before it pays."""

Op = list[Any]
Program = list[list[Op]]
Paid = Counter[tuple[str, str]]


def program(chance: random.Random, tag: str, *, depth: int = 2, is_root: bool = True) -> Program:
    """A tree. `tag` makes what it pays for its own: keys may be known to a whole tenant."""
    turns = [
        [_op(chance, tag, depth) for _ in range(chance.randint(1, 3 if is_root else 2))]
        for _ in range(chance.randint(1, 3 if is_root else 2))
    ]
    if is_root:
        turns.append([["ask", "end"]])
    return turns


def _op(chance: random.Random, tag: str, depth: int) -> Op:
    kinds = (
        ["pay"] * 3
        + ["start"]
        + (["peer", "twins", "both"] * 2 + ["flow"] if depth else ["ask", "fail"])
    )
    kind = chance.choice(kinds)
    if kind in ("pay", "start"):
        op = [kind, chance.choice(POLICIES), f"{tag}-{chance.randint(0, 1)}"]
        return op if kind == "pay" else [*op, chance.choice(STARTS)]
    if kind == "flow":
        return ["flow", f"{tag}-{chance.randint(0, 1)}"]
    if kind in ("ask", "fail"):
        return [kind, "below"]
    below = program(chance, tag, depth=depth - 1, is_root=False)
    if kind == "twins":
        return ["both", ["peer", below], ["peer", below]]
    if kind == "both":
        return ["both", ["peer", below], ["pay", chance.choice(POLICIES), f"{tag}-0"]]
    return ["peer", below]


def expected(tree: Program) -> Paid:
    """What is paid when everything in a tree was done, once."""
    paid: Paid = Counter()
    _add(tree, paid)
    for policy in ("tenant", "own"):  # one operation for everybody
        for what in [each for each in paid if each[0] == policy]:
            paid[what] = 1
    return paid


def _add(tree: Program, paid: Paid) -> None:
    """One run. Of calls that are keyed by their arguments it makes each once."""
    own: set[str] = set()
    for op in [op for turn in tree for op in turn]:
        _add_op(op, own, paid)


def _add_op(op: Op, own: set[str], paid: Paid) -> None:
    match op:
        case ["pay", policy, what]:
            if policy != "args" or what not in own:
                paid[policy, what] += 1
            if policy == "args":
                own.add(what)
        case ["start", policy, what, _]:
            paid[policy, what] += 1
        case ["peer", below]:
            _add(below, paid)
        case ["both", one, other]:
            _add_op(one, own, paid)
            _add_op(other, own, paid)
        case ["flow", what]:
            paid["args", what] += 4  # its tool, that of the one below, and two agents of a loop
        case _:
            pass


def faults(lines: list[tuple[str, str, str]], wanted: Paid, *, is_whole: bool) -> list[str]:
    """What is wrong with what was paid, in words; with `is_whole` all must have been paid."""
    found: list[str] = []
    keys: dict[str, tuple[str, str]] = {}
    paid: Paid = Counter()
    for policy, what, key in lines:
        if key in keys and policy in MUTATING:
            found.append(f"{policy} {what} was paid twice under {key}")
        if keys.setdefault(key, (policy, what)) != (policy, what):
            found.append(f"{policy} {what} has the key of {keys[key]}")
    for policy, what in keys.values():
        paid[policy, what] += 1
    found += [f"{each} was paid {paid[each]} times, not {wanted[each]}" for each in paid - wanted]
    if is_whole:
        found += [
            f"{each} was paid {paid[each]} times, not {n}" for each, n in (wanted - paid).items()
        ]
    return found
