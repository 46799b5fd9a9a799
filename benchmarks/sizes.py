"""How much is measured: the usual sizes, smaller ones for a look, larger ones for the record."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Counts of everything that is measured."""

    repeats: int = 5
    save_turns: int = 1000
    late_turn: int = 3000
    early_turn: int = 100
    window: int = 100
    resume_pairs: int = 10
    reads: int = 1000
    sessions: int = 1000
    turns_per_session: int = 5
    effects: int = 500
    effects_per_session: int = 3
    fan_in: tuple[int, ...] = (10, 100, 1000, 10_000)
    fan_in_repeats: int = 3
    deliveries: int = 4000
    wakeups: int = 60
    waiting: tuple[int, ...] = (100_000,)
    waiting_rounds: int = 40
    imports: int = 7
    paced_turns: int = 300
    kills: int = 4
    workflows: int = 500
    workflow_pauses: int = 60
    workflow_waves: int = 100
    paused_workflows: int = 10_000
    handoffs: int = 60
    recoveries: int = 10
    sustained_seconds: float = 600.0
    probes: int = 30_000


QUICK = Sizes(
    repeats=1,
    save_turns=200,
    late_turn=600,
    window=50,
    resume_pairs=3,
    reads=100,
    sessions=200,
    effects=100,
    fan_in=(10, 100),
    fan_in_repeats=1,
    deliveries=1000,
    wakeups=15,
    waiting=(10_000,),
    waiting_rounds=20,
    imports=3,
    paced_turns=60,
    kills=2,
    workflows=100,
    workflow_pauses=15,
    workflow_waves=50,
    paused_workflows=300,
    handoffs=8,
    recoveries=2,
    probes=2000,
    sustained_seconds=5.0,
)
USUAL = Sizes()
FULL = Sizes(
    repeats=7,
    fan_in_repeats=5,
    wakeups=200,
    waiting=(100_000, 1_000_000),
    waiting_rounds=100,
    kills=50,
)
