-- name: get_run
-- One run's row, and what it is compared with.
SELECT tenant, run_id, agent, status, blocked_reason, created_at, ready_at, worker, lease_seq,
       attempts, waiting_on, result_seq, root_id, parent_id, forked_from, forked_version,
       input_digest, schema, reply_to, subject, owner,
       handoff, giver, wish, contexts, reverts, is_recovering, lost, losses, proof
FROM proven_runs
WHERE tenant = ?1 AND run_id = ?2;

-- name: get_run_proof
-- The last entry that changed a run's row with the link before it, and how many entries there are.
SELECT e.tenant, e.run_id, e.seq, e.kind, e.at, e.actor, e.schema, e.encoding, e.key_id, e.facts,
       e.nonce, coalesce(e.body, b.body), e.erased_digest, e.link, e.proof,
       (SELECT p.link FROM journal p
        WHERE p.tenant = e.tenant AND p.run_id = e.run_id AND p.seq = e.seq - 1),
       (SELECT max(a.seq) FROM journal a WHERE a.tenant = e.tenant AND a.run_id = e.run_id),
       (SELECT count(*) FROM journal a WHERE a.tenant = e.tenant AND a.run_id = e.run_id)
FROM journal e
LEFT JOIN bodies b ON b.id = e.id
WHERE e.tenant = ?1 AND e.run_id = ?2 AND e.proof IS NOT NULL
  AND e.kind NOT IN ('EFFECT_ISSUED', 'SIGNAL_RECEIVED', 'SIGNAL_TAKEN', 'WAITS_OPENED')
ORDER BY e.seq DESC
LIMIT 1;

-- name: get_run_row
-- One run's row, as it lies there.
SELECT tenant, run_id, agent, status, blocked_reason, created_at, ready_at, worker, lease_seq,
       attempts, waiting_on, result_seq, root_id, parent_id, forked_from, forked_version,
       input_digest, schema, reply_to, subject, owner,
       handoff, giver, wish, contexts, reverts, is_recovering, lost, losses
FROM runs
WHERE tenant = ?1 AND run_id = ?2;

-- name: get_run_at_head
-- One run's row and where its journal ends, in one statement: both are of one moment.
SELECT r.tenant, r.run_id, r.agent, r.status, r.blocked_reason, r.created_at, r.ready_at, r.worker,
       r.lease_seq, r.attempts, r.waiting_on, r.result_seq, r.root_id, r.parent_id, r.forked_from,
       r.forked_version, r.input_digest, r.schema, r.reply_to, r.subject, r.owner,
       r.handoff, r.giver, r.wish, r.contexts, r.reverts, r.is_recovering,
       r.lost, r.losses, r.proof, j.seq, j.link
FROM proven_runs r
JOIN journal j ON j.tenant = r.tenant AND j.run_id = r.run_id
WHERE r.tenant = ?1 AND r.run_id = ?2
ORDER BY j.seq DESC
LIMIT 1;

-- name: put_run
-- Write a run's row as it is after an entry.
INSERT INTO runs (tenant, run_id, agent, status, blocked_reason, created_at, ready_at, worker,
                  lease_seq, attempts, waiting_on, result_seq, root_id, parent_id, forked_from,
                  forked_version, input_digest, schema, reply_to, subject, owner,
                  handoff, giver, wish, contexts, reverts, is_recovering, lost, losses)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18,
        ?19, ?20, ?21, ?22, ?23, ?24, ?25, ?26, ?27, ?28, ?29)
ON CONFLICT (tenant, run_id) DO UPDATE SET
    agent = excluded.agent,
    status = excluded.status,
    blocked_reason = excluded.blocked_reason,
    ready_at = excluded.ready_at,
    worker = excluded.worker,
    lease_seq = excluded.lease_seq,
    attempts = excluded.attempts,
    waiting_on = excluded.waiting_on,
    result_seq = excluded.result_seq,
    schema = excluded.schema,
    handoff = excluded.handoff,
    giver = excluded.giver,
    wish = excluded.wish,
    contexts = excluded.contexts,
    reverts = excluded.reverts,
    is_recovering = excluded.is_recovering,
    lost = excluded.lost,
    losses = excluded.losses;

