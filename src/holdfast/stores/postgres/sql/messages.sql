-- name: publish_message
-- Messages for their queues, many at once; nothing is stored for an id that its queue has. A pooler
-- may have lost the session's settings, so what matters is set again.
INSERT INTO messages (tenant, queue, message_id, ordering, headers, body, created_at, due_at,
                      attempts, worker, status, note)
SELECT $1, p.queue, p.message_id, p.ordering, p.headers, p.body, p.created_at, p.due_at, 0, '',
       'ready', ''
FROM unnest($2::text[], $3::text[], $4::text[], $5::text[], $6::bytea[], $7::bigint[],
            $8::bigint[])
     WITH ORDINALITY AS p (queue, message_id, ordering, headers, body, created_at, due_at, n)
WHERE (SELECT set_config('lock_timeout', $9, true)) IS NOT NULL
  AND (SELECT set_config('synchronous_commit', CASE current_setting('synchronous_commit')
                         WHEN 'off' THEN 'on' WHEN 'local' THEN 'on'
                         ELSE current_setting('synchronous_commit') END, true)) IS NOT NULL
ORDER BY p.n
ON CONFLICT DO NOTHING
RETURNING queue, message_id;

-- name: take_messages
-- Deliver what is due, in order; each message is given to one of those who ask. One of an ordering
-- waits for those before it: unless all of them that are ready are found here too, somebody else
-- has one, or is just taking it.
WITH found AS MATERIALIZED (
    SELECT m.id, m.ordering
    FROM messages m
    WHERE m.tenant = $1 AND m.queue = $2 AND m.status = 'ready' AND m.due_at <= $3
      AND (m.ordering = ''
           OR NOT EXISTS (SELECT 1
                          FROM messages e
                          WHERE e.tenant = $1 AND e.queue = $2 AND e.ordering = m.ordering
                            AND e.ordering <> '' AND e.status = 'ready' AND e.id < m.id
                            AND e.due_at > $3))
    ORDER BY m.id
    LIMIT $4
    FOR NO KEY UPDATE SKIP LOCKED
), given AS MATERIALIZED (
    SELECT f.id
    FROM found f
    WHERE f.ordering = ''
       OR NOT EXISTS (SELECT 1
                      FROM messages e
                      WHERE e.tenant = $1 AND e.queue = $2 AND e.ordering = f.ordering
                        AND e.ordering <> '' AND e.status = 'ready' AND e.id < f.id
                        AND NOT EXISTS (SELECT 1 FROM found g WHERE g.id = e.id))
)
UPDATE messages t
SET due_at = $5, worker = $6, attempts = t.attempts + 1
FROM given
WHERE t.id = given.id
RETURNING t.id, t.tenant, t.queue, t.message_id, t.ordering, t.headers, t.body, t.created_at,
          t.due_at, t.attempts, t.worker, t.status, t.note;

-- name: move_message
-- Change messages that are still as their movers know them, or as they want them already; and forget
-- some of those that were done long ago. What was delivered and need not be kept is forgotten, also
-- if somebody else has claimed it meanwhile: else a late acknowledgement would deliver it for ever.
-- At most one move of each.
WITH asked AS MATERIALIZED (
    SELECT a.*
    FROM unnest($2::text[], $3::text[], $4::text[], $5::bigint[], $6::text[], $7::text[],
                $8::bigint[], $9::text[], $10::bigint[], $11::text[], $12::bigint[],
                $16::bigint[])
         AS a (queue, message_id, worker, attempts, was, status, due_at, new_worker, new_attempts,
               note, is_forgotten, created_at)
    WHERE (SELECT set_config('lock_timeout', $15, true)) IS NOT NULL
      AND (SELECT set_config('synchronous_commit', CASE current_setting('synchronous_commit')
                             WHEN 'off' THEN 'on' WHEN 'local' THEN 'on'
                             ELSE current_setting('synchronous_commit') END, true)) IS NOT NULL
), forgotten AS (
    DELETE FROM messages m
    USING asked a
    WHERE a.is_forgotten = 1 AND m.tenant = $1 AND m.queue = a.queue
      AND m.message_id = a.message_id AND m.created_at = a.created_at AND m.status = a.was
    RETURNING m.queue, m.message_id
), moved AS (
    UPDATE messages m
    SET status = a.status, due_at = a.due_at, worker = a.new_worker, attempts = a.new_attempts,
        note = a.note
    FROM asked a
    WHERE a.is_forgotten = 0 AND m.tenant = $1 AND m.queue = a.queue
      AND m.message_id = a.message_id AND m.worker = a.worker AND m.attempts = a.attempts
      AND m.status IN (a.was, a.status)
    RETURNING m.queue, m.message_id
), purged AS (
    DELETE FROM messages
    WHERE id IN (SELECT p.id
                 FROM messages p
                 WHERE p.tenant = $1 AND p.queue = ANY ($2) AND p.status = 'done'
                   AND p.due_at <= $13
                 ORDER BY p.due_at
                 LIMIT $14
                 FOR UPDATE SKIP LOCKED)
)
SELECT queue, message_id FROM forgotten
UNION ALL
SELECT queue, message_id FROM moved;

