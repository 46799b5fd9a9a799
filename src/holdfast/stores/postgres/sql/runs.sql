-- name: get_run
-- One run's row, and what it is compared with.
SELECT tenant, run_id, agent, status, blocked_reason, created_at, ready_at, worker, lease_seq,
       attempts, waiting_on, result_seq, root_id, parent_id, forked_from, forked_version,
       input_digest, schema, reply_to, subject, owner,
       handoff, giver, wish, contexts, reverts, is_recovering, lost, losses, proof
FROM proven_runs
WHERE tenant = $1 AND run_id = $2;

-- name: get_run_proof
-- The last entry that changed a run's row with the link before it, and how many entries there are.
SELECT e.tenant, e.run_id, e.seq, e.kind, e.at, e.actor, e.schema, e.encoding, e.key_id, e.facts,
       e.nonce, e.body, e.erased_digest, e.link, e.proof,
       (SELECT p.link FROM journal p
        WHERE p.tenant = e.tenant AND p.run_id = e.run_id AND p.seq = e.seq - 1),
       (SELECT max(a.seq) FROM journal a WHERE a.tenant = e.tenant AND a.run_id = e.run_id),
       (SELECT count(*) FROM journal a WHERE a.tenant = e.tenant AND a.run_id = e.run_id)
FROM journal e
WHERE e.tenant = $1 AND e.run_id = $2 AND e.proof IS NOT NULL
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
WHERE tenant = $1 AND run_id = $2;

-- name: get_run_at_head
-- One run's row and where its journal ends, in one statement: both are of one moment.
SELECT r.tenant, r.run_id, r.agent, r.status, r.blocked_reason, r.created_at, r.ready_at, r.worker,
       r.lease_seq, r.attempts, r.waiting_on, r.result_seq, r.root_id, r.parent_id, r.forked_from,
       r.forked_version, r.input_digest, r.schema, r.reply_to, r.subject, r.owner,
       r.handoff, r.giver, r.wish, r.contexts, r.reverts, r.is_recovering,
       r.lost, r.losses, r.proof, j.seq, j.link
FROM proven_runs r
JOIN journal j ON j.tenant = r.tenant AND j.run_id = r.run_id
WHERE r.tenant = $1 AND r.run_id = $2
ORDER BY j.seq DESC
LIMIT 1;

-- name: put_run
-- Part of a commit. Write runs' rows as they are after their entries.
INSERT INTO runs (tenant, run_id, agent, status, blocked_reason, created_at, ready_at, worker,
                  lease_seq, attempts, waiting_on, result_seq, root_id, parent_id, forked_from,
                  forked_version, input_digest, schema, reply_to, subject, owner,
                  handoff, giver, wish, contexts, reverts, is_recovering, lost, losses)
SELECT :tenant, r.run_id, r.agent, r.status, r.blocked_reason, r.created_at, r.ready_at, r.worker,
       r.lease_seq, r.attempts, r.waiting_on, r.result_seq, r.root_id, r.parent_id, r.forked_from,
       r.forked_version, decode(r.input_digest, 'base64'), r.schema, r.reply_to, r.subject, r.owner,
       r.handoff, r.giver, r.wish, r.contexts, r.reverts, r.is_recovering, r.lost, r.losses
FROM json_to_recordset(:runs)
     AS r (run_id text, agent text, status text, blocked_reason text, created_at bigint,
           ready_at bigint, worker text, lease_seq bigint, attempts bigint, waiting_on text,
           result_seq bigint, root_id text, parent_id text, forked_from text, forked_version bigint,
           input_digest text, schema bigint, reply_to text, subject text, owner text,
           handoff text, giver text, wish text, contexts bigint, reverts bigint,
           is_recovering boolean, lost bigint, losses text)
WHERE (r.run_id IN (SELECT run_id FROM stored)) IS TRUE
ORDER BY r.run_id COLLATE "C"
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

