-- name: beat_worker
-- Keep a worker alive until the moment given; one row however many runs it holds. A beat that is late
-- never moves the moment back, unless the clock was set back.
INSERT INTO workers (tenant, worker, started_at, expires_at, lease, beats, host, boot_id, pid_namespace,
                     pid, process_start, agents, blocking_run, trying_run)
VALUES ($1, $2, $3, $4, $5, 1, $6, $7, $8, $9, $10, $11, '', $12)
ON CONFLICT (tenant, worker) DO UPDATE SET
    expires_at = CASE WHEN workers.expires_at > excluded.expires_at + excluded.lease
                      THEN excluded.expires_at
                      ELSE greatest(workers.expires_at, excluded.expires_at) END,
    lease = excluded.lease,
    beats = workers.beats + 1,
    agents = excluded.agents,
    blocking_run = '',
    trying_run = excluded.trying_run
RETURNING worker;

-- name: renew_taker
-- Keep a worker alive that takes a run, if less than half of its lease is left ($13 is the moment
-- that must not come before). With more left, nothing is written.
INSERT INTO workers (tenant, worker, started_at, expires_at, lease, beats, host, boot_id, pid_namespace,
                     pid, process_start, agents, blocking_run, trying_run)
SELECT $1::text, $2::text, $3::bigint, $4::bigint, $5::bigint, 1,
       $6::text, $7::text, $8::text, $9::bigint, $10::bigint, $11::text, '', $12::text
WHERE NOT EXISTS (SELECT 1 FROM workers w
                  WHERE w.tenant = $1 AND w.worker = $2 AND w.expires_at >= $13)
ON CONFLICT (tenant, worker) DO UPDATE SET
    expires_at = CASE WHEN workers.expires_at > excluded.expires_at + excluded.lease
                      THEN excluded.expires_at
                      ELSE greatest(workers.expires_at, excluded.expires_at) END,
    lease = excluded.lease,
    beats = workers.beats + 1,
    agents = excluded.agents,
    blocking_run = '',
    trying_run = excluded.trying_run
RETURNING worker;

-- name: note_blocked_loop
-- Say on a worker's row which run's code holds its event loop; this is no sign of life.
UPDATE workers SET blocking_run = $3 WHERE tenant = $1 AND worker = $2;

-- name: forget_worker
-- A worker that ended well.
DELETE FROM workers WHERE tenant = $1 AND worker = $2;

-- name: forget_unmoved_worker
-- A worker that was lost long ago, unless it has beaten since it was looked at.
DELETE FROM workers WHERE tenant = $1 AND worker = $2 AND beats = $3;

-- name: list_runs_with_results
-- Those of the runs in which the result of a step or of a call was recorded since they were leased.
SELECT r.run_id
FROM runs r
WHERE r.tenant = $1 AND r.run_id = ANY ($2)
  AND EXISTS (SELECT 1
              FROM journal j
              WHERE j.tenant = r.tenant AND j.run_id = r.run_id AND j.seq > r.lease_seq
                AND j.kind IN ('STEP_RECORDED', 'EFFECT_COMPLETED'));

-- name: list_workers
-- All workers, with the number of runs each holds.
SELECT w.tenant, w.worker, w.started_at, w.expires_at, w.lease, w.beats, w.host, w.boot_id,
       w.pid_namespace, w.pid, w.process_start, w.agents, w.blocking_run, w.trying_run,
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
       handoff, giver, wish, contexts, reverts, is_recovering, lost, losses, proof
FROM proven_runs
WHERE tenant = $1 AND worker = $2 AND status = 'running'
ORDER BY run_id;

-- name: list_holding_workers
-- The workers that hold runs, to watch whether they beat, with the number of runs each holds.
SELECT w.tenant, w.worker, w.started_at, w.expires_at, w.lease, w.beats, w.host, w.boot_id,
       w.pid_namespace, w.pid, w.process_start, w.agents, w.blocking_run, w.trying_run, held.runs
FROM workers w
JOIN (SELECT worker, count(*) AS runs FROM runs
      WHERE tenant = $1 AND status = 'running' GROUP BY worker) held ON held.worker = w.worker
WHERE w.tenant = $1
ORDER BY w.worker;

-- name: find_lost_runs
-- Runs of workers that are judged to be lost and have not beaten since, and of workers without a row;
-- each for one sweep only.
SELECT r.run_id
FROM runs r
WHERE r.tenant = $1 AND r.status = 'running' AND r.schema <= $3
  AND r.run_id <> ALL ($4::text[])
  AND (NOT EXISTS (SELECT 1 FROM workers w WHERE w.tenant = r.tenant AND w.worker = r.worker)
       OR EXISTS (SELECT 1
                  FROM unnest($5::text[], $6::bigint[]) AS lost (worker, beats)
                  JOIN workers w ON w.tenant = $1 AND w.worker = lost.worker
                                    AND w.beats = lost.beats
                  WHERE lost.worker = r.worker))
ORDER BY r.worker, r.run_id
LIMIT $2
FOR NO KEY UPDATE SKIP LOCKED;

-- name: lock_unmoved_workers
-- PostgreSQL only, because elsewhere nobody writes meanwhile. Those of the lost workers that have
-- still not beaten; they cannot until the transaction ends. Rows of runs are locked before these.
SELECT w.worker
FROM unnest($2::text[], $3::bigint[]) AS lost (worker, beats)
JOIN workers w ON w.tenant = $1 AND w.worker = lost.worker AND w.beats = lost.beats
ORDER BY w.worker
FOR NO KEY UPDATE OF w;