-- name: forget_owed
-- Delete messages of the outbox that are delivered in the same transaction.
DELETE FROM messages
WHERE tenant = $1 AND queue = 'outbox' AND message_id = ANY ($2) AND status = 'ready';

-- name: get_message
-- One message of a queue.
SELECT tenant, queue, message_id, ordering, headers, body, created_at, due_at, attempts, worker,
       status, note
FROM messages
WHERE tenant = $1 AND queue = $2 AND message_id = $3;

-- name: count_messages
-- How many messages of each status a queue has.
SELECT status, count(*)
FROM messages
WHERE tenant = $1 AND queue = $2
GROUP BY status;

-- name: next_due_at
-- When the next message becomes due of those that are not due at the moment given.
SELECT min(due_at)
FROM messages
WHERE tenant = $1 AND queue = $2 AND status = 'ready' AND due_at > $3;

-- name: list_messages
-- The messages of a status, in the order they were published.
SELECT tenant, queue, message_id, ordering, headers, body, created_at, due_at, attempts, worker,
       status, note
FROM messages
WHERE tenant = $1 AND queue = $2 AND status = $3
ORDER BY id
LIMIT $4;

-- name: add_message
-- Part of a commit. Messages that commits owe; one whose id was used in its queue is there already.
INSERT INTO messages (tenant, queue, message_id, ordering, headers, body, created_at, due_at,
                      attempts, worker, status, note)
SELECT :tenant, m.queue, m.message_id, m.ordering, m.headers, decode(m.body, 'base64'),
       m.created_at, m.due_at, m.attempts, m.worker, m.status, m.note
FROM json_to_recordset(:owed_messages)
     AS m (queue text, message_id text, ordering text, headers text, body text, created_at bigint,
           due_at bigint, attempts bigint, worker text, status text, note text, run_id text)
WHERE (m.run_id IN (SELECT run_id FROM stored)) IS TRUE
ORDER BY m.queue COLLATE "C", m.message_id COLLATE "C"
ON CONFLICT DO NOTHING;

-- name: owe_cancels_of_group
-- Part of a commit. Tell the peers that closed groups no longer wait for.
INSERT INTO messages (tenant, queue, message_id, ordering, headers, body, created_at, due_at,
                      attempts, worker, status, note)
SELECT w.tenant, CASE WHEN w.address LIKE 'queue:%' THEN 'outgoing' ELSE 'outbox' END,
       w.wait_id || '/cancel', w.run_id,
       json_build_object('kind', 'cancel', 'address', w.address, 'subject', w.wait_id,
                         'seq', n.seq)::text,
       '', n.at, n.at, 0, '', 'ready', ''
FROM json_to_recordset(:closed_groups)
     AS n (run_id text, group_id text, seq bigint, by text, at bigint)
JOIN waits w ON w.tenant = :tenant AND w.run_id = n.run_id AND w.group_id = n.group_id
            AND w.status = 'open' AND w.kind = 'peer' AND w.address <> ''
