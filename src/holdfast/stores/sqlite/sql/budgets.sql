-- name: add_budget
-- A run's first budget, in the commit of the entry that sets it; nothing is stored if it has one.
INSERT INTO budgets (tenant, run_id, usd_limit, tokens_limit, turns_limit, time_limit,
                     soft_percent, began_at, set_seq, spent_usd, spent_input_tokens,
                     spent_output_tokens, spent_turns, reserved_usd, reserved_input_tokens,
                     reserved_output_tokens, reserved_turns, warned)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18)
ON CONFLICT DO NOTHING;

-- name: draw_budget
-- What an entry does to a budget: other limits if ?3, amounts spent and reserved, warnings. Nothing
-- is changed unless there is room for what is needed (?18 to ?20, NULL if not asked for, at ?21).
UPDATE budgets
SET usd_limit = iif(?3, ?4, usd_limit), tokens_limit = iif(?3, ?5, tokens_limit),
    turns_limit = iif(?3, ?6, turns_limit), time_limit = iif(?3, ?7, time_limit),
    soft_percent = iif(?3, ?8, soft_percent), set_seq = iif(?3, ?9, set_seq),
    spent_usd = spent_usd + ?10, spent_input_tokens = spent_input_tokens + ?11,
    spent_output_tokens = spent_output_tokens + ?12, spent_turns = spent_turns + ?13,
    reserved_usd = reserved_usd + ?14, reserved_input_tokens = reserved_input_tokens + ?15,
    reserved_output_tokens = reserved_output_tokens + ?16, reserved_turns = reserved_turns + ?17,
    warned = iif(?3, 0, warned) | ?22
WHERE tenant = ?1 AND run_id = ?2
  AND (?18 IS NULL OR usd_limit IS NULL OR spent_usd + reserved_usd + ?18 <= usd_limit)
  AND (?19 IS NULL OR tokens_limit IS NULL
       OR spent_input_tokens + spent_output_tokens + reserved_input_tokens
          + reserved_output_tokens + ?19 <= tokens_limit)
  AND (?20 IS NULL OR turns_limit IS NULL OR spent_turns + reserved_turns + ?20 <= turns_limit)
  AND (?21 IS NULL OR time_limit IS NULL OR ?21 - began_at < time_limit);

-- name: add_reservation
-- What a call has reserved; nothing is stored for an id that is open.
INSERT INTO reservations (tenant, run_id, reservation_id, spender, what, usd_micros, input_tokens,
                          output_tokens, turns, seq, reserved_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)
ON CONFLICT DO NOTHING;

-- name: drop_reservation
-- A call was settled; nothing is changed unless its reservation is open.
DELETE FROM reservations WHERE tenant = ?1 AND run_id = ?2 AND reservation_id = ?3;

-- name: get_budget
-- The budget of a run.
SELECT tenant, run_id, usd_limit, tokens_limit, turns_limit, time_limit, soft_percent, began_at,
       set_seq, spent_usd, spent_input_tokens, spent_output_tokens, spent_turns, reserved_usd,
       reserved_input_tokens, reserved_output_tokens, reserved_turns, warned
FROM budgets
WHERE tenant = ?1 AND run_id = ?2;

-- name: list_budgets_of_runs
-- The budgets of some runs (a JSON array of ids), each after its run's id. A run whose budget has no row
-- although its journal sets one is listed too, with NULLs.
SELECT n.value, b.tenant, b.run_id, b.usd_limit, b.tokens_limit, b.turns_limit, b.time_limit,
       b.soft_percent, b.began_at, b.set_seq, b.spent_usd, b.spent_input_tokens,
       b.spent_output_tokens, b.spent_turns, b.reserved_usd, b.reserved_input_tokens,
       b.reserved_output_tokens, b.reserved_turns, b.warned
FROM json_each(?2) n
LEFT JOIN budgets b ON b.tenant = ?1 AND b.run_id = n.value
WHERE b.run_id IS NOT NULL
   OR EXISTS (SELECT 1 FROM journal j
              WHERE j.tenant = ?1 AND j.run_id = n.value AND j.kind = 'BUDGET_SET');

-- name: get_reservation
-- SQLite only, because PostgreSQL looks for many at once. An open reservation on a run's budget.
SELECT tenant, run_id, reservation_id, spender, what, usd_micros, input_tokens, output_tokens,
       turns, seq, reserved_at
FROM reservations
WHERE tenant = ?1 AND run_id = ?2 AND reservation_id = ?3;

-- name: list_reservations
-- What is reserved on a run's budget, in the order it came.
SELECT tenant, run_id, reservation_id, spender, what, usd_micros, input_tokens, output_tokens,
       turns, seq, reserved_at
FROM reservations
WHERE tenant = ?1 AND run_id = ?2
ORDER BY seq;

-- name: list_reservations_of_spender
-- What calls of a run have reserved on any budget.
SELECT tenant, run_id, reservation_id, spender, what, usd_micros, input_tokens, output_tokens,
       turns, seq, reserved_at
FROM reservations
WHERE tenant = ?1 AND spender = ?2
ORDER BY run_id, seq;

-- name: delete_budget_rows
-- Forget a run's row before it is rebuilt from the journal.
DELETE FROM budgets WHERE tenant = ?1 AND run_id = ?2;

-- name: delete_reservation_rows
-- Forget a run's rows before they are rebuilt from the journal.
DELETE FROM reservations WHERE tenant = ?1 AND run_id = ?2;
