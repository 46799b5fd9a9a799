-- name: append_first_entry
-- Part of a commit. The first entry of each run: stored only if its journal ends where the commit
-- continues. Rows go in sorted by run, after the locks. (An EXISTS would be planned as a walk over
-- the whole journal; a scalar subquery is a lookup.) A transaction that has locked rows may be older
-- than the one that wrote the entry before, and an entry is never before that in the feed.
INSERT INTO journal (tenant, run_id, seq, kind, at, actor, schema, encoding, key_id, facts, nonce,
                     body, erased_digest, link, proof, stored_at, tx)
SELECT :tenant, e.run_id, e.seq, e.kind, e.at, e.actor, e.schema, e.encoding, e.key_id, e.facts,
       e.nonce, e.body, e.erased_digest, e.link, e.proof,
       (extract(epoch FROM clock_timestamp()) * 1000000)::bigint,
       greatest((SELECT tx_base FROM identity) + pg_current_xact_id()::text::bigint,
                (SELECT p.tx FROM journal p
                 WHERE p.tenant = :tenant AND p.run_id = e.run_id AND p.seq = e.seq - 1))
FROM unnest(:first_run_id, :first_seq, :first_kind, :first_at, :first_actor, :first_schema,
            :first_encoding, :first_key_id, :first_facts, :first_nonce, :first_body,
            :first_erased_digest, :first_link, :first_proof, :first_after)
     AS e (run_id, seq, kind, at, actor, schema, encoding, key_id, facts, nonce, body,
           erased_digest, link, proof, after)
WHERE (SELECT count(*) FROM locked) >= 0
  AND (e.seq = 1
       OR e.after = (SELECT p.link FROM journal p
                     WHERE p.tenant = :tenant AND p.run_id = e.run_id AND p.seq = e.seq - 1))
ORDER BY e.run_id COLLATE "C"
ON CONFLICT DO NOTHING
RETURNING run_id, stored_at, tx;

-- name: append_entry
-- Part of a commit. The other entries of those commits whose first one was stored.
INSERT INTO journal (tenant, run_id, seq, kind, at, actor, schema, encoding, key_id, facts, nonce,
                     body, erased_digest, link, proof, stored_at, tx)
SELECT :tenant, e.run_id, e.seq, e.kind, e.at, e.actor, e.schema, e.encoding, e.key_id, e.facts,
       e.nonce, e.body, e.erased_digest, e.link, e.proof, (SELECT max(stored_at) FROM stored),
       (SELECT s.tx FROM stored s WHERE s.run_id = e.run_id)
FROM unnest(:rest_run_id, :rest_seq, :rest_kind, :rest_at, :rest_actor, :rest_schema,
            :rest_encoding, :rest_key_id, :rest_facts, :rest_nonce, :rest_body,
            :rest_erased_digest, :rest_link, :rest_proof)
     AS e (run_id, seq, kind, at, actor, schema, encoding, key_id, facts, nonce, body,
           erased_digest, link, proof)
WHERE (e.run_id IN (SELECT run_id FROM stored)) IS TRUE;

-- name: get_link
-- The link of one entry.
SELECT link
FROM journal
WHERE tenant = $1 AND run_id = $2 AND seq = $3;

-- name: list_links
-- PostgreSQL only. A batch asks at once which of its first entries are there already.
SELECT w.run_id, (SELECT j.link FROM journal j
                  WHERE j.tenant = $1 AND j.run_id = w.run_id AND j.seq = w.seq)
FROM unnest($2, $3) AS w (run_id, seq);

-- name: get_head
-- Where a journal ends.
SELECT seq, link, at
FROM journal
WHERE tenant = $1 AND run_id = $2
ORDER BY seq DESC
LIMIT 1;

-- name: read_entries
-- A stretch of a journal, in order; all of it when the limit is below 0.
SELECT tenant, run_id, seq, kind, at, actor, schema, encoding, key_id, facts, nonce, body,
       erased_digest, link, proof
FROM journal
WHERE tenant = $1 AND run_id = $2 AND seq > $3
ORDER BY seq
LIMIT CASE WHEN $4 >= 0 THEN $4 END;

