-- Waits for a call that was made before, by whoever joins those that wait for it already.
CREATE INDEX waits_for_call ON waits (tenant, address)
    WHERE status = 'open' AND address LIKE 'call:%';
