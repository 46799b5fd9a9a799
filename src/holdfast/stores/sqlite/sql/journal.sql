-- name: append_first_entry
-- The first entry of a commit: stored only if the journal ends where the commit continues.
INSERT INTO journal (tenant, run_id, seq, kind, at, actor, schema, encoding, key_id, facts, nonce,
                     body, erased_digest, link, proof, stored_at)
SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16
WHERE ?3 = 1
   OR EXISTS (
       SELECT 1 FROM journal
       WHERE tenant = ?1 AND run_id = ?2 AND seq = ?3 - 1 AND link = ?17
   )
ON CONFLICT DO NOTHING;

-- name: append_entry
-- Another entry of a commit whose first one was stored.
INSERT INTO journal (tenant, run_id, seq, kind, at, actor, schema, encoding, key_id, facts, nonce,
                     body, erased_digest, link, proof, stored_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16);

-- name: add_body
-- SQLite only, because PostgreSQL moves what is large out of line by itself. A body that is not
-- small, beside the entry stored just before.
INSERT INTO bodies (id, body)
VALUES (last_insert_rowid(), ?1);

-- name: get_link
-- The link of one entry.
SELECT link
FROM journal
WHERE tenant = ?1 AND run_id = ?2 AND seq = ?3;

-- name: get_head
-- Where a journal ends.
SELECT seq, link, at
FROM journal
WHERE tenant = ?1 AND run_id = ?2
ORDER BY seq DESC
LIMIT 1;

-- name: read_entries
-- A stretch of a journal, in order.
SELECT e.tenant, e.run_id, e.seq, e.kind, e.at, e.actor, e.schema, e.encoding, e.key_id, e.facts,
       e.nonce, coalesce(e.body, b.body), e.erased_digest, e.link, e.proof
FROM journal e
LEFT JOIN bodies b ON b.id = e.id
WHERE e.tenant = ?1 AND e.run_id = ?2 AND e.seq > ?3
ORDER BY e.seq
LIMIT ?4;

-- name: read_checkpoint_entries
-- The checkpoints of a stretch, each with the link before it.
SELECT e.tenant, e.run_id, e.seq, e.kind, e.at, e.actor, e.schema, e.encoding, e.key_id, e.facts,
       e.nonce, coalesce(e.body, b.body), e.erased_digest, e.link, e.proof, p.link
FROM journal e
LEFT JOIN bodies b ON b.id = e.id
LEFT JOIN journal p ON p.tenant = e.tenant AND p.run_id = e.run_id AND p.seq = e.seq - 1
WHERE e.tenant = ?1 AND e.run_id = ?2 AND e.seq > ?3 AND e.seq <= ?4
  AND e.kind = 'CHECKPOINT_CREATED'
ORDER BY e.seq;

-- name: read_named_entries
-- Entries by their seqs (a JSON array), each with the link before it. CROSS JOIN keeps SQLite from
-- walking the whole journal and looking each entry up in the array.
SELECT e.tenant, e.run_id, e.seq, e.kind, e.at, e.actor, e.schema, e.encoding, e.key_id, e.facts,
       e.nonce, coalesce(e.body, b.body), e.erased_digest, e.link, e.proof, p.link
FROM json_each(?3) AS wanted
CROSS JOIN journal e ON e.tenant = ?1 AND e.run_id = ?2 AND e.seq = wanted.value
LEFT JOIN bodies b ON b.id = e.id
LEFT JOIN journal p ON p.tenant = e.tenant AND p.run_id = e.run_id AND p.seq = e.seq - 1
ORDER BY e.seq;

-- name: get_extent
-- Where a journal ends, and how many entries it has.
SELECT coalesce(max(seq), 0), count(*)
FROM journal
WHERE tenant = ?1 AND run_id = ?2;

-- name: read_seqs
-- The seqs of a journal's entries, in order.
SELECT seq
FROM journal
WHERE tenant = ?1 AND run_id = ?2
ORDER BY seq;

-- name: read_headers
-- Entries by their runs and seqs (JSON), without their bodies.
SELECT e.tenant, e.run_id, e.seq, e.kind, e.at, e.actor, e.schema, e.encoding, e.key_id, e.facts
FROM json_each(?2) AS w
CROSS JOIN journal e
    ON e.tenant = ?1 AND e.run_id = w.value ->> 'run_id' AND e.seq = w.value ->> 'seq';

-- name: read_headers_after
-- The entries of a stretch without their bodies, in order.
SELECT tenant, run_id, seq, kind, at, actor, schema, encoding, key_id, facts
FROM journal
WHERE tenant = ?1 AND run_id = ?2 AND seq > ?3
ORDER BY seq
LIMIT ?4;

-- name: read_budget_entries
-- The entries of a run that change its budget or what is reserved on it, without bodies, in order.
SELECT tenant, run_id, seq, kind, at, actor, schema, encoding, key_id, facts
FROM journal
WHERE tenant = ?1 AND run_id = ?2 AND seq > ?3
  AND kind IN ('BUDGET_SET', 'BUDGET_RESERVED', 'BUDGET_WARNED', 'COST_RECORDED')
ORDER BY seq
LIMIT ?4;

-- name: read_telling_entries
-- What the journal tells of checkpoints, by their places and ids (JSON): the entry of each, and the
-- last that changes it, makes it final, links it, or takes it away; each with the link before it.
SELECT e.tenant, e.run_id, e.seq, e.kind, e.at, e.actor, e.schema, e.encoding, e.key_id, e.facts,
       e.nonce, CASE WHEN ?3 THEN coalesce(e.body, b.body) END, e.erased_digest, e.link, e.proof, p.link
