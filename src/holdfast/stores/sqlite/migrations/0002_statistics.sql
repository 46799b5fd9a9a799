-- SQLite without statistics may go by the tenant alone, through all it has. So the tables begin with
-- the statistics of a store in use: rows, then how many share the first columns of each index.
ANALYZE;
DELETE FROM sqlite_stat1;
INSERT INTO sqlite_stat1 (tbl, idx, stat) VALUES
    ('runs', 'runs', '100000 100000 1'),
    ('runs', 'runs_ready', '1000 1000 2'),
    ('runs', 'runs_running', '1000 1000 50'),
    ('runs', 'runs_by_status', '100000 100000 15000 2 1'),
    ('runs', 'runs_by_time', '100000 100000 2 1'),
    ('runs', 'runs_by_agent', '100000 100000 10000 2 1'),
    ('journal', 'sqlite_autoindex_journal_1', '1000000 1000000 10 1'),
    ('checkpoints', 'checkpoints', '500000 500000 5 1'),
    ('checkpoints', 'checkpoints_by_id', '500000 500000 1'),
    ('checkpoints', 'checkpoints_by_agent', '500000 500000 50000 1'),
    ('checkpoints', 'checkpoints_by_label', '5000 5000 50 1'),
    ('effects', 'effects', '100000 100000 1'),
    ('effects', 'effects_by_key', '100000 100000 1'),
    ('effects', 'effects_by_run', '100000 100000 5 1'),
    ('effects', 'effects_open', '1000 1000 500 2'),
    ('wait_groups', 'wait_groups', '100000 100000 2 1'),
    ('waits', 'waits', '100000 100000 1'),
    ('waits', 'waits_due', '50000 50000 2'),
    ('waits', 'waits_by_run', '100000 100000 2 1 1'),
    ('workers', 'workers', '100 100 1');

-- For this connection too, which has read them before.
ANALYZE sqlite_schema;