-- name: list_runs
-- A page of runs, newest first, after the one named by (created_at, run_id).
SELECT tenant, run_id, agent, status, blocked_reason, created_at, ready_at, worker, lease_seq,
       attempts, waiting_on, result_seq, root_id, parent_id, forked_from, forked_version,
       input_digest, schema, reply_to, subject, owner,
       handoff, giver, wish, contexts, reverts, is_recovering, lost, losses, proof
FROM proven_runs
WHERE tenant = ?1
  AND (created_at, run_id) < (?2, ?3)
ORDER BY created_at DESC, run_id DESC
LIMIT ?4;

-- name: list_runs_by_status
-- The same, of one status.
SELECT tenant, run_id, agent, status, blocked_reason, created_at, ready_at, worker, lease_seq,
       attempts, waiting_on, result_seq, root_id, parent_id, forked_from, forked_version,
       input_digest, schema, reply_to, subject, owner,
       handoff, giver, wish, contexts, reverts, is_recovering, lost, losses, proof
FROM proven_runs
WHERE tenant = ?1
  AND status = ?5
  AND (created_at, run_id) < (?2, ?3)
ORDER BY created_at DESC, run_id DESC
LIMIT ?4;

-- name: list_runs_by_agent
-- The same, of one agent, and of one status unless that is NULL.
SELECT tenant, run_id, agent, status, blocked_reason, created_at, ready_at, worker, lease_seq,
       attempts, waiting_on, result_seq, root_id, parent_id, forked_from, forked_version,
       input_digest, schema, reply_to, subject, owner,
       handoff, giver, wish, contexts, reverts, is_recovering, lost, losses, proof
FROM proven_runs
WHERE tenant = ?1
  AND agent = ?5
  AND (?6 IS NULL OR status = ?6)
  AND (created_at, run_id) < (?2, ?3)
ORDER BY created_at DESC, run_id DESC
LIMIT ?4;

-- name: list_runs_by_subject
-- The same, of one subject of one agent, and of one status unless that is NULL.
SELECT tenant, run_id, agent, status, blocked_reason, created_at, ready_at, worker, lease_seq,
       attempts, waiting_on, result_seq, root_id, parent_id, forked_from, forked_version,
       input_digest, schema, reply_to, subject, owner,
       handoff, giver, wish, contexts, reverts, is_recovering, lost, losses, proof
FROM proven_runs
WHERE tenant = ?1
  AND agent = ?7
  AND subject = ?5
  AND subject <> ''
  AND (?6 IS NULL OR status = ?6)
  AND (created_at, run_id) < (?2, ?3)
ORDER BY created_at DESC, run_id DESC
LIMIT ?4;

-- name: list_runs_by_parent
-- The same, of those that have one parent, and of one agent and one status unless those are NULL.
SELECT tenant, run_id, agent, status, blocked_reason, created_at, ready_at, worker, lease_seq,
       attempts, waiting_on, result_seq, root_id, parent_id, forked_from, forked_version,
       input_digest, schema, reply_to, subject, owner,
       handoff, giver, wish, contexts, reverts, is_recovering, lost, losses, proof
FROM proven_runs
WHERE tenant = ?1
  AND parent_id = ?5
  AND parent_id <> ''
  AND (?6 IS NULL OR agent = ?6)
  AND (?7 IS NULL OR status = ?7)
  AND (created_at, run_id) < (?2, ?3)
ORDER BY created_at DESC, run_id DESC
LIMIT ?4;

-- name: list_runs_by_owner
-- The same, of one owner, and of one status, agent, subject and parent unless those are NULL.
SELECT tenant, run_id, agent, status, blocked_reason, created_at, ready_at, worker, lease_seq,
       attempts, waiting_on, result_seq, root_id, parent_id, forked_from, forked_version,
       input_digest, schema, reply_to, subject, owner,
       handoff, giver, wish, contexts, reverts, is_recovering, lost, losses, proof
FROM proven_runs
WHERE tenant = ?1
  AND owner = ?5
  AND owner <> ''
  AND (?6 IS NULL OR status = ?6)
  AND (?7 IS NULL OR agent = ?7)
  AND (?8 IS NULL OR subject = ?8)
  AND (?9 IS NULL OR parent_id = ?9)
  AND (created_at, run_id) < (?2, ?3)
ORDER BY created_at DESC, run_id DESC
LIMIT ?4;