-- name: read_checkpoint_entries
-- The checkpoints of a stretch, each with the link before it.
SELECT e.tenant, e.run_id, e.seq, e.kind, e.at, e.actor, e.schema, e.encoding, e.key_id, e.facts,
       e.nonce, e.body, e.erased_digest, e.link, e.proof,
       (SELECT p.link FROM journal p
        WHERE p.tenant = e.tenant AND p.run_id = e.run_id AND p.seq = e.seq - 1)
FROM journal e
WHERE e.tenant = $1 AND e.run_id = $2 AND e.seq > $3 AND e.seq <= $4
  AND e.kind = 'CHECKPOINT_CREATED'
ORDER BY e.seq;

-- name: read_named_entries
-- Entries by their seqs, each with the link before it.
SELECT e.tenant, e.run_id, e.seq, e.kind, e.at, e.actor, e.schema, e.encoding, e.key_id, e.facts,
       e.nonce, e.body, e.erased_digest, e.link, e.proof,
       (SELECT p.link FROM journal p
        WHERE p.tenant = e.tenant AND p.run_id = e.run_id AND p.seq = e.seq - 1)
FROM journal e
WHERE e.tenant = $1 AND e.run_id = $2 AND e.seq = ANY ($3::bigint[])
ORDER BY e.seq;

-- name: get_extent
-- Where a journal ends, and how many entries it has.
SELECT coalesce(max(seq), 0), count(*)
FROM journal
WHERE tenant = $1 AND run_id = $2;

-- name: read_seqs
-- The seqs of a journal's entries, in order.
SELECT seq
FROM journal
WHERE tenant = $1 AND run_id = $2
ORDER BY seq;

-- name: read_headers
-- Entries by their runs and seqs (JSON), without their bodies.
SELECT e.tenant, e.run_id, e.seq, e.kind, e.at, e.actor, e.schema, e.encoding, e.key_id, e.facts
FROM json_to_recordset($2::json) AS w (run_id text, seq bigint)
JOIN journal e ON e.tenant = $1 AND e.run_id = w.run_id AND e.seq = w.seq;

-- name: read_headers_after
-- The entries of a stretch without their bodies, in order.
SELECT tenant, run_id, seq, kind, at, actor, schema, encoding, key_id, facts
FROM journal
WHERE tenant = $1 AND run_id = $2 AND seq > $3
ORDER BY seq
LIMIT $4;

-- name: read_budget_entries
-- The entries of a run that change its budget or what is reserved on it, without bodies, in order.
SELECT tenant, run_id, seq, kind, at, actor, schema, encoding, key_id, facts
FROM journal
WHERE tenant = $1 AND run_id = $2 AND seq > $3
  AND kind IN ('BUDGET_SET', 'BUDGET_RESERVED', 'BUDGET_WARNED', 'COST_RECORDED')
ORDER BY seq
LIMIT $4;

-- name: read_telling_entries
-- What the journal tells of checkpoints, by their places and ids (JSON): the entry of each, and the
-- last that changes it, makes it final, links it, or takes it away; each with the link before it.
SELECT e.tenant, e.run_id, e.seq, e.kind, e.at, e.actor, e.schema, e.encoding, e.key_id, e.facts,
       e.nonce, CASE WHEN $3 THEN e.body END, e.erased_digest, e.link, e.proof,
       (SELECT p.link FROM journal p
        WHERE p.tenant = e.tenant AND p.run_id = e.run_id AND p.seq = e.seq - 1)
