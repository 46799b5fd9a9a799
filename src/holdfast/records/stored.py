"""Records as the service returns them, and the query to search for them."""

from datetime import datetime

import msgspec

from holdfast.kernel.records import Record


class StoredRecord(Record, frozen=True, kw_only=True):
    """A record, and how it is stored.

    `run_version` is the version of the task's run. `parent_id` is the checkpoint it continues: the
    one it was linked to, else the one before it; "" means none. `skipped` are the ids of newer
    checkpoints that are damaged; only the latest one has any.
    """

    run_version: int
    revision: int = 1
    status: str = ""
    is_final: bool = False
    label: str = ""
    summary: str = ""
    parent_id: str = ""
    skipped: tuple[str, ...] = ()

    @property
    def checkpoint_id(self) -> str:
        return self.metadata.checkpoint_id


class CheckpointQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to search for: these fields and no others; None means any.

    `text` is words that are all in the summary. `cursor` continues a search.
    """

    task_id: str | None = None
    agent_id: str | None = None
    agent_type: str | None = None
    phase: str | None = None
    status: str | None = None
    label: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    text: str = ""
    limit: int = 100
    cursor: str = ""


class SearchResult(msgspec.Struct, frozen=True):
    """A page of what was found, newest first. `cursor` continues it; "" says that was all.

    Damaged ones are left out, and named in `damaged`.
    """

    checkpoints: tuple[StoredRecord, ...]
    cursor: str = ""
    damaged: tuple[str, ...] = ()


class HandoffResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of asking for a handoff: `given`, or `requested` of an agent on Holdfast.

    An agent has to acknowledge it before `until`, else the task returns to its giver.
    """

    task_id: str
    checkpoint_id: str
    status: str
    from_agent: str
    handoff_id: str = ""
    to_agent: str = ""
    continuation_prompt: str = ""
    until: str = ""


class RecoveryResult(msgspec.Struct, frozen=True, kw_only=True):
    """A resumed task: the checkpoint it resumes from, and the version it continues as."""

    task_id: str
    checkpoint_id: str
    status: str
    version: int