-- name: lock_before_commit
-- PostgreSQL only. Part of a commit, before its entries: whoever changes runs' rows locks them
-- first, sorted, and only then adds to their journals. So nobody waits in a circle, or for long.
-- A pooler may have lost the session's settings, so what matters is set again.
SELECT run_id
FROM runs
WHERE (SELECT set_config('lock_timeout', :lock_timeout, true)) IS NOT NULL
  AND (SELECT set_config('synchronous_commit', CASE current_setting('synchronous_commit')
                         WHEN 'off' THEN 'on' WHEN 'local' THEN 'on'
                         ELSE current_setting('synchronous_commit') END, true)) IS NOT NULL
  AND tenant = :tenant AND run_id = ANY (:locked_run_id)
ORDER BY run_id
FOR NO KEY UPDATE;

-- name: lock_runs
-- PostgreSQL only. Lock the runs that outside writers name, or that their waits belong to, sorted.
-- What is read of them in later statements stays so, but for what their holders append.
SELECT run_id
FROM runs
WHERE tenant = $1
  AND run_id = ANY (ARRAY(SELECT unnest($2::text[]) UNION
                          SELECT w.run_id FROM waits w
                          WHERE w.tenant = $1 AND w.wait_id = ANY ($3::text[])))
ORDER BY run_id
FOR NO KEY UPDATE;

-- name: list_snapshots
-- PostgreSQL only. What decisions look at, of many runs: the row, where the journal ends, the
-- newest checkpoint, until when the holder counts as alive and how often it has beaten.
SELECT r.tenant, r.run_id, r.agent, r.status, r.blocked_reason, r.created_at, r.ready_at, r.worker,
       r.lease_seq, r.attempts, r.waiting_on, r.result_seq, r.root_id, r.parent_id, r.forked_from,
       r.forked_version, r.input_digest, r.schema, r.reply_to, r.subject, r.owner,
       r.handoff, r.giver, r.wish, r.contexts, r.reverts, r.is_recovering,
       r.lost, r.losses, r.proof, j.seq, j.link,
       c.seq, c.version, c.checkpoint_id, w.expires_at, w.beats
FROM proven_runs r
LEFT JOIN workers w ON w.tenant = r.tenant AND w.worker = r.worker
LEFT JOIN LATERAL (SELECT h.seq, h.link FROM journal h
                   WHERE h.tenant = r.tenant AND h.run_id = r.run_id
                   ORDER BY h.seq DESC LIMIT 1) j ON true
LEFT JOIN LATERAL (SELECT n.seq, n.version, n.checkpoint_id FROM checkpoints n
                   WHERE n.tenant = r.tenant AND n.run_id = r.run_id
                   ORDER BY n.version DESC LIMIT 1) c ON true
WHERE r.tenant = $1 AND r.run_id = ANY ($2::text[]);

-- name: list_runs
-- A page of runs, newest first, after the one named by (created_at, run_id).
SELECT tenant, run_id, agent, status, blocked_reason, created_at, ready_at, worker, lease_seq,
       attempts, waiting_on, result_seq, root_id, parent_id, forked_from, forked_version,
       input_digest, schema, reply_to, subject, owner,
       handoff, giver, wish, contexts, reverts, is_recovering, lost, losses, proof
FROM proven_runs
WHERE tenant = $1
  AND (created_at, run_id) < ($2, $3)
ORDER BY created_at DESC, run_id DESC
LIMIT $4;

-- name: list_runs_by_status
-- The same, of one status. Said so that only the index by status fits: by time it would be a walk
-- over all runs where the status is rare.
SELECT tenant, run_id, agent, status, blocked_reason, created_at, ready_at, worker, lease_seq,
       attempts, waiting_on, result_seq, root_id, parent_id, forked_from, forked_version,
       input_digest, schema, reply_to, subject, owner,
       handoff, giver, wish, contexts, reverts, is_recovering, lost, losses, proof