-- name: count_runs
-- How many runs there are of each status.
SELECT status, count(*)
FROM runs
WHERE tenant = ?1
GROUP BY status
ORDER BY status;

-- name: find_ready_runs
-- Runs that want a worker and have no newer entries than the schema given, longest waiting first.
-- A suspect, which has two losses or more, only if it is asked for: `],[` is between two elements of the
-- JSON array, and a row with damaged JSON does not stop the others.
SELECT run_id
FROM runs
WHERE tenant = ?1 AND status = 'ready' AND ready_at <= ?2 AND schema <= ?4
  AND (losses NOT LIKE '%],[%' OR ?5)
ORDER BY ready_at, run_id
LIMIT ?3;

-- name: find_ready_runs_of_agents
-- The same, for workers that serve some agents only (a JSON array of names).
SELECT run_id
FROM runs
WHERE tenant = ?1 AND status = 'ready' AND ready_at <= ?2 AND schema <= ?4
  AND (losses NOT LIKE '%],[%' OR ?5) AND agent IN (SELECT value FROM json_each(?6))
ORDER BY ready_at, run_id
LIMIT ?3;

-- name: next_ready_at
-- When the next run that is put off wants a worker.
SELECT min(ready_at)
FROM runs
WHERE tenant = ?1 AND status = 'ready';

-- name: find_suspect
-- The run of some agents (a JSON array of names) that is to be tried alone and has wanted a worker
-- longest, at a moment; not one with newer entries than the schema given. It has two losses or more
-- that count: those that were forgotten are in `lost` only.
SELECT run_id
FROM runs
WHERE tenant = ?1 AND status = 'ready' AND lost > 1 AND losses LIKE '%],[%'
  AND ready_at <= ?2 AND schema <= ?4
  AND agent IN (SELECT value FROM json_each(?3))
ORDER BY ready_at, run_id
LIMIT 1;

-- name: count_failing_runs
-- How many runs of each agent its code has failed more than once in a row, and that are to be tried
-- again. Attempts that ended with the loss of a worker are not counted.
SELECT agent, count(*)
FROM runs
WHERE tenant = ?1 AND attempts > 1 AND attempts - lost > 1 AND status = 'ready'
GROUP BY agent;

-- name: delete_run_rows
-- Forget a run's row before it is rebuilt from the journal.
DELETE FROM runs WHERE tenant = ?1 AND run_id = ?2;

-- name: list_run_ids
-- A page of the ids of all runs: those with a journal (skipping from run to run), and those only
-- an index names.
WITH RECURSIVE journaled (run_id) AS (
    SELECT min(run_id) FROM journal WHERE tenant = ?1 AND run_id > ?2
    UNION ALL
    SELECT (SELECT min(run_id) FROM journal WHERE tenant = ?1 AND run_id > journaled.run_id)
    FROM journaled
    WHERE journaled.run_id IS NOT NULL
    LIMIT ?3 + 1
)
SELECT run_id FROM (
    SELECT run_id FROM journaled WHERE run_id IS NOT NULL
    UNION
    SELECT run_id FROM (
        SELECT run_id FROM runs WHERE tenant = ?1 AND run_id > ?2 ORDER BY run_id LIMIT ?3
    )
)
ORDER BY run_id
LIMIT ?3;

-- name: list_runs_of_peers
-- The runs that a run waits for as their caller, of those that want a worker or wait themselves.
SELECT r.tenant, r.run_id, r.agent, r.status, r.blocked_reason, r.created_at, r.ready_at, r.worker,
       r.lease_seq, r.attempts, r.waiting_on, r.result_seq, r.root_id, r.parent_id, r.forked_from,
       r.forked_version, r.input_digest, r.schema, r.reply_to, r.subject, r.owner,
       r.handoff, r.giver, r.wish, r.contexts, r.reverts, r.is_recovering, r.lost, r.losses, r.proof
FROM waits w
JOIN proven_runs r ON r.tenant = w.tenant
           AND r.run_id = CASE WHEN w.address LIKE 'call:%' THEN substr(w.address, 6)
                               ELSE w.wait_id END
WHERE w.tenant = ?1 AND w.run_id = ?2 AND w.status = 'open' AND w.kind = 'peer'
  AND r.status IN ('ready', 'waiting')
