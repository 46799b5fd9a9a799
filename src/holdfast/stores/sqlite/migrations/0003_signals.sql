-- Values sent to runs from outside, each kept until its run has taken it.

CREATE TABLE signals (
    tenant TEXT NOT NULL,
    run_id TEXT NOT NULL,
    signal_id TEXT NOT NULL,
    name TEXT NOT NULL,
    seq INTEGER NOT NULL,
    received_at INTEGER NOT NULL,
    received_by TEXT NOT NULL,
    taken_seq INTEGER NOT NULL,
    taken_at INTEGER NOT NULL,
    PRIMARY KEY (tenant, run_id, signal_id)
) WITHOUT ROWID, STRICT;

CREATE INDEX signals_untaken ON signals (tenant, run_id, name, seq) WHERE taken_seq = 0;

-- A session opens a wait for each of its messages: what was answered is not looked at again.
CREATE INDEX waits_for_signals ON waits (tenant, run_id, name)
    WHERE kind = 'signal' AND status = 'open';

-- Statistics of a store in use, as in 0002.
INSERT INTO sqlite_stat1 (tbl, idx, stat) VALUES
    ('signals', 'signals', '100000 100000 10 1'),
    ('signals', 'signals_untaken', '1000 1000 2 2 1'),
    ('waits', 'waits_for_signals', '1000 1000 1 1');

-- For this connection too, which has read them before.
ANALYZE sqlite_schema;