FROM json_to_recordset($2::json) AS w (run_id text, seq bigint, id text)
CROSS JOIN LATERAL (
    (SELECT j.* FROM journal j
     WHERE j.tenant = $1 AND j.run_id = w.run_id AND j.seq = w.seq)
    UNION ALL
    (SELECT j.* FROM journal j
     WHERE j.tenant = $1 AND j.kind = 'CHECKPOINT_UPDATED'
       AND (CASE j.kind WHEN 'CHECKPOINT_LINKED' THEN substring(j.facts FROM 22 FOR 16)
                        ELSE substring(j.facts FROM 4 FOR 16) END) = decode(w.id, 'hex')
     ORDER BY j.seq DESC
     LIMIT 1)
    UNION ALL
    (SELECT j.* FROM journal j
     WHERE j.tenant = $1 AND j.kind = 'CHECKPOINT_FINALIZED'
       AND (CASE j.kind WHEN 'CHECKPOINT_LINKED' THEN substring(j.facts FROM 22 FOR 16)
                        ELSE substring(j.facts FROM 4 FOR 16) END) = decode(w.id, 'hex')
     ORDER BY j.seq DESC
     LIMIT 1)
    UNION ALL
    (SELECT j.* FROM journal j
     WHERE j.tenant = $1 AND j.kind = 'CHECKPOINT_LINKED'
       AND (CASE j.kind WHEN 'CHECKPOINT_LINKED' THEN substring(j.facts FROM 22 FOR 16)
                        ELSE substring(j.facts FROM 4 FOR 16) END) = decode(w.id, 'hex')
     ORDER BY j.seq DESC
     LIMIT 1)
    UNION ALL
    (SELECT j.* FROM journal j
     WHERE j.tenant = $1 AND j.kind = 'CHECKPOINT_DELETED'
       AND (CASE j.kind WHEN 'CHECKPOINT_LINKED' THEN substring(j.facts FROM 22 FOR 16)
                        ELSE substring(j.facts FROM 4 FOR 16) END) = decode(w.id, 'hex')
     ORDER BY j.seq DESC
     LIMIT 1)
) AS e;

-- name: read_told_checkpoint
-- The entry of a checkpoint that tells of a record, by its id, with the link before it.
SELECT e.tenant, e.run_id, e.seq, e.kind, e.at, e.actor, e.schema, e.encoding, e.key_id, e.facts,
       e.nonce, e.body, e.erased_digest, e.link, e.proof,
       (SELECT p.link FROM journal p
        WHERE p.tenant = e.tenant AND p.run_id = e.run_id AND p.seq = e.seq - 1)
FROM journal e
WHERE e.tenant = $1 AND e.kind = 'CHECKPOINT_CREATED'
  AND substring(e.facts FROM length(e.facts) FOR 1) <> '\xc0'
  AND substring(e.facts FROM 4 FOR 16) = uuid_send($2);

-- name: read_tombstones
-- The entries that take versions of a run away, in order.
SELECT tenant, run_id, seq, kind, at, actor, schema, encoding, key_id, facts
FROM journal
WHERE tenant = $1 AND run_id = $2 AND kind IN ('CHECKPOINT_DELETED', 'CHECKPOINTS_PRUNED')
ORDER BY seq;

-- name: read_erasures
-- The entries that tell of erased bodies, in order.
SELECT tenant, run_id, seq, kind, at, actor, schema, encoding, key_id, facts, nonce, body,
       erased_digest, link, proof
FROM journal
WHERE tenant = $1 AND run_id = $2 AND kind = 'BODIES_ERASED'
ORDER BY seq;

-- name: erase_bodies
-- Part of a commit. Put digests in the place of bodies, from and to; one that was erased before is
-- left alone.
UPDATE journal j
SET erased_digest = sha256(j.nonce || j.body), body = NULL
FROM json_to_recordset(:erased_bodies) AS n (run_id text, first bigint, last bigint)
WHERE (n.run_id IN (SELECT run_id FROM stored)) IS TRUE
  AND j.tenant = :tenant AND j.run_id = n.run_id AND j.seq BETWEEN n.first AND n.last
  AND j.body IS NOT NULL;

-- name: read_feed
-- The tenant's entries over all runs after a place in the feed, without their bodies. Those of
-- transactions that may yet be followed by older ones wait.
SELECT e.tx, e.run_id, e.seq, e.kind, e.at, e.actor, e.schema, e.facts, coalesce(r.agent, '')
FROM journal e
LEFT JOIN runs r ON r.tenant = e.tenant AND r.run_id = e.run_id
WHERE e.tenant = $1 AND e.tx >= $2 AND (e.tx, e.run_id, e.seq) > ($2, $3, $4)
  AND e.tx < (SELECT tx_base FROM identity) + pg_snapshot_xmin(pg_current_snapshot())::text::bigint
ORDER BY e.tx, e.run_id, e.seq
LIMIT $5;

-- name: get_feed_end
-- A place before which nothing will be added to the feed.
SELECT tx_base + pg_snapshot_xmin(pg_current_snapshot())::text::bigint
FROM identity
WHERE $1 <> '';
