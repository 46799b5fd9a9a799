-- name: save_turn
-- PostgreSQL only. One turn of one run, the most frequent commit of all: append_first_entry and
-- add_checkpoint without the arrays, which cost a fifth of it. A pooler may have lost the session's
-- settings, so what matters is set again. It is a transaction of its own that sees the entry before,
-- so it is younger than that one's: `tx` need not be compared.
WITH stored AS (
    INSERT INTO journal (tenant, run_id, seq, kind, at, actor, schema, encoding, key_id, facts,
                         nonce, body, erased_digest, link, proof, stored_at, tx)
    SELECT $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15,
           (extract(epoch FROM clock_timestamp()) * 1000000)::bigint,
           (SELECT tx_base FROM identity) + pg_current_xact_id()::text::bigint
    WHERE (SELECT set_config('lock_timeout', $27, true)) IS NOT NULL
      AND (SELECT set_config('synchronous_commit', CASE current_setting('synchronous_commit')
                             WHEN 'off' THEN 'on' WHEN 'local' THEN 'on'
                             ELSE current_setting('synchronous_commit') END, true)) IS NOT NULL
      AND ($3 = 1 OR $16 = (SELECT link FROM journal
                            WHERE tenant = $1 AND run_id = $2 AND seq = $3 - 1))
    ON CONFLICT DO NOTHING
    RETURNING stored_at
), checkpoint AS (
    INSERT INTO checkpoints (tenant, run_id, version, seq, checkpoint_id, parent, base_seq,
                             created_at, phase, agent, status, label)
    SELECT $1, $2, $17, $18, $19, $20, $21, $22, $23, $24, $25, $26
    FROM stored
    ON CONFLICT DO NOTHING
)
SELECT stored_at FROM stored;

-- name: issue_effect
-- PostgreSQL only. One intent of one run, in the same way; fails if its key is taken, by a row or
-- by the journal (see add_effect).
WITH stored AS (
    INSERT INTO journal (tenant, run_id, seq, kind, at, actor, schema, encoding, key_id, facts,
                         nonce, body, erased_digest, link, proof, stored_at, tx)
    SELECT $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15,
           (extract(epoch FROM clock_timestamp()) * 1000000)::bigint,
           (SELECT tx_base FROM identity) + pg_current_xact_id()::text::bigint
    WHERE (SELECT set_config('lock_timeout', $29, true)) IS NOT NULL
      AND (SELECT set_config('synchronous_commit', CASE current_setting('synchronous_commit')
                             WHEN 'off' THEN 'on' WHEN 'local' THEN 'on'
                             ELSE current_setting('synchronous_commit') END, true)) IS NOT NULL
      AND ($3 = 1 OR $16 = (SELECT link FROM journal
                            WHERE tenant = $1 AND run_id = $2 AND seq = $3 - 1))
    ON CONFLICT DO NOTHING
    RETURNING stored_at
), added AS (
    INSERT INTO effects (tenant, effect_id, key, run_id, tool, call_id, args_digest, status,
                         issued_seq, issued_at, limit_at, lease_seq, result_seq, settled_at)
    SELECT $1, $17, $18, $2, $19, $20, $21, $22, $23, $24, $25, $26, $27, $28
    FROM stored
    WHERE (
        SELECT count(*)
        FROM journal j
        LEFT JOIN effects p ON p.tenant = j.tenant AND p.run_id = j.run_id AND p.issued_seq = j.seq
        LEFT JOIN journal n ON n.tenant = p.tenant AND n.run_id = p.run_id AND n.seq = p.result_seq
                           AND n.kind = 'EFFECT_NOT_DONE'
                           AND substring(n.facts FROM 4 FOR 16) = uuid_send(p.effect_id)
        WHERE j.tenant = $1 AND j.kind = 'EFFECT_ISSUED' AND j.proof = $15 AND n.seq IS NULL
    ) = 0
    ON CONFLICT DO NOTHING
    RETURNING effect_id
)
SELECT stored_at,
       CASE WHEN (SELECT count(*) FROM added) = 0
            THEN ('holdfast: a condition of a commit does not hold ' || stored_at)::integer END
FROM stored;

