-- The journal is the truth; every other table is an index that `holdfast store reindex` rebuilds,
-- but for workers (who is alive) and a wait's deadline, progress and duplicates (hints of peers).
-- Moments are integers: microseconds since 1970, UTC. Names compare byte by byte, as in SQLite.

CREATE TABLE runs (
    tenant text COLLATE "C" NOT NULL,
    run_id text COLLATE "C" NOT NULL,
    agent text COLLATE "C" NOT NULL,
    status text COLLATE "C" NOT NULL,
    blocked_reason text COLLATE "C" NOT NULL,
    created_at bigint NOT NULL,
    ready_at bigint NOT NULL,
    worker text COLLATE "C" NOT NULL,
    lease_seq bigint NOT NULL,
    attempts bigint NOT NULL,
    waiting_on text COLLATE "C" NOT NULL,
    result_seq bigint NOT NULL,
    root_id text COLLATE "C" NOT NULL,
    parent_id text COLLATE "C" NOT NULL,
    forked_from text COLLATE "C" NOT NULL,
    forked_version bigint NOT NULL,
    input_digest bytea NOT NULL,
    schema bigint NOT NULL,
    PRIMARY KEY (tenant, run_id)
);

CREATE INDEX runs_ready ON runs (tenant, ready_at, run_id) WHERE status = 'ready';
CREATE INDEX runs_running ON runs (tenant, worker) WHERE status = 'running';
CREATE INDEX runs_by_status ON runs (tenant, status, created_at, run_id);
CREATE INDEX runs_by_time ON runs (tenant, created_at, run_id);
CREATE INDEX runs_by_agent ON runs (tenant, agent, created_at, run_id);

-- Rows are never changed, so bodies lie in them: PostgreSQL itself moves what is large out of line.
CREATE TABLE journal (
    tenant text COLLATE "C" NOT NULL,
    run_id text COLLATE "C" NOT NULL,
    seq bigint NOT NULL,
    kind text COLLATE "C" NOT NULL,
    at bigint NOT NULL,
    actor text COLLATE "C" NOT NULL,
    schema bigint NOT NULL,
    encoding text COLLATE "C" NOT NULL,
    key_id text COLLATE "C" NOT NULL,
    facts bytea NOT NULL,
    nonce bytea NOT NULL,
    body bytea,
    erased_digest bytea,
    link bytea NOT NULL,
    stored_at bigint NOT NULL,
    PRIMARY KEY (tenant, run_id, seq)
);

-- Bodies are compressed already.
ALTER TABLE journal ALTER COLUMN body SET STORAGE EXTERNAL;

CREATE TABLE checkpoints (
    tenant text COLLATE "C" NOT NULL,
    run_id text COLLATE "C" NOT NULL,
    version bigint NOT NULL,
    seq bigint NOT NULL,
    checkpoint_id uuid NOT NULL,
    parent bigint NOT NULL,
    base_seq bigint NOT NULL,
    created_at bigint NOT NULL,
    phase text COLLATE "C" NOT NULL,
    agent text COLLATE "C" NOT NULL,
    status text COLLATE "C" NOT NULL,
    label text COLLATE "C" NOT NULL,
    PRIMARY KEY (tenant, run_id, version)
);

-- A checkpoint's id is a UUIDv7: this index is in order of time as well.
CREATE UNIQUE INDEX checkpoints_by_id ON checkpoints (tenant, checkpoint_id);
CREATE INDEX checkpoints_by_agent ON checkpoints (tenant, agent, checkpoint_id) WHERE agent <> '';
CREATE INDEX checkpoints_by_label ON checkpoints (tenant, label, checkpoint_id) WHERE label <> '';

CREATE TABLE effects (
    tenant text COLLATE "C" NOT NULL,
    effect_id uuid NOT NULL,
    key text COLLATE "C" NOT NULL,
    run_id text COLLATE "C" NOT NULL,
    tool text COLLATE "C" NOT NULL,
    call_id text COLLATE "C" NOT NULL,
    args_digest bytea NOT NULL,
    status text COLLATE "C" NOT NULL,
    issued_seq bigint NOT NULL,
    issued_at bigint NOT NULL,
    limit_at bigint NOT NULL,
    lease_seq bigint NOT NULL,
    result_seq bigint NOT NULL,
    settled_at bigint NOT NULL,
    PRIMARY KEY (tenant, effect_id)
);