FROM (
    SELECT j.id
    FROM json_each(?2) AS w
    CROSS JOIN journal j
        ON j.tenant = ?1 AND j.run_id = w.value ->> 'run_id' AND j.seq = w.value ->> 'seq'
    UNION ALL
    SELECT (SELECT j.id FROM journal j
            WHERE j.tenant = ?1
              AND j.kind IN ('CHECKPOINT_UPDATED', 'CHECKPOINT_FINALIZED', 'CHECKPOINT_DELETED')
              AND j.kind = 'CHECKPOINT_UPDATED' AND substr(j.facts, 4, 16) = unhex(w.value ->> 'id')
            ORDER BY j.seq DESC
            LIMIT 1)
    FROM json_each(?2) AS w
    UNION ALL
    SELECT (SELECT j.id FROM journal j
            WHERE j.tenant = ?1
              AND j.kind IN ('CHECKPOINT_UPDATED', 'CHECKPOINT_FINALIZED', 'CHECKPOINT_DELETED')
              AND j.kind = 'CHECKPOINT_FINALIZED' AND substr(j.facts, 4, 16) = unhex(w.value ->> 'id')
            ORDER BY j.seq DESC
            LIMIT 1)
    FROM json_each(?2) AS w
    UNION ALL
    SELECT (SELECT j.id FROM journal j
            WHERE j.tenant = ?1
              AND j.kind IN ('CHECKPOINT_UPDATED', 'CHECKPOINT_FINALIZED', 'CHECKPOINT_DELETED')
              AND j.kind = 'CHECKPOINT_DELETED' AND substr(j.facts, 4, 16) = unhex(w.value ->> 'id')
            ORDER BY j.seq DESC
            LIMIT 1)
    FROM json_each(?2) AS w
    UNION ALL
    SELECT (SELECT j.id FROM journal j
            WHERE j.tenant = ?1 AND j.kind = 'CHECKPOINT_LINKED'
              AND substr(j.facts, 22, 16) = unhex(w.value ->> 'id')
            ORDER BY j.seq DESC
            LIMIT 1)
    FROM json_each(?2) AS w
) AS told
CROSS JOIN journal e ON e.id = told.id
LEFT JOIN bodies b ON ?3 AND b.id = e.id
LEFT JOIN journal p ON p.tenant = e.tenant AND p.run_id = e.run_id AND p.seq = e.seq - 1;

-- name: read_told_checkpoint
-- The entry of a checkpoint that tells of a record, by its id, with the link before it.
SELECT e.tenant, e.run_id, e.seq, e.kind, e.at, e.actor, e.schema, e.encoding, e.key_id, e.facts,
       e.nonce, coalesce(e.body, b.body), e.erased_digest, e.link, e.proof, p.link
FROM journal e
LEFT JOIN bodies b ON b.id = e.id
LEFT JOIN journal p ON p.tenant = e.tenant AND p.run_id = e.run_id AND p.seq = e.seq - 1
WHERE e.tenant = ?1 AND e.kind = 'CHECKPOINT_CREATED' AND substr(e.facts, -1) <> x'c0'
  AND substr(e.facts, 4, 16) = ?2;

-- name: read_tombstones
-- The entries that take versions of a run away, in order.
SELECT tenant, run_id, seq, kind, at, actor, schema, encoding, key_id, facts
FROM journal
WHERE tenant = ?1 AND run_id = ?2 AND kind IN ('CHECKPOINT_DELETED', 'CHECKPOINTS_PRUNED')
  AND kind IN ('CHECKPOINT_DELETED', 'CHECKPOINTS_PRUNED', 'BODIES_ERASED')
ORDER BY seq;

-- name: read_erasures
-- The entries that tell of erased bodies, in order.
SELECT e.tenant, e.run_id, e.seq, e.kind, e.at, e.actor, e.schema, e.encoding, e.key_id, e.facts,
       e.nonce, coalesce(e.body, b.body), e.erased_digest, e.link, e.proof
FROM journal e
LEFT JOIN bodies b ON b.id = e.id
WHERE e.tenant = ?1 AND e.run_id = ?2 AND e.kind = 'BODIES_ERASED'
ORDER BY e.seq;

-- name: erase_bodies
-- Put digests in the place of bodies, from and to; one that was erased before is left alone.
UPDATE journal
SET erased_digest = holdfast_sha256(
        nonce, coalesce(body, (SELECT b.body FROM bodies b WHERE b.id = journal.id))
    ),
    body = NULL
WHERE tenant = ?1 AND run_id = ?2 AND seq BETWEEN ?3 AND ?4 AND erased_digest IS NULL
  AND (body IS NOT NULL OR EXISTS (SELECT 1 FROM bodies b WHERE b.id = journal.id));

-- name: drop_erased_bodies
-- SQLite only, because PostgreSQL keeps no bodies apart. Those of entries that have digests now.
DELETE FROM bodies
WHERE id IN (SELECT id FROM journal
             WHERE tenant = ?1 AND run_id = ?2 AND seq BETWEEN ?3 AND ?4
               AND erased_digest IS NOT NULL);

-- name: read_feed
-- The tenant's entries over all runs after a place in the feed, without their bodies. The plus keeps
-- SQLite from sorting all entries of the tenant.
SELECT e.id, e.run_id, e.seq, e.kind, e.at, e.actor, e.schema, e.facts, coalesce(r.agent, '')
FROM journal e
LEFT JOIN runs r ON r.tenant = e.tenant AND r.run_id = e.run_id
WHERE e.id > ?2 AND +e.tenant = ?1
ORDER BY e.id
LIMIT ?5;

-- name: get_feed_end
-- A place before which nothing will be added to the feed.
SELECT id
FROM journal
WHERE ?1 <> ''
ORDER BY id DESC
LIMIT 1;
