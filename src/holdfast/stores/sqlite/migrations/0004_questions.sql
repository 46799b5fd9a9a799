-- What people are asked: listed over all runs, the oldest first.
CREATE INDEX waits_for_people ON waits (tenant, opened_at, wait_id)
    WHERE status = 'open' AND kind IN ('question', 'approval');

-- Statistics of a store in use, as in 0002.
INSERT INTO sqlite_stat1 (tbl, idx, stat) VALUES ('waits', 'waits_for_people', '1000 1000 1 1');

-- For this connection too, which has read them before.
ANALYZE sqlite_schema;
