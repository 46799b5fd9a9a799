-- name: beat_worker
-- Keep a worker alive until the moment given; one row however many runs it holds.
INSERT INTO workers (tenant, worker, started_at, expires_at)
VALUES ($1, $2, $3, $4)
ON CONFLICT (tenant, worker) DO UPDATE SET expires_at = excluded.expires_at;

-- name: forget_worker
-- A worker that ended well.
DELETE FROM workers WHERE tenant = $1 AND worker = $2;

-- name: list_workers
-- All workers, with the number of runs each holds.
SELECT w.tenant, w.worker, w.started_at, w.expires_at,
       (SELECT count(*) FROM runs r
        WHERE r.tenant = w.tenant AND r.worker = w.worker AND r.status = 'running')
FROM workers w
WHERE w.tenant = $1
ORDER BY w.started_at, w.worker;

-- name: list_runs_of_worker
-- The runs that a worker holds.
SELECT tenant, run_id, agent, status, blocked_reason, created_at, ready_at, worker, lease_seq,
       attempts, waiting_on, result_seq, root_id, parent_id, forked_from, forked_version,
       input_digest, schema, reply_to, subject, owner,
       handoff, giver, wish, contexts, reverts, is_recovering
FROM runs
WHERE tenant = $1 AND worker = $2 AND status = 'running'
ORDER BY run_id;

-- name: find_lost_runs
-- Runs whose worker was not heard of in time, or is not known at all; each for one sweep only.
SELECT r.run_id
FROM runs r
WHERE r.tenant = $1 AND r.status = 'running' AND r.schema <= $4
  AND r.run_id <> ALL ($5::text[])
  AND coalesce((SELECT w.expires_at FROM workers w
                WHERE w.tenant = r.tenant AND w.worker = r.worker), 0) <= $2
ORDER BY r.worker, r.run_id
LIMIT $3
FOR NO KEY UPDATE SKIP LOCKED;