FROM proven_runs
WHERE tenant = $1
  AND status >= $5
  AND (status, created_at, run_id) < ($5, $2, $3)
ORDER BY status DESC, created_at DESC, run_id DESC
LIMIT $4;

-- name: list_runs_by_agent
-- The same, of one agent, and of one status unless that is NULL. Said so that only its index fits.
SELECT tenant, run_id, agent, status, blocked_reason, created_at, ready_at, worker, lease_seq,
       attempts, waiting_on, result_seq, root_id, parent_id, forked_from, forked_version,
       input_digest, schema, reply_to, subject, owner,
       handoff, giver, wish, contexts, reverts, is_recovering, lost, losses, proof
FROM proven_runs
WHERE tenant = $1
  AND agent >= $5
  AND ($6::text IS NULL OR status = $6)
  AND (agent, created_at, run_id) < ($5, $2, $3)
ORDER BY agent DESC, created_at DESC, run_id DESC
LIMIT $4;

-- name: list_runs_by_subject
-- The same, of one subject of one agent, and of one status unless that is NULL. Said so that only
-- its index fits.
SELECT tenant, run_id, agent, status, blocked_reason, created_at, ready_at, worker, lease_seq,
       attempts, waiting_on, result_seq, root_id, parent_id, forked_from, forked_version,
       input_digest, schema, reply_to, subject, owner,
       handoff, giver, wish, contexts, reverts, is_recovering, lost, losses, proof
FROM proven_runs
WHERE tenant = $1
  AND agent = $7
  AND subject >= $5
  AND subject <> ''
  AND ($6::text IS NULL OR status = $6)
  AND (subject, created_at, run_id) < ($5, $2, $3)
ORDER BY subject DESC, created_at DESC, run_id DESC
LIMIT $4;

-- name: list_runs_by_parent
-- The same, of those that have one parent, and of one agent and one status unless those are NULL.
-- Said so that only its index fits.
SELECT tenant, run_id, agent, status, blocked_reason, created_at, ready_at, worker, lease_seq,
       attempts, waiting_on, result_seq, root_id, parent_id, forked_from, forked_version,
       input_digest, schema, reply_to, subject, owner,
       handoff, giver, wish, contexts, reverts, is_recovering, lost, losses, proof
FROM proven_runs
WHERE tenant = $1
  AND parent_id >= $5
  AND parent_id <> ''
  AND ($6::text IS NULL OR agent = $6)
  AND ($7::text IS NULL OR status = $7)
  AND (parent_id, created_at, run_id) < ($5, $2, $3)
ORDER BY parent_id DESC, created_at DESC, run_id DESC
LIMIT $4;

-- name: list_runs_by_owner
-- The same, of one owner, and of one status, agent, subject and parent unless those are NULL. Said
-- so that only its index fits.
SELECT tenant, run_id, agent, status, blocked_reason, created_at, ready_at, worker, lease_seq,
       attempts, waiting_on, result_seq, root_id, parent_id, forked_from, forked_version,
       input_digest, schema, reply_to, subject, owner,
       handoff, giver, wish, contexts, reverts, is_recovering, lost, losses, proof
FROM proven_runs
WHERE tenant = $1
  AND owner >= $5
  AND owner <> ''
  AND ($6::text IS NULL OR status = $6)
  AND ($7::text IS NULL OR agent = $7)
  AND ($8::text IS NULL OR subject = $8)
  AND ($9::text IS NULL OR parent_id = $9)
  AND (owner, created_at, run_id) < ($5, $2, $3)
ORDER BY owner DESC, created_at DESC, run_id DESC
LIMIT $4;

-- name: count_runs
-- How many runs there are of each status.
SELECT status, count(*)
FROM runs
WHERE tenant = $1
GROUP BY status
ORDER BY status;

