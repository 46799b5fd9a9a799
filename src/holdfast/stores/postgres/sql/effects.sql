-- name: add_effect
-- Part of a commit. Effects' rows, in the commit of their intents; one whose key is taken is left
-- out, and the commit is refused for it. Sorted by key, because keys are shared between runs. An
-- earlier intent with this key in the journal needs a row that leads to the entry saying it was not
-- done. (A scalar subquery, because an EXISTS may be planned as a walk over the whole journal.)
INSERT INTO effects (tenant, effect_id, key, run_id, tool, call_id, args_digest, status, issued_seq,
                     issued_at, limit_at, lease_seq, result_seq, settled_at)
SELECT :tenant, e.effect_id, e.key, e.run_id, e.tool, e.call_id, decode(e.args_digest, 'base64'),
       e.status, e.issued_seq, e.issued_at, e.limit_at, e.lease_seq, e.result_seq, e.settled_at
FROM json_to_recordset(:effects)
     AS e (effect_id uuid, key text, run_id text, tool text, call_id text, args_digest text,
           status text, issued_seq bigint, issued_at bigint, limit_at bigint, lease_seq bigint,
           result_seq bigint, settled_at bigint)
WHERE (e.run_id IN (SELECT run_id FROM stored)) IS TRUE
  AND (
        SELECT count(*)
        FROM journal j
        LEFT JOIN effects p ON p.tenant = j.tenant AND p.run_id = j.run_id AND p.issued_seq = j.seq
        LEFT JOIN journal n ON n.tenant = p.tenant AND n.run_id = p.run_id AND n.seq = p.result_seq
                           AND n.kind = 'EFFECT_NOT_DONE'
                           AND substring(n.facts FROM 4 FOR 16) = uuid_send(p.effect_id)
        WHERE j.tenant = :tenant AND j.kind = 'EFFECT_ISSUED'
          AND j.proof = substring(sha256(convert_to(e.key, 'UTF8')) FROM 1 FOR 16)
          AND (j.run_id <> e.run_id OR j.seq <> e.issued_seq)
          AND n.seq IS NULL
  ) = 0
ORDER BY e.key COLLATE "C"
ON CONFLICT DO NOTHING
RETURNING run_id, effect_id::text AS item;

-- name: restore_effect
-- Part of a rebuild. The same for rows that are rebuilt from the journal.
INSERT INTO effects (tenant, effect_id, key, run_id, tool, call_id, args_digest, status, issued_seq,
                     issued_at, limit_at, lease_seq, result_seq, settled_at)
SELECT :tenant, e.effect_id, e.key, e.run_id, e.tool, e.call_id, decode(e.args_digest, 'base64'),
       e.status, e.issued_seq, e.issued_at, e.limit_at, e.lease_seq, e.result_seq, e.settled_at
FROM json_to_recordset(:restored_effects)
     AS e (effect_id uuid, key text, run_id text, tool text, call_id text, args_digest text,
           status text, issued_seq bigint, issued_at bigint, limit_at bigint, lease_seq bigint,
           result_seq bigint, settled_at bigint)
WHERE (e.run_id IN (SELECT run_id FROM stored)) IS TRUE
ORDER BY e.key COLLATE "C"
ON CONFLICT DO NOTHING
RETURNING run_id, effect_id::text AS item;

-- name: list_intents
-- The entries that issued an effect with this digest of a key.
SELECT tenant, run_id, seq, kind, at, actor, schema, encoding, key_id, facts
FROM journal
WHERE tenant = $1 AND kind = 'EFFECT_ISSUED' AND proof = $2;

-- name: settle_effect_once
-- Part of a commit. What became of effects; one whose outcome is known already is left out, and
-- the commit is refused for it.
UPDATE effects e
SET status = n.status, result_seq = n.seq, settled_at = n.at
FROM json_to_recordset(:settled_effects)
     AS n (run_id text, effect_id uuid, status text, seq bigint, at bigint)
WHERE (n.run_id IN (SELECT run_id FROM stored)) IS TRUE
  AND e.tenant = :tenant AND e.effect_id = n.effect_id
  AND e.status IN ('issued', 'unknown') AND e.status <> n.status
RETURNING n.run_id, n.effect_id::text AS item;

-- name: get_effect
-- One effect by its id.
SELECT tenant, effect_id, key, run_id, tool, call_id, args_digest, status, issued_seq, issued_at,
       limit_at, lease_seq, result_seq, settled_at
FROM effects
WHERE tenant = $1 AND effect_id = $2;

-- name: list_effects_by_id
-- PostgreSQL only. The effects that a batch of decisions looks at, in one round trip.
SELECT tenant, effect_id, key, run_id, tool, call_id, args_digest, status, issued_seq, issued_at,
       limit_at, lease_seq, result_seq, settled_at
FROM effects
WHERE tenant = $1 AND effect_id = ANY ($2::uuid[]);

-- name: get_effect_by_key
-- The effect that holds a key.
SELECT tenant, effect_id, key, run_id, tool, call_id, args_digest, status, issued_seq, issued_at,
       limit_at, lease_seq, result_seq, settled_at
FROM effects
WHERE tenant = $1 AND key = $2 AND status <> 'not_done';

-- name: list_effects_of_run
-- A run's effects in the order they were issued.
SELECT tenant, effect_id, key, run_id, tool, call_id, args_digest, status, issued_seq, issued_at,
       limit_at, lease_seq, result_seq, settled_at
FROM effects
WHERE tenant = $1 AND run_id = $2
ORDER BY issued_seq;

-- name: list_open_effects
-- Effects of one open status over all runs, those first whose time limit passed first.
SELECT tenant, effect_id, key, run_id, tool, call_id, args_digest, status, issued_seq, issued_at,
       limit_at, lease_seq, result_seq, settled_at
FROM effects
WHERE tenant = $1 AND status = $2 AND status IN ('issued', 'unknown')
ORDER BY limit_at, effect_id
LIMIT $3;

-- name: list_open_effects_of_owner
-- The same, over the runs of one owner.
SELECT e.tenant, e.effect_id, e.key, e.run_id, e.tool, e.call_id, e.args_digest, e.status,
       e.issued_seq, e.issued_at, e.limit_at, e.lease_seq, e.result_seq, e.settled_at
FROM effects e
JOIN runs r ON r.tenant = e.tenant AND r.run_id = e.run_id
WHERE e.tenant = $1 AND e.status = $2 AND e.status IN ('issued', 'unknown')
  AND r.owner = $4
ORDER BY e.limit_at, e.effect_id
LIMIT $3;

-- name: delete_effect_rows
-- Forget a run's rows before they are rebuilt from the journal.
DELETE FROM effects WHERE tenant = $1 AND run_id = $2;
