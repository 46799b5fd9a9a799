"""A worker on workflows that reach outside, to be killed: see tests.agents.victims."""

from collections.abc import Sequence
from typing import Any

import holdfast
from holdfast.workflows import Kit
from tests.agents.ledger import Ledger
from tests.workflows.reaching import LOOPBACK


def make(ledger: Ledger) -> Sequence[holdfast.Agent[..., Any]]:
    return [Kit(root=ledger.path.parent, networks=LOOPBACK).agent]
