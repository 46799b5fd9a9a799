"""The blocking face of leases, and of a run that is held."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from holdfast.codec import Ref
from holdfast.engine import sweeper
from holdfast.engine.effects import Begun, EffectRequest
from holdfast.engine.held import leased_run
from holdfast.engine.leases import leases
from holdfast.engine.waits import WaitSpec
from holdfast.kernel.checkpoints import Checkpoint
from holdfast.kernel.leases import Worker
from holdfast.kernel.runs import BlockedReason, Run
from holdfast.kernel.waits import Result
from holdfast.sync.loop import Face, blocking


@blocking(leased_run.LeasedRun)
class LeasedRun(Face[leased_run.LeasedRun]):
    """A run and the lease on it. Use it from one thread at a time."""

    @property
    def run(self) -> Run:
        return self._inner.run

    @property
    def run_id(self) -> str:
        return self._inner.run_id

    @property
    def is_spooled(self) -> bool:
        return self._inner.is_spooled

    @property
    def version(self) -> int:
        return self._inner.version

    def state(self) -> dict[str, Any]:
        return self._inner.state()

    def part(self, name: str, default: Any = None) -> Any:
        return self._inner.part(name, default)

    def append(self, log: str, *items: object) -> None:
        return self._inner.append(log, *items)

    def splice(self, log: str, start: int, delete: int, items: Iterable[object] = ()) -> None:
        return self._inner.splice(log, start, delete, items)

    def set(self, name: str, value: object) -> None:
        return self._inner.set(name, value)

    def drop(self, name: str) -> None:
        return self._inner.drop(name)

    def discard(self) -> None:
        return self._inner.discard()

    def save(
        self,
        state: Mapping[str, object],
        *,
        phase: str = "",
        agent: str = "",
        status: str = "",
        label: str = "",
    ) -> Checkpoint:
        return self._call(
            self._inner.save, state, phase=phase, agent=agent, status=status, label=label
        )

    def checkpoint(
        self, *, phase: str = "", agent: str = "", status: str = "", label: str = ""
    ) -> Checkpoint:
        return self._call(
            self._inner.checkpoint, phase=phase, agent=agent, status=status, label=label
        )

    def record(self, name: str, value: object, *, args: object = None) -> Ref:
        return self._call(self._inner.record, name, value, args=args)

    def begin_effects(self, requests: Sequence[EffectRequest]) -> list[Begun]:
        return self._call(self._inner.begin_effects, requests)

    def finish_effect(self, begun: Begun, result: object = None) -> None:
        return self._call(self._inner.finish_effect, begun, result)

    def abandon_effect(self, begun: Begun, *, note: str = "") -> None:
        return self._call(self._inner.abandon_effect, begun, note=note)

    def doubt_effect(self, begun: Begun, *, note: str = "") -> None:
        return self._call(self._inner.doubt_effect, begun, note=note)

    def open_waits(
        self, specs: Sequence[WaitSpec], *, mode: str | int = "all", suspend: bool = False
    ) -> str:
        return self._call(self._inner.open_waits, specs, mode=mode, suspend=suspend)

    def suspend(self, group_id: str) -> bool:
        return self._call(self._inner.suspend, group_id)

    def results(self, group_id: str) -> list[Result]:
        return self._call(self._inner.results, group_id)

    def release(self, *, delay_seconds: float = 0.0, note: str = "") -> None:
        return self._call(self._inner.release, delay_seconds=delay_seconds, note=note)

    def complete(self, result: object = None, *, save: bool = False) -> None:
        return self._call(self._inner.complete, result, save=save)

    def fail(self, error: str, *, details: object = None) -> None:
        return self._call(self._inner.fail, error, details=details)

    def block(self, reason: BlockedReason | str, *, note: str = "") -> None:
        return self._call(self._inner.block, reason, note=note)


@blocking(leases.Leases)
class Leases(Face[leases.Leases]):
    """The runs this worker holds."""

    def take(self, run_id: str, *, takeover: bool = False, only_ready: bool = False) -> LeasedRun:
        held = self._call(self._inner.take, run_id, takeover=takeover, only_ready=only_ready)
        return LeasedRun(self._loop, held)

    def tend(self) -> float:
        return self._call(self._inner.tend)

    def next(
        self,
        *,
        agents: Sequence[str] = (),
        timeout_seconds: float = 0.0,
        with_suspects: bool = True,
    ) -> LeasedRun | None:
        found = self._call(
            self._inner.next,
            agents=agents,
            timeout_seconds=timeout_seconds,
            with_suspects=with_suspects,
        )
        return None if found is None else LeasedRun(self._loop, found)

    def renew(self) -> None:
        return self._call(self._inner.renew)

    def serve(self, agents: Sequence[str]) -> None:
        return self._call(self._inner.serve, agents)

    def take_suspect(self, run_id: str) -> LeasedRun:
        return LeasedRun(self._loop, self._call(self._inner.take_suspect, run_id))

    def end_trial(self, run_id: str) -> None:
        return self._call(self._inner.end_trial, run_id)

    def stay_alive(self) -> None:
        return self._call(self._inner.stay_alive)

    def expire_lost(self, *, limit: int = sweeper.BATCH) -> int:
        return self._call(self._inner.expire_lost, limit=limit)

    def workers(self) -> list[Worker]:
        return self._call(self._inner.workers)

    def close(self) -> None:
        return self._call(self._inner.close)
