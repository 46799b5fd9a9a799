-- name: add_message
-- Part of a commit. Messages that commits owe; one whose id was used in its queue is there already.
INSERT INTO messages (tenant, queue, message_id, ordering, headers, body, created_at, due_at,
                      attempts, worker, status, note)
SELECT :tenant, m.queue, m.message_id, m.ordering, m.headers, decode(m.body, 'base64'),
       m.created_at, m.due_at, m.attempts, m.worker, m.status, m.note
FROM json_to_recordset(:owed_messages)
     AS m (queue text, message_id text, ordering text, headers text, body text, created_at bigint,
           due_at bigint, attempts bigint, worker text, status text, note text)
WHERE (m.ordering IN (SELECT run_id FROM stored)) IS TRUE
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
                     body, erased_digest, link, stored_at)
SELECT :tenant, e.run_id, e.seq, e.kind, e.at, e.actor, e.schema, e.encoding, e.key_id, e.facts,
       e.nonce, e.body, e.erased_digest, e.link, (SELECT max(stored_at) FROM stored)
FROM unnest(:begun_by, :begun_run_id, :begun_seq, :begun_kind, :begun_at, :begun_actor,
            :begun_schema, :begun_encoding, :begun_key_id, :begun_facts, :begun_nonce, :begun_body,
            :begun_erased_digest, :begun_link)
     AS e (by, run_id, seq, kind, at, actor, schema, encoding, key_id, facts, nonce, body,
           erased_digest, link)
WHERE (e.by IN (SELECT run_id FROM stored)) IS TRUE
ORDER BY e.run_id COLLATE "C", e.seq;

-- name: begin_runs
-- PostgreSQL only. Part of a commit. The rows of runs that begin with a commit of another.
INSERT INTO runs (tenant, run_id, agent, status, blocked_reason, created_at, ready_at, worker,
                  lease_seq, attempts, waiting_on, result_seq, root_id, parent_id, forked_from,
                  forked_version, input_digest, schema, reply_to)
SELECT :tenant, r.run_id, r.agent, r.status, r.blocked_reason, r.created_at, r.ready_at, r.worker,
       r.lease_seq, r.attempts, r.waiting_on, r.result_seq, r.root_id, r.parent_id, r.forked_from,
       r.forked_version, decode(r.input_digest, 'base64'), r.schema, r.reply_to
FROM json_to_recordset(:begun_runs)
     AS r (run_id text, agent text, status text, blocked_reason text, created_at bigint,
           ready_at bigint, worker text, lease_seq bigint, attempts bigint, waiting_on text,
           result_seq bigint, root_id text, parent_id text, forked_from text, forked_version bigint,
           input_digest text, schema bigint, reply_to text)
WHERE (r.parent_id IN (SELECT run_id FROM stored)) IS TRUE
ORDER BY r.run_id COLLATE "C";
