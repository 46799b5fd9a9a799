-- What runs may cost, and what their open calls have reserved. Money is in millionths of a dollar,
-- time in microseconds; a limit that is NULL is none.

CREATE TABLE budgets (
    tenant TEXT NOT NULL,
    run_id TEXT NOT NULL,
    usd_limit INTEGER,
    tokens_limit INTEGER,
    turns_limit INTEGER,
    time_limit INTEGER,
    soft_percent INTEGER NOT NULL,
    began_at INTEGER NOT NULL,
    set_seq INTEGER NOT NULL,
    spent_usd INTEGER NOT NULL,
    spent_input_tokens INTEGER NOT NULL,
    spent_output_tokens INTEGER NOT NULL,
    spent_turns INTEGER NOT NULL,
    reserved_usd INTEGER NOT NULL,
    reserved_input_tokens INTEGER NOT NULL,
    reserved_output_tokens INTEGER NOT NULL,
    reserved_turns INTEGER NOT NULL,
    warned INTEGER NOT NULL,
    PRIMARY KEY (tenant, run_id)
) WITHOUT ROWID, STRICT;

CREATE TABLE reservations (
    tenant TEXT NOT NULL,
    run_id TEXT NOT NULL,
    reservation_id TEXT NOT NULL,
    spender TEXT NOT NULL,
    what TEXT NOT NULL,
    usd_micros INTEGER NOT NULL,
    input_tokens INTEGER NOT NULL,
    output_tokens INTEGER NOT NULL,
    turns INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    reserved_at INTEGER NOT NULL,
    PRIMARY KEY (tenant, run_id, reservation_id)
) WITHOUT ROWID, STRICT;

-- Whoever goes on with a run looks for what its calls have left open.
CREATE INDEX reservations_by_spender ON reservations (tenant, spender);

-- Statistics of a store in use, as in 0002.
INSERT INTO sqlite_stat1 (tbl, idx, stat) VALUES
    ('budgets', 'budgets', '10000 10000 1'),
    ('reservations', 'reservations', '1000 1000 5 1'),
    ('reservations', 'reservations_by_spender', '1000 1000 2');

-- For this connection too, which has read them before.
ANALYZE sqlite_schema;