-- The key is taken in every status but not_done: this index is what stops a second effect.
CREATE UNIQUE INDEX effects_by_key ON effects (tenant, key) WHERE status <> 'not_done';
CREATE INDEX effects_by_run ON effects (tenant, run_id, issued_seq);
CREATE INDEX effects_open ON effects (tenant, status, limit_at, effect_id)
    WHERE status IN ('issued', 'unknown');

-- Counted again and again without touching an index: room in the page keeps the row in its page.
CREATE TABLE wait_groups (
    tenant text COLLATE "C" NOT NULL,
    run_id text COLLATE "C" NOT NULL,
    group_id text COLLATE "C" NOT NULL,
    need bigint NOT NULL,
    total bigint NOT NULL,
    resolved bigint NOT NULL,
    failed bigint NOT NULL,
    status text COLLATE "C" NOT NULL,
    closed_seq bigint NOT NULL,
    PRIMARY KEY (tenant, run_id, group_id)
) WITH (fillfactor = 70);

CREATE TABLE waits (
    tenant text COLLATE "C" NOT NULL,
    wait_id text COLLATE "C" NOT NULL,
    run_id text COLLATE "C" NOT NULL,
    group_id text COLLATE "C" NOT NULL,
    kind text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    deadline bigint NOT NULL,
    status text COLLATE "C" NOT NULL,
    opened_seq bigint NOT NULL,
    opened_at bigint NOT NULL,
    result_seq bigint NOT NULL,
    settled_by text COLLATE "C" NOT NULL,
    settled_at bigint NOT NULL,
    duplicates bigint NOT NULL,
    progress_at bigint NOT NULL,
    PRIMARY KEY (tenant, wait_id)
);

CREATE INDEX waits_due ON waits (tenant, deadline, wait_id)
    WHERE status = 'open' AND deadline > 0;
CREATE INDEX waits_by_run ON waits (tenant, run_id, group_id, wait_id);

-- Renewed every few seconds without touching an index, as are a group's counts.
CREATE TABLE workers (
    tenant text COLLATE "C" NOT NULL,
    worker text COLLATE "C" NOT NULL,
    started_at bigint NOT NULL,
    expires_at bigint NOT NULL,
    PRIMARY KEY (tenant, worker)
) WITH (fillfactor = 50);

-- A plan that is made before a table has statistics may go by the wrong index, and live long. So the
-- tables get statistics of a store in use before they are used: one tenant has all rows, a run has a
-- few. The samples belong to a tenant that nobody can be; migration 0002 removes them.
INSERT INTO runs
SELECT '', md5(n::text), 'agent-' || n % 5,
       (ARRAY['ready', 'running', 'waiting', 'waiting', 'waiting', 'blocked', 'completed',
              'completed', 'completed', 'failed'])[1 + n % 10],
       '', n, n, 'worker-' || n % 20, 2, 0, '', 0, md5(n::text), '', '', 0, '', 1
FROM generate_series(1, 1000) AS n;
INSERT INTO journal
SELECT '', md5((n / 10)::text), n % 10 + 1, 'CHECKPOINT_CREATED', n, 'worker-' || n % 20, 1,
       'zstd', '', '', '', convert_to(repeat(md5(n::text), 40), 'UTF8'), NULL, '', n
FROM generate_series(1, 1000) AS n;
INSERT INTO checkpoints
SELECT '', md5((n / 10)::text), n % 10 + 1, n, md5(n::text)::uuid, n % 10, 0, n, '',
       'agent-' || n % 5, '', ''
FROM generate_series(1, 1000) AS n;
INSERT INTO effects
SELECT '', md5(n::text)::uuid, md5(n::text), md5((n / 10)::text), 'tool-' || n % 10, '', '',
       (ARRAY['completed', 'completed', 'completed', 'completed', 'completed', 'completed',
              'completed', 'issued', 'unknown', 'not_done'])[1 + n % 10], n, n, n, 2, n, n
FROM generate_series(1, 1000) AS n;
INSERT INTO wait_groups
SELECT '', md5((n / 2)::text), md5(n::text), 0, 1, 1, 0,
       (ARRAY['open', 'satisfied'])[1 + n % 2], n
FROM generate_series(1, 1000) AS n;
INSERT INTO waits
SELECT '', md5(n::text), md5((n / 2)::text), md5(n::text), 'reply', '', n,
       (ARRAY['open', 'resolved'])[1 + n % 2], n, n, n, '', n, 0, 0
FROM generate_series(1, 1000) AS n;
INSERT INTO workers
SELECT '', 'worker-' || n, n, n
FROM generate_series(1, 100) AS n;
ANALYZE runs, journal, checkpoints, effects, wait_groups, waits, workers;
