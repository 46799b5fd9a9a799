-- Calls of peers. A run that somebody waits for says where its answer goes; a wait for a peer says
-- where that is reached, and how long a sign of life from it lasts. `claimed_…` and `progress` are
-- hints of peers, as deadlines are.
ALTER TABLE runs ADD COLUMN reply_to TEXT NOT NULL DEFAULT '';
ALTER TABLE waits ADD COLUMN address TEXT NOT NULL DEFAULT '';
ALTER TABLE waits ADD COLUMN patience INTEGER NOT NULL DEFAULT 0;
ALTER TABLE waits ADD COLUMN claimed_by TEXT NOT NULL DEFAULT '';
ALTER TABLE waits ADD COLUMN claimed_until INTEGER NOT NULL DEFAULT 0;
ALTER TABLE waits ADD COLUMN progress TEXT NOT NULL DEFAULT '';

CREATE INDEX runs_by_parent ON runs (tenant, parent_id, created_at, run_id)
    WHERE parent_id <> '';
CREATE INDEX waits_for_peers ON waits (tenant, run_id, wait_id)
    WHERE status = 'open' AND kind = 'peer';

-- Queues of messages, delivered at least once, in order of id. Those of one `ordering` are delivered
-- one after another. What commits owe to others is in the queue 'outbox'. Headers are JSON.
CREATE TABLE messages (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    tenant TEXT NOT NULL,
    queue TEXT NOT NULL,
    message_id TEXT NOT NULL,
    ordering TEXT NOT NULL,
    headers TEXT NOT NULL,
    body BLOB NOT NULL,
    created_at INTEGER NOT NULL,
    due_at INTEGER NOT NULL,
    attempts INTEGER NOT NULL,
    worker TEXT NOT NULL,
    status TEXT NOT NULL,
    note TEXT NOT NULL,
    UNIQUE (tenant, queue, message_id)
) STRICT;

CREATE INDEX messages_due ON messages (tenant, queue, status, due_at);
CREATE INDEX messages_in_order ON messages (tenant, queue, ordering, id)
    WHERE status = 'ready' AND ordering <> '';

-- Who this store is, for answers that come from others.
CREATE TABLE identity (store_id TEXT NOT NULL PRIMARY KEY) WITHOUT ROWID, STRICT;
INSERT INTO identity (store_id) VALUES (lower(hex(randomblob(8))));

-- Statistics of a store in use, as in 0002.
INSERT INTO sqlite_stat1 (tbl, idx, stat) VALUES
    ('runs', 'runs_by_parent', '50000 50000 5 2 1'),
    ('waits', 'waits_for_peers', '10000 10000 5 1'),
    ('messages', 'sqlite_autoindex_messages_1', '10000 10000 2000 1'),
    ('messages', 'messages_due', '10000 10000 2000 1000 2'),
    ('messages', 'messages_in_order', '10000 10000 2000 5 1');

-- For this connection too, which has read them before.
ANALYZE sqlite_schema;
