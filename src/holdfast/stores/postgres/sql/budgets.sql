-- name: add_budget
-- Part of a commit. Runs' first budgets, in the commit of the entries that set them; that of a run
-- which has one is left out, and the commit is refused for it.
INSERT INTO budgets (tenant, run_id, usd_limit, tokens_limit, turns_limit, time_limit,
                     soft_percent, began_at, set_seq, spent_usd, spent_input_tokens,
                     spent_output_tokens, spent_turns, reserved_usd, reserved_input_tokens,
                     reserved_output_tokens, reserved_turns, warned)
SELECT :tenant, a.run_id, a.usd_limit, a.tokens_limit, a.turns_limit, a.time_limit, a.soft_percent,
       a.began_at, a.set_seq, a.spent_usd, a.spent_input_tokens, a.spent_output_tokens,
       a.spent_turns, a.reserved_usd, a.reserved_input_tokens, a.reserved_output_tokens,
       a.reserved_turns, a.warned
FROM json_to_recordset(:budgets)
     AS a (run_id text, usd_limit bigint, tokens_limit bigint, turns_limit bigint, time_limit
           bigint, soft_percent bigint, began_at bigint, set_seq bigint, spent_usd bigint,
           spent_input_tokens bigint, spent_output_tokens bigint, spent_turns bigint, reserved_usd
           bigint, reserved_input_tokens bigint, reserved_output_tokens bigint, reserved_turns
           bigint, warned bigint)
WHERE (a.run_id IN (SELECT run_id FROM stored)) IS TRUE
ON CONFLICT DO NOTHING
RETURNING run_id, 'budget' AS item;

-- name: draw_budget
-- Part of a commit. What its entries do to budgets: other limits if `is_set`, amounts spent and
-- reserved, warnings. One without room for what is needed (NULL if not asked for) is left out, and
-- the commit is refused for it.
UPDATE budgets b
SET usd_limit = CASE WHEN d.is_set THEN d.usd_limit ELSE b.usd_limit END,
    tokens_limit = CASE WHEN d.is_set THEN d.tokens_limit ELSE b.tokens_limit END,
    turns_limit = CASE WHEN d.is_set THEN d.turns_limit ELSE b.turns_limit END,
    time_limit = CASE WHEN d.is_set THEN d.time_limit ELSE b.time_limit END,
    soft_percent = CASE WHEN d.is_set THEN d.soft_percent ELSE b.soft_percent END,
    set_seq = CASE WHEN d.is_set THEN d.set_seq ELSE b.set_seq END,
    spent_usd = b.spent_usd + d.spent_usd,
    spent_input_tokens = b.spent_input_tokens + d.spent_input_tokens,
    spent_output_tokens = b.spent_output_tokens + d.spent_output_tokens,
    spent_turns = b.spent_turns + d.spent_turns,
    reserved_usd = b.reserved_usd + d.reserved_usd,
    reserved_input_tokens = b.reserved_input_tokens + d.reserved_input_tokens,
    reserved_output_tokens = b.reserved_output_tokens + d.reserved_output_tokens,
    reserved_turns = b.reserved_turns + d.reserved_turns,
    warned = CASE WHEN d.is_set THEN 0 ELSE b.warned END | d.warned
FROM json_to_recordset(:drawn_budgets)
     AS d (run_id text, is_set boolean, usd_limit bigint, tokens_limit bigint, turns_limit bigint,
           time_limit bigint, soft_percent bigint, set_seq bigint, spent_usd bigint,
           spent_input_tokens bigint, spent_output_tokens bigint, spent_turns bigint,
           reserved_usd bigint, reserved_input_tokens bigint, reserved_output_tokens bigint,
           reserved_turns bigint, needs_usd bigint, needs_tokens bigint, needs_turns bigint,
           needs_at bigint, warned bigint)
WHERE (d.run_id IN (SELECT run_id FROM stored)) IS TRUE
  AND b.tenant = :tenant AND b.run_id = d.run_id
  AND (d.needs_usd IS NULL OR b.usd_limit IS NULL
       OR b.spent_usd + b.reserved_usd + d.needs_usd <= b.usd_limit)
  AND (d.needs_tokens IS NULL OR b.tokens_limit IS NULL
       OR b.spent_input_tokens + b.spent_output_tokens + b.reserved_input_tokens
          + b.reserved_output_tokens + d.needs_tokens <= b.tokens_limit)
  AND (d.needs_turns IS NULL OR b.turns_limit IS NULL
       OR b.spent_turns + b.reserved_turns + d.needs_turns <= b.turns_limit)
  AND (d.needs_at IS NULL OR b.time_limit IS NULL OR d.needs_at - b.began_at < b.time_limit)
RETURNING d.run_id, 'budget' AS item;

