-- What people are asked: listed over all runs, the oldest first.
CREATE INDEX waits_for_people ON waits (tenant, opened_at, wait_id)
    WHERE status = 'open' AND kind IN ('question', 'approval');