-- name: settle_effect
-- PostgreSQL only. What became of one effect, in the same way; fails if that is known already.
WITH stored AS (
    INSERT INTO journal (tenant, run_id, seq, kind, at, actor, schema, encoding, key_id, facts,
                         nonce, body, erased_digest, link, proof, stored_at, tx)
    SELECT $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15,
           (extract(epoch FROM clock_timestamp()) * 1000000)::bigint,
           (SELECT tx_base FROM identity) + pg_current_xact_id()::text::bigint
    WHERE (SELECT set_config('lock_timeout', $21, true)) IS NOT NULL
      AND (SELECT set_config('synchronous_commit', CASE current_setting('synchronous_commit')
                             WHEN 'off' THEN 'on' WHEN 'local' THEN 'on'
                             ELSE current_setting('synchronous_commit') END, true)) IS NOT NULL
      AND ($3 = 1 OR $16 = (SELECT link FROM journal
                            WHERE tenant = $1 AND run_id = $2 AND seq = $3 - 1))
    ON CONFLICT DO NOTHING
    RETURNING stored_at
), settled AS (
    UPDATE effects
    SET status = $18, result_seq = $19, settled_at = $20
    WHERE tenant = $1 AND effect_id = $17 AND status IN ('issued', 'unknown') AND status <> $18
      AND (SELECT count(*) FROM stored) = 1
    RETURNING effect_id
)
SELECT stored_at,
       CASE WHEN (SELECT count(*) FROM settled) = 0
            THEN ('holdfast: a condition of a commit does not hold ' || stored_at)::integer END
FROM stored;

-- name: tell_stored
-- PostgreSQL only. Part of a commit, at its end: whose entries are stored, by the server's clock.
SELECT 'stored' AS what, run_id, '' AS item, stored_at FROM stored;

-- name: tell_add_effect
-- PostgreSQL only. The effects whose key was free.
SELECT 'add_effect', run_id, item, 0 FROM add_effect;

-- name: tell_settle_effect_once
-- PostgreSQL only. The effects whose outcome was not known.
SELECT 'settle_effect_once', run_id, item, 0 FROM settle_effect_once;

-- name: tell_add_group
-- PostgreSQL only. The groups whose id was free.
SELECT 'add_group', run_id, item, 0 FROM add_group;

-- name: tell_add_wait
-- PostgreSQL only. The waits whose id was free.
SELECT 'add_wait', run_id, item, 0 FROM add_wait;

-- name: tell_settle_wait_once
-- PostgreSQL only. The waits that were open.
SELECT 'settle_wait_once', run_id, item, 0 FROM settle_wait_once;

-- name: tell_add_signal
-- PostgreSQL only. The signals whose id was free.
SELECT 'add_signal', run_id, item, 0 FROM add_signal;

-- name: tell_take_signal_once
-- PostgreSQL only. The signals that were untaken.
SELECT 'take_signal_once', run_id, item, 0 FROM take_signal_once;

-- name: tell_add_budget
-- PostgreSQL only. The runs that had no budget.
SELECT 'add_budget', run_id, item, 0 FROM add_budget;

-- name: tell_draw_budget
-- PostgreSQL only. The budgets that had room.
SELECT 'draw_budget', run_id, item, 0 FROM draw_budget;

-- name: tell_add_reservation
-- PostgreSQL only. The reservations whose id was free.
SELECT 'add_reservation', run_id, item, 0 FROM add_reservation;

-- name: tell_drop_reservation
-- PostgreSQL only. The reservations that were open.
SELECT 'drop_reservation', run_id, item, 0 FROM drop_reservation;

-- name: tell_add_mark
-- PostgreSQL only. The marks whose name was free, and whose parent was.
SELECT 'add_mark', run_id, item, 0 FROM add_mark;

-- name: tell_all
-- PostgreSQL only. All outcomes.
SELECT what, run_id, item, stored_at FROM outcomes;

-- name: refuse
-- PostgreSQL only. Part of a commit, at its end: when a condition did not hold, fail, so that
-- nothing is stored; the server's log then shows the words below. Unless the caller looks himself.
SELECT 'refused', '',
       ('holdfast: a condition of a commit does not hold ' || count(*))::integer::text, 0
FROM outcomes
WHERE what <> 'stored'
HAVING :is_strict AND count(*) <> (
    SELECT coalesce(sum(n.conditions), 0)
    FROM unnest(:first_run_id, :first_conditions) AS n (run_id, conditions)
    WHERE (n.run_id IN (SELECT run_id FROM stored)) IS TRUE
);

-- name: given_runs
-- PostgreSQL only. In place of entries: runs whose entries are stored already.
SELECT run_id, 0::bigint AS stored_at FROM unnest(:stored_run_id) AS g (run_id);
