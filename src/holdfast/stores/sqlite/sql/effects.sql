-- name: add_effect
-- An effect's row, in the commit of its intent; nothing is stored while the key is taken. An earlier
-- intent with this key in the journal needs a row that leads to the entry saying it was not done.
INSERT INTO effects (tenant, effect_id, key, run_id, tool, call_id, args_digest, status, issued_seq,
                     issued_at, limit_at, lease_seq, result_seq, settled_at)
SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14
WHERE NOT EXISTS (
    SELECT 1
    FROM journal j
    LEFT JOIN effects e ON e.tenant = j.tenant AND e.run_id = j.run_id AND e.issued_seq = j.seq
    LEFT JOIN journal n ON n.tenant = e.tenant AND n.run_id = e.run_id AND n.seq = e.result_seq
                       AND n.kind = 'EFFECT_NOT_DONE' AND substr(n.facts, 4, 16) = e.effect_id
    WHERE j.tenant = ?1 AND j.kind = 'EFFECT_ISSUED'
      AND j.proof = (SELECT o.proof FROM journal o
                     WHERE o.tenant = ?1 AND o.run_id = ?4 AND o.seq = ?9)
      AND (j.run_id <> ?4 OR j.seq <> ?9)
      AND n.seq IS NULL
)
ON CONFLICT DO NOTHING;

-- name: restore_effect
-- The same for a row that is rebuilt from the journal.
INSERT INTO effects (tenant, effect_id, key, run_id, tool, call_id, args_digest, status, issued_seq,
                     issued_at, limit_at, lease_seq, result_seq, settled_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14)
ON CONFLICT DO NOTHING;

-- name: list_intents
-- The entries that issued an effect with this digest of a key.
SELECT tenant, run_id, seq, kind, at, actor, schema, encoding, key_id, facts
FROM journal
WHERE tenant = ?1 AND kind = 'EFFECT_ISSUED' AND proof = ?2;

-- name: settle_effect_once
-- What became of an effect; nothing is changed when that is known already.
UPDATE effects
SET status = ?3, result_seq = ?4, settled_at = ?5
WHERE tenant = ?1 AND effect_id = ?2 AND status IN ('issued', 'unknown') AND status <> ?3;

-- name: get_effect
-- One effect by its id.
SELECT tenant, effect_id, key, run_id, tool, call_id, args_digest, status, issued_seq, issued_at,
       limit_at, lease_seq, result_seq, settled_at
FROM effects
WHERE tenant = ?1 AND effect_id = ?2;

-- name: get_effect_by_key
-- The effect that holds a key.
SELECT tenant, effect_id, key, run_id, tool, call_id, args_digest, status, issued_seq, issued_at,
       limit_at, lease_seq, result_seq, settled_at
FROM effects
WHERE tenant = ?1 AND key = ?2 AND status <> 'not_done';

-- name: list_effects_of_run
-- A run's effects in the order they were issued.
SELECT tenant, effect_id, key, run_id, tool, call_id, args_digest, status, issued_seq, issued_at,
       limit_at, lease_seq, result_seq, settled_at
FROM effects
WHERE tenant = ?1 AND run_id = ?2
ORDER BY issued_seq;

-- name: list_open_effects
-- Effects of one open status over all runs, those first whose time limit passed first.
SELECT tenant, effect_id, key, run_id, tool, call_id, args_digest, status, issued_seq, issued_at,
       limit_at, lease_seq, result_seq, settled_at
FROM effects
WHERE tenant = ?1 AND status = ?2 AND status IN ('issued', 'unknown')
ORDER BY limit_at, effect_id
LIMIT ?3;

-- name: list_open_effects_of_owner
-- The same, over the runs of one owner.
SELECT e.tenant, e.effect_id, e.key, e.run_id, e.tool, e.call_id, e.args_digest, e.status,
       e.issued_seq, e.issued_at, e.limit_at, e.lease_seq, e.result_seq, e.settled_at
FROM effects e
JOIN runs r ON r.tenant = e.tenant AND r.run_id = e.run_id
WHERE e.tenant = ?1 AND e.status = ?2 AND e.status IN ('issued', 'unknown')
  AND r.owner = ?4
ORDER BY e.limit_at, e.effect_id
LIMIT ?3;

-- name: delete_effect_rows
-- Forget a run's rows before they are rebuilt from the journal.
DELETE FROM effects WHERE tenant = ?1 AND run_id = ?2;
