-- The journal is the truth; every other table is an index that `holdfast store reindex` rebuilds,
-- but for workers (who is alive) and a wait's deadline, progress and duplicates (hints of peers).
-- Moments are integers: microseconds since 1970, UTC.

CREATE TABLE runs (
    tenant TEXT NOT NULL,
    run_id TEXT NOT NULL,
    agent TEXT NOT NULL,
    status TEXT NOT NULL,
    blocked_reason TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    ready_at INTEGER NOT NULL,
    worker TEXT NOT NULL,
    lease_seq INTEGER NOT NULL,
    attempts INTEGER NOT NULL,
    waiting_on TEXT NOT NULL,
    result_seq INTEGER NOT NULL,
    root_id TEXT NOT NULL,
    parent_id TEXT NOT NULL,
    forked_from TEXT NOT NULL,
    forked_version INTEGER NOT NULL,
    input_digest BLOB NOT NULL,
    schema INTEGER NOT NULL,
    PRIMARY KEY (tenant, run_id)
) WITHOUT ROWID, STRICT;

CREATE INDEX runs_ready ON runs (tenant, ready_at) WHERE status = 'ready';
CREATE INDEX runs_running ON runs (tenant, worker) WHERE status = 'running';
CREATE INDEX runs_by_status ON runs (tenant, status, created_at, run_id);
CREATE INDEX runs_by_time ON runs (tenant, created_at, run_id);
CREATE INDEX runs_by_agent ON runs (tenant, agent, created_at, run_id);

-- With a rowid: rows above 1 KB would waste more than half of a WITHOUT ROWID table.
-- A body that is not small lies in `bodies`: pages hold more of them by themselves.
CREATE TABLE journal (
    id INTEGER PRIMARY KEY,
    tenant TEXT NOT NULL,
    run_id TEXT NOT NULL,
    seq INTEGER NOT NULL,
    kind TEXT NOT NULL,
    at INTEGER NOT NULL,
    actor TEXT NOT NULL,
    schema INTEGER NOT NULL,
    encoding TEXT NOT NULL,
    key_id TEXT NOT NULL,
    facts BLOB NOT NULL,
    nonce BLOB NOT NULL,
    body BLOB,
    erased_digest BLOB,
    link BLOB NOT NULL,
    stored_at INTEGER NOT NULL,
    UNIQUE (tenant, run_id, seq)
) STRICT;

CREATE TABLE bodies (
    id INTEGER PRIMARY KEY,
    body BLOB NOT NULL
) STRICT;

CREATE TABLE checkpoints (
    tenant TEXT NOT NULL,
    run_id TEXT NOT NULL,
    version INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    checkpoint_id BLOB NOT NULL,
    parent INTEGER NOT NULL,
    base_seq INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    phase TEXT NOT NULL,
    agent TEXT NOT NULL,
    status TEXT NOT NULL,
    label TEXT NOT NULL,
    PRIMARY KEY (tenant, run_id, version)
) WITHOUT ROWID, STRICT;

-- A checkpoint's id is a UUIDv7: this index is in order of time as well.
CREATE UNIQUE INDEX checkpoints_by_id ON checkpoints (tenant, checkpoint_id);
CREATE INDEX checkpoints_by_agent ON checkpoints (tenant, agent, checkpoint_id) WHERE agent <> '';
CREATE INDEX checkpoints_by_label ON checkpoints (tenant, label, checkpoint_id) WHERE label <> '';

CREATE TABLE effects (
    tenant TEXT NOT NULL,
    effect_id BLOB NOT NULL,
    key TEXT NOT NULL,
    run_id TEXT NOT NULL,
    tool TEXT NOT NULL,
    call_id TEXT NOT NULL,
    args_digest BLOB NOT NULL,
    status TEXT NOT NULL,
    issued_seq INTEGER NOT NULL,
    issued_at INTEGER NOT NULL,
    limit_at INTEGER NOT NULL,
    lease_seq INTEGER NOT NULL,
    result_seq INTEGER NOT NULL,
    settled_at INTEGER NOT NULL,
    PRIMARY KEY (tenant, effect_id)
) WITHOUT ROWID, STRICT;

-- The key is taken in every status but not_done: this index is what stops a second effect.
CREATE UNIQUE INDEX effects_by_key ON effects (tenant, key) WHERE status <> 'not_done';
CREATE INDEX effects_by_run ON effects (tenant, run_id, issued_seq);
CREATE INDEX effects_open ON effects (tenant, status, limit_at)
    WHERE status IN ('issued', 'unknown');

CREATE TABLE wait_groups (
    tenant TEXT NOT NULL,
    run_id TEXT NOT NULL,
    group_id TEXT NOT NULL,
    need INTEGER NOT NULL,
    total INTEGER NOT NULL,
    resolved INTEGER NOT NULL,
    failed INTEGER NOT NULL,
    status TEXT NOT NULL,
    closed_seq INTEGER NOT NULL,
    PRIMARY KEY (tenant, run_id, group_id)
) WITHOUT ROWID, STRICT;

CREATE TABLE waits (
    tenant TEXT NOT NULL,
    wait_id TEXT NOT NULL,
    run_id TEXT NOT NULL,
    group_id TEXT NOT NULL,
    kind TEXT NOT NULL,
    name TEXT NOT NULL,
    deadline INTEGER NOT NULL,
    status TEXT NOT NULL,
    opened_seq INTEGER NOT NULL,
    opened_at INTEGER NOT NULL,
    result_seq INTEGER NOT NULL,
    settled_by TEXT NOT NULL,
    settled_at INTEGER NOT NULL,
    duplicates INTEGER NOT NULL,
    progress_at INTEGER NOT NULL,
    PRIMARY KEY (tenant, wait_id)
) WITHOUT ROWID, STRICT;

CREATE INDEX waits_due ON waits (tenant, deadline) WHERE status = 'open' AND deadline > 0;
CREATE INDEX waits_by_run ON waits (tenant, run_id, group_id, wait_id);

CREATE TABLE workers (
    tenant TEXT NOT NULL,
    worker TEXT NOT NULL,
    started_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,
    PRIMARY KEY (tenant, worker)
) WITHOUT ROWID, STRICT;