-- name: find_ready_runs
-- Runs that want a worker and have no newer entries than the schema given, longest waiting first;
-- each for one sweep only. A suspect, which has two losses or more, only if it is asked for: `],[` is
-- between two elements of the JSON array, and a row with damaged JSON does not stop the others.
SELECT run_id
FROM runs
WHERE tenant = $1 AND status = 'ready' AND ready_at <= $2 AND schema <= $4
  AND run_id <> ALL ($5::text[]) AND (losses NOT LIKE '%],[%' OR $6::boolean)
ORDER BY ready_at, run_id
LIMIT $3
FOR NO KEY UPDATE SKIP LOCKED;

-- name: find_ready_runs_of_agents
-- The same, for workers that serve some agents only.
SELECT run_id
FROM runs
WHERE tenant = $1 AND status = 'ready' AND ready_at <= $2 AND schema <= $4
  AND run_id <> ALL ($5::text[]) AND (losses NOT LIKE '%],[%' OR $6::boolean)
  AND agent = ANY ($7::text[])
ORDER BY ready_at, run_id
LIMIT $3
FOR NO KEY UPDATE SKIP LOCKED;

-- name: next_ready_at
-- When the next run that is put off wants a worker.
SELECT min(ready_at)
FROM runs
WHERE tenant = $1 AND status = 'ready';

-- name: find_suspect
-- The run of some agents (a JSON array of names) that is to be tried alone and has wanted a worker
-- longest, at a moment; not one with newer entries than the schema given. It has two losses or more
-- that count: those that were forgotten are in `lost` only.
SELECT run_id
FROM runs
WHERE tenant = $1 AND status = 'ready' AND lost > 1 AND losses LIKE '%],[%'
  AND ready_at <= $2 AND schema <= $4
  AND agent IN (SELECT json_array_elements_text($3::text::json))
ORDER BY ready_at, run_id
LIMIT 1;

-- name: count_failing_runs
-- How many runs of each agent its code has failed more than once in a row, and that are to be tried
-- again. Attempts that ended with the loss of a worker are not counted.
SELECT agent, count(*)
FROM runs
WHERE tenant = $1 AND attempts > 1 AND attempts - lost > 1 AND status = 'ready'
GROUP BY agent;

-- name: delete_run_rows
-- Forget a run's row before it is rebuilt from the journal.
DELETE FROM runs WHERE tenant = $1 AND run_id = $2;

-- name: lock_out_changes_of_runs
-- PostgreSQL only. Before rows are deleted and written anew: nobody locks or changes a run's row
-- meanwhile, of any run. Turns go on.
LOCK TABLE runs IN EXCLUSIVE MODE;

-- name: list_run_ids
-- A page of the ids of all runs: those with a journal (skipping from run to run), and those only
-- an index names.
WITH RECURSIVE journaled (run_id, taken) AS (
    SELECT (SELECT min(run_id) FROM journal WHERE tenant = $1 AND run_id > $2), 1
    UNION ALL
    SELECT (SELECT min(run_id) FROM journal WHERE tenant = $1 AND run_id > journaled.run_id),
           taken + 1
    FROM journaled
    WHERE journaled.run_id IS NOT NULL AND taken < $3
)
SELECT run_id FROM (
    SELECT run_id FROM journaled WHERE run_id IS NOT NULL
    UNION
    SELECT run_id FROM (
        SELECT run_id FROM runs WHERE tenant = $1 AND run_id > $2 ORDER BY run_id LIMIT $3
    ) indexed
) every
ORDER BY run_id
LIMIT $3;

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
WHERE w.tenant = $1 AND w.run_id = $2 AND w.status = 'open' AND w.kind = 'peer'
  AND r.status IN ('ready', 'waiting')
ORDER BY r.status, w.wait_id
LIMIT $3;

