"""Workflows, for code that blocks."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from holdfast.agents.work.approvals import Asked
from holdfast.kernel.runs import Run, Status
from holdfast.sync.loop import Face, blocking
from holdfast.workflows import workflows
from holdfast.workflows.definitions.definition import Workflow
from holdfast.workflows.execution.events import Observer
from holdfast.workflows.execution.expiring import MAX_AGE_HOURS
from holdfast.workflows.execution.outcome import Outcome


@blocking(workflows.Workflows)
class Workflows(Face[workflows.Workflows]):
    """Workflows in a store, whoever works on them. Observers are called in another thread."""

    def start(
        self,
        workflow: Workflow | str | Path,
        given: Mapping[str, Any] | None = None,
        *,
        run_id: str | None = None,
        owner: str = "",
    ) -> Outcome:
        return self._call(self._inner.start, workflow, given, run_id=run_id, owner=owner)

    def run(
        self,
        workflow: Workflow | str | Path,
        given: Mapping[str, Any] | None = None,
        *,
        run_id: str | None = None,
        owner: str = "",
        timeout: float | None = None,
        observe: Observer | None = None,
    ) -> Outcome:
        return self._call(
            self._inner.run,
            workflow,
            given,
            run_id=run_id,
            owner=owner,
            timeout=timeout,
            observe=observe,
        )

    def resume(
        self,
        run_id: str,
        answers: Mapping[str, Any] | None = None,
        *,
        by: str = "",
        timeout: float | None = None,
        observe: Observer | None = None,
    ) -> Outcome:
        return self._call(
            self._inner.resume, run_id, answers, by=by, timeout=timeout, observe=observe
        )

    def answer(self, run_id: str, answers: Mapping[str, Any], *, by: str = "") -> None:
        return self._call(self._inner.answer, run_id, answers, by=by)

    def asked(self, run_id: str, path: str) -> Asked:
        return self._call(self._inner.asked, run_id, path)

    def status(self, run_id: str) -> Outcome:
        return self._call(self._inner.status, run_id)

    def definition(self, run_id: str) -> Workflow:
        return self._call(self._inner.definition, run_id)

    def list(
        self,
        workflow: str | None = None,
        *,
        status: Status | str | None = None,
        nested: bool = False,
        limit: int = 100,
        before: Run | None = None,
    ) -> "list[Run]":
        return self._call(
            self._inner.list, workflow, status=status, nested=nested, limit=limit, before=before
        )

    def cancel(self, run_id: str, *, by: str = "", note: str = "") -> None:
        return self._call(self._inner.cancel, run_id, by=by, note=note)

    def work_here(self) -> None:
        return self._inner.work_here()

    def cleanup_expired(self, max_age_hours: float = MAX_AGE_HOURS) -> int:
        return self._call(self._inner.cleanup_expired, max_age_hours)