-- name: add_reservation
-- Part of a commit. What calls have reserved; one whose id is open is left out, and the commit is
-- refused for it.
INSERT INTO reservations (tenant, run_id, reservation_id, spender, what, usd_micros, input_tokens,
                          output_tokens, turns, seq, reserved_at)
SELECT :tenant, r.run_id, r.reservation_id, r.spender, r.what, r.usd_micros, r.input_tokens,
       r.output_tokens, r.turns, r.seq, r.reserved_at
FROM json_to_recordset(:reservations)
     AS r (run_id text, reservation_id text, spender text, what text, usd_micros bigint,
           input_tokens bigint, output_tokens bigint, turns bigint, seq bigint, reserved_at bigint)
WHERE (r.run_id IN (SELECT run_id FROM stored)) IS TRUE
ON CONFLICT DO NOTHING
RETURNING run_id, reservation_id AS item;

-- name: drop_reservation
-- Part of a commit. Calls that were settled; one whose reservation is not open is left out, and the
-- commit is refused for it.
DELETE FROM reservations r
USING json_to_recordset(:dropped_reservations) AS n (run_id text, reservation_id text)
WHERE (n.run_id IN (SELECT run_id FROM stored)) IS TRUE
  AND r.tenant = :tenant AND r.run_id = n.run_id AND r.reservation_id = n.reservation_id
RETURNING n.run_id, n.reservation_id AS item;

-- name: get_budget
-- The budget of a run.
SELECT tenant, run_id, usd_limit, tokens_limit, turns_limit, time_limit, soft_percent, began_at,
       set_seq, spent_usd, spent_input_tokens, spent_output_tokens, spent_turns, reserved_usd,
       reserved_input_tokens, reserved_output_tokens, reserved_turns, warned
FROM budgets
WHERE tenant = $1 AND run_id = $2;

-- name: list_budgets_by_run
-- PostgreSQL only. The budgets that a batch of decisions looks at, in one round trip.
SELECT tenant, run_id, usd_limit, tokens_limit, turns_limit, time_limit, soft_percent, began_at,
       set_seq, spent_usd, spent_input_tokens, spent_output_tokens, spent_turns, reserved_usd,
       reserved_input_tokens, reserved_output_tokens, reserved_turns, warned
FROM budgets
WHERE tenant = $1 AND run_id = ANY ($2::text[]);

-- name: list_budgets_of_runs
-- The budgets of some runs (a JSON array of ids), each after its run's id. A run whose budget has no row
-- although its journal sets one is listed too, with NULLs.
SELECT n.value, b.tenant, b.run_id, b.usd_limit, b.tokens_limit, b.turns_limit, b.time_limit,
       b.soft_percent, b.began_at, b.set_seq, b.spent_usd, b.spent_input_tokens,
       b.spent_output_tokens, b.spent_turns, b.reserved_usd, b.reserved_input_tokens,
       b.reserved_output_tokens, b.reserved_turns, b.warned
FROM jsonb_array_elements_text($2::jsonb) AS n (value)
LEFT JOIN budgets b ON b.tenant = $1 AND b.run_id = n.value COLLATE "C"
WHERE b.run_id IS NOT NULL
   OR EXISTS (SELECT 1 FROM journal j
              WHERE j.tenant = $1 AND j.run_id = n.value COLLATE "C" AND j.kind = 'BUDGET_SET');

-- name: list_reservations_by_id
-- PostgreSQL only. The reservations that a batch of decisions looks at, in one round trip. OFFSET 0
-- has each looked up by its key.
SELECT r.tenant, r.run_id, r.reservation_id, r.spender, r.what, r.usd_micros, r.input_tokens,
       r.output_tokens, r.turns, r.seq, r.reserved_at
FROM unnest($2::text[], $3::text[]) AS n (run_id, reservation_id)
CROSS JOIN LATERAL (SELECT * FROM reservations k
                    WHERE k.tenant = $1 AND k.run_id = n.run_id
                      AND k.reservation_id = n.reservation_id
                    OFFSET 0) r;

-- name: list_reservations
-- What is reserved on a run's budget, in the order it came.
SELECT tenant, run_id, reservation_id, spender, what, usd_micros, input_tokens, output_tokens,
       turns, seq, reserved_at
FROM reservations
WHERE tenant = $1 AND run_id = $2
ORDER BY seq;

-- name: list_reservations_of_spender
-- What calls of a run have reserved on any budget.
SELECT tenant, run_id, reservation_id, spender, what, usd_micros, input_tokens, output_tokens,
       turns, seq, reserved_at
FROM reservations
WHERE tenant = $1 AND spender = $2
ORDER BY run_id, seq;

-- name: delete_budget_rows
-- Forget a run's row before it is rebuilt from the journal.
DELETE FROM budgets WHERE tenant = $1 AND run_id = $2;

-- name: delete_reservation_rows
-- Forget a run's rows before they are rebuilt from the journal.
DELETE FROM reservations WHERE tenant = $1 AND run_id = $2;