-- name: list_expired_runs
-- Runs of an agent that no run called, that ended before a moment, that owe nobody anything, and
-- whose bodies were not erased since; oldest first, after the one named by (created_at, run_id).
SELECT r.tenant, r.run_id, r.agent, r.status, r.blocked_reason, r.created_at, r.ready_at, r.worker,
       r.lease_seq, r.attempts, r.waiting_on, r.result_seq, r.root_id, r.parent_id, r.forked_from,
       r.forked_version, r.input_digest, r.schema, r.reply_to, r.subject, r.owner,
       r.handoff, r.giver, r.wish, r.contexts, r.reverts, r.is_recovering, r.lost, r.losses, r.proof
FROM proven_runs r
JOIN journal e ON e.tenant = r.tenant AND e.run_id = r.run_id AND e.seq = r.result_seq
WHERE r.tenant = $1 AND r.agent = $2 AND r.created_at < $3
  AND (r.created_at, r.run_id) > ($4, $5)
  AND r.status IN ('completed', 'failed', 'cancelled') AND r.parent_id = ''
  AND e.at < $3
  AND NOT EXISTS (SELECT 1 FROM journal g
                  WHERE g.tenant = r.tenant AND g.run_id = r.run_id
                    AND g.kind = 'BODIES_ERASED' AND g.seq > r.result_seq)
  AND NOT EXISTS (SELECT 1 FROM messages m
                  WHERE m.tenant = r.tenant AND m.queue IN ('outbox', 'outgoing')
                    AND m.ordering = r.run_id AND m.ordering <> '' AND m.status = 'ready')
ORDER BY r.created_at, r.run_id
LIMIT $6;

-- name: list_live_runs
-- A page of the runs of an agent that have not ended; oldest first, after the one named by
-- (created_at, run_id).
SELECT tenant, run_id, agent, status, blocked_reason, created_at, ready_at, worker, lease_seq,
       attempts, waiting_on, result_seq, root_id, parent_id, forked_from, forked_version,
       input_digest, schema, reply_to, subject, owner,
       handoff, giver, wish, contexts, reverts, is_recovering, lost, losses, proof
FROM proven_runs
WHERE tenant = $1 AND agent = $2
  AND status IN ('ready', 'running', 'waiting', 'blocked')
  AND (created_at, run_id) > ($3, $4)
ORDER BY created_at, run_id
LIMIT $5;

-- name: list_live_runs_by_subject
-- The same, of one subject.
SELECT tenant, run_id, agent, status, blocked_reason, created_at, ready_at, worker, lease_seq,
       attempts, waiting_on, result_seq, root_id, parent_id, forked_from, forked_version,
       input_digest, schema, reply_to, subject, owner,
       handoff, giver, wish, contexts, reverts, is_recovering, lost, losses, proof
FROM proven_runs
WHERE tenant = $1 AND agent = $2
  AND subject = $6 AND subject <> ''
  AND status IN ('ready', 'running', 'waiting', 'blocked')
  AND (created_at, run_id) > ($3, $4)
ORDER BY created_at, run_id
LIMIT $5;

-- name: tree_standing
-- What there is below a run, through those that wait: any that goes on, any that is blocked; and any
-- question that is open, its own too. Those that have ended are not looked at.
WITH RECURSIVE tree (run_id, status) AS (
    SELECT run_id, status FROM runs WHERE tenant = $1 AND run_id = $2
    UNION ALL
    SELECT r.run_id, r.status
    FROM tree t
    JOIN runs r ON r.tenant = $1 AND r.parent_id = t.run_id AND r.parent_id <> ''
    WHERE t.status = 'waiting' AND r.status IN ('ready', 'running', 'waiting', 'blocked')
)
SELECT EXISTS (SELECT 1 FROM tree WHERE status IN ('ready', 'running') AND run_id <> $2),
       EXISTS (SELECT 1 FROM tree WHERE status = 'blocked' AND run_id <> $2),
       EXISTS (SELECT 1 FROM tree t JOIN waits w ON w.tenant = $1 AND w.run_id = t.run_id
               WHERE t.status = 'waiting' AND w.status = 'open'
                 AND w.kind IN ('question', 'approval'));
