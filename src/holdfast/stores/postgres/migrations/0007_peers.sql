-- Calls of peers. A run that somebody waits for says where its answer goes; a wait for a peer says
-- where that is reached, and how long a sign of life from it lasts. `claimed_…` and `progress` are
-- hints of peers, as deadlines are.
ALTER TABLE runs ADD COLUMN reply_to text COLLATE "C" NOT NULL DEFAULT '';
ALTER TABLE waits ADD COLUMN address text COLLATE "C" NOT NULL DEFAULT '';
ALTER TABLE waits ADD COLUMN patience bigint NOT NULL DEFAULT 0;
ALTER TABLE waits ADD COLUMN claimed_by text COLLATE "C" NOT NULL DEFAULT '';
ALTER TABLE waits ADD COLUMN claimed_until bigint NOT NULL DEFAULT 0;
ALTER TABLE waits ADD COLUMN progress text COLLATE "C" NOT NULL DEFAULT '';

CREATE INDEX runs_by_parent ON runs (tenant, parent_id, created_at, run_id)
    WHERE parent_id <> '';
CREATE INDEX waits_for_peers ON waits (tenant, run_id, wait_id)
    WHERE status = 'open' AND kind = 'peer';

-- Queues of messages, delivered at least once, in order of id. Those of one `ordering` are delivered
-- one after another. What commits owe to others is in the queue 'outbox'. Headers are JSON.
CREATE TABLE messages (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant text COLLATE "C" NOT NULL,
    queue text COLLATE "C" NOT NULL,
    message_id text COLLATE "C" NOT NULL,
    ordering text COLLATE "C" NOT NULL,
    headers text COLLATE "C" NOT NULL,
    body bytea NOT NULL,
    created_at bigint NOT NULL,
    due_at bigint NOT NULL,
    attempts bigint NOT NULL,
    worker text COLLATE "C" NOT NULL,
    status text COLLATE "C" NOT NULL,
    note text COLLATE "C" NOT NULL,
    UNIQUE (tenant, queue, message_id)
);

CREATE INDEX messages_due ON messages (tenant, queue, status, due_at);
CREATE INDEX messages_in_order ON messages (tenant, queue, ordering, id)
    WHERE status = 'ready' AND ordering <> '';

-- Who this store is, for answers that come from others.
CREATE TABLE identity (store_id text COLLATE "C" NOT NULL PRIMARY KEY);
INSERT INTO identity (store_id)
VALUES (substr(md5(random()::text || clock_timestamp()::text || pg_backend_pid()::text), 1, 16));

-- Statistics of a store in use, as in 0003.
INSERT INTO messages (tenant, queue, message_id, ordering, headers, body, created_at, due_at,
                      attempts, worker, status, note)
SELECT '', 'queue-' || n % 5, md5(n::text), md5((n / 5)::text), '{}', '', n, n, 0, '',
       (ARRAY['ready', 'done'])[1 + n % 2], ''
FROM generate_series(1, 1000) AS n;
ANALYZE messages;
SAVEPOINT samples;
TRUNCATE messages;
RELEASE SAVEPOINT samples;