ORDER BY r.status, w.wait_id
LIMIT ?3;

-- name: list_expired_runs
-- Runs of an agent that no run called, that ended before a moment, that owe nobody anything, and
-- whose bodies were not erased since; oldest first, after the one named by (created_at, run_id).
SELECT r.tenant, r.run_id, r.agent, r.status, r.blocked_reason, r.created_at, r.ready_at, r.worker,
       r.lease_seq, r.attempts, r.waiting_on, r.result_seq, r.root_id, r.parent_id, r.forked_from,
       r.forked_version, r.input_digest, r.schema, r.reply_to, r.subject, r.owner,
       r.handoff, r.giver, r.wish, r.contexts, r.reverts, r.is_recovering, r.lost, r.losses, r.proof
FROM proven_runs r
JOIN journal e ON e.tenant = r.tenant AND e.run_id = r.run_id AND e.seq = r.result_seq
WHERE r.tenant = ?1 AND r.agent = ?2 AND r.created_at < ?3
  AND (r.created_at, r.run_id) > (?4, ?5)
  AND r.status IN ('completed', 'failed', 'cancelled') AND r.parent_id = ''
  AND e.at < ?3
  AND NOT EXISTS (SELECT 1 FROM journal g
                  WHERE g.tenant = r.tenant AND g.run_id = r.run_id
                    AND g.kind = 'BODIES_ERASED' AND g.seq > r.result_seq)
  AND NOT EXISTS (SELECT 1 FROM messages m
                  WHERE m.tenant = r.tenant AND m.queue IN ('outbox', 'outgoing')
                    AND m.ordering = r.run_id AND m.ordering <> '' AND m.status = 'ready')
ORDER BY r.created_at, r.run_id
LIMIT ?6;

-- name: list_live_runs
-- A page of the runs of an agent that have not ended; oldest first, after the one named by
-- (created_at, run_id).
SELECT tenant, run_id, agent, status, blocked_reason, created_at, ready_at, worker, lease_seq,
       attempts, waiting_on, result_seq, root_id, parent_id, forked_from, forked_version,
       input_digest, schema, reply_to, subject, owner,
       handoff, giver, wish, contexts, reverts, is_recovering, lost, losses, proof
FROM proven_runs
WHERE tenant = ?1 AND agent = ?2
  AND status IN ('ready', 'running', 'waiting', 'blocked')
  AND (created_at, run_id) > (?3, ?4)
ORDER BY created_at, run_id
LIMIT ?5;

-- name: list_live_runs_by_subject
-- The same, of one subject.
SELECT tenant, run_id, agent, status, blocked_reason, created_at, ready_at, worker, lease_seq,
       attempts, waiting_on, result_seq, root_id, parent_id, forked_from, forked_version,
       input_digest, schema, reply_to, subject, owner,
       handoff, giver, wish, contexts, reverts, is_recovering, lost, losses, proof
FROM proven_runs
WHERE tenant = ?1 AND agent = ?2
  AND subject = ?6 AND subject <> ''
  AND status IN ('ready', 'running', 'waiting', 'blocked')
  AND (created_at, run_id) > (?3, ?4)
ORDER BY created_at, run_id
LIMIT ?5;

-- name: tree_standing
-- What there is below a run, through those that wait: any that goes on, any that is blocked; and any
-- question that is open, its own too. Those that have ended are not looked at.
WITH RECURSIVE tree (run_id, status) AS (
    SELECT run_id, status FROM runs WHERE tenant = ?1 AND run_id = ?2
    UNION ALL
    SELECT r.run_id, r.status
    FROM tree t
    JOIN runs r ON r.tenant = ?1 AND r.parent_id = t.run_id AND r.parent_id <> ''
    WHERE t.status = 'waiting' AND r.status IN ('ready', 'running', 'waiting', 'blocked')
)
SELECT EXISTS (SELECT 1 FROM tree WHERE status IN ('ready', 'running') AND run_id <> ?2),
       EXISTS (SELECT 1 FROM tree WHERE status = 'blocked' AND run_id <> ?2),
       EXISTS (SELECT 1 FROM tree t JOIN waits w ON w.tenant = ?1 AND w.run_id = t.run_id
               WHERE t.status = 'waiting' AND w.status = 'open'
                 AND w.kind IN ('question', 'approval'));