WHERE (n.run_id IN (SELECT run_id FROM stored)) IS TRUE
ORDER BY w.wait_id
ON CONFLICT DO NOTHING;

-- name: owe_cancels_of_run
-- Part of a commit. Tell all peers that ended runs wait for.
INSERT INTO messages (tenant, queue, message_id, ordering, headers, body, created_at, due_at,
                      attempts, worker, status, note)
SELECT w.tenant, CASE WHEN w.address LIKE 'queue:%' THEN 'outgoing' ELSE 'outbox' END,
       w.wait_id || '/cancel', w.run_id,
       json_build_object('kind', 'cancel', 'address', w.address, 'subject', w.wait_id,
                         'seq', n.seq)::text,
       '', n.at, n.at, 0, '', 'ready', ''
FROM json_to_recordset(:ended_runs) AS n (run_id text, seq bigint, by text, at bigint)
JOIN waits w ON w.tenant = :tenant AND w.run_id = n.run_id
            AND w.status = 'open' AND w.kind = 'peer' AND w.address <> ''
WHERE (n.run_id IN (SELECT run_id FROM stored)) IS TRUE
ORDER BY w.wait_id
ON CONFLICT DO NOTHING;

-- name: begin_journal
-- PostgreSQL only. Part of a commit. The first entries of runs that begin with a commit of another.
INSERT INTO journal (tenant, run_id, seq, kind, at, actor, schema, encoding, key_id, facts, nonce,
                     body, erased_digest, link, proof, stored_at, tx)
SELECT :tenant, e.run_id, e.seq, e.kind, e.at, e.actor, e.schema, e.encoding, e.key_id, e.facts,
       e.nonce, e.body, e.erased_digest, e.link, e.proof, (SELECT max(stored_at) FROM stored),
       (SELECT tx_base FROM identity) + pg_current_xact_id()::text::bigint
FROM unnest(:begun_by, :begun_run_id, :begun_seq, :begun_kind, :begun_at, :begun_actor,
            :begun_schema, :begun_encoding, :begun_key_id, :begun_facts, :begun_nonce, :begun_body,
            :begun_erased_digest, :begun_link, :begun_proof)
     AS e (by, run_id, seq, kind, at, actor, schema, encoding, key_id, facts, nonce, body,
           erased_digest, link, proof)
WHERE (e.by IN (SELECT run_id FROM stored)) IS TRUE
ORDER BY e.run_id COLLATE "C", e.seq;

-- name: begin_runs
-- PostgreSQL only. Part of a commit. The rows of runs that begin with a commit of another.
INSERT INTO runs (tenant, run_id, agent, status, blocked_reason, created_at, ready_at, worker,
                  lease_seq, attempts, waiting_on, result_seq, root_id, parent_id, forked_from,
                  forked_version, input_digest, schema, reply_to, subject, owner,
                  handoff, giver, wish, contexts, reverts, is_recovering, lost, losses)
SELECT :tenant, r.run_id, r.agent, r.status, r.blocked_reason, r.created_at, r.ready_at, r.worker,
       r.lease_seq, r.attempts, r.waiting_on, r.result_seq, r.root_id, r.parent_id, r.forked_from,
       r.forked_version, decode(r.input_digest, 'base64'), r.schema, r.reply_to, r.subject, r.owner,
       r.handoff, r.giver, r.wish, r.contexts, r.reverts, r.is_recovering, r.lost, r.losses
FROM json_to_recordset(:begun_runs)
     AS r (run_id text, agent text, status text, blocked_reason text, created_at bigint,
           ready_at bigint, worker text, lease_seq bigint, attempts bigint, waiting_on text,
           result_seq bigint, root_id text, parent_id text, forked_from text, forked_version bigint,
           input_digest text, schema bigint, reply_to text, subject text, owner text,
           handoff text, giver text, wish text, contexts bigint, reverts bigint,
           is_recovering boolean, lost bigint, losses text)
WHERE (r.parent_id IN (SELECT run_id FROM stored)) IS TRUE
ORDER BY r.run_id COLLATE "C";
