-- What runs may cost, and what their open calls have reserved. Money is in millionths of a dollar,
-- time in microseconds; a limit that is NULL is none.

CREATE TABLE budgets (
    tenant text COLLATE "C" NOT NULL,
    run_id text COLLATE "C" NOT NULL,
    usd_limit bigint,
    tokens_limit bigint,
    turns_limit bigint,
    time_limit bigint,
    soft_percent bigint NOT NULL,
    began_at bigint NOT NULL,
    set_seq bigint NOT NULL,
    spent_usd bigint NOT NULL,
    spent_input_tokens bigint NOT NULL,
    spent_output_tokens bigint NOT NULL,
    spent_turns bigint NOT NULL,
    reserved_usd bigint NOT NULL,
    reserved_input_tokens bigint NOT NULL,
    reserved_output_tokens bigint NOT NULL,
    reserved_turns bigint NOT NULL,
    warned bigint NOT NULL,
    PRIMARY KEY (tenant, run_id)
);

CREATE TABLE reservations (
    tenant text COLLATE "C" NOT NULL,
    run_id text COLLATE "C" NOT NULL,
    reservation_id text COLLATE "C" NOT NULL,
    spender text COLLATE "C" NOT NULL,
    what text COLLATE "C" NOT NULL,
    usd_micros bigint NOT NULL,
    input_tokens bigint NOT NULL,
    output_tokens bigint NOT NULL,
    turns bigint NOT NULL,
    seq bigint NOT NULL,
    reserved_at bigint NOT NULL,
    PRIMARY KEY (tenant, run_id, reservation_id)
);

-- Whoever goes on with a run looks for what its calls have left open.
CREATE INDEX reservations_by_spender ON reservations (tenant, spender);

-- Statistics of a store in use, as in 0003.
INSERT INTO budgets
SELECT '', md5(n::text), n, n, n, n, 80, n, n, n, n, n, n, n, n, n, n, 0
FROM generate_series(1, 1000) AS n;
INSERT INTO reservations
SELECT '', md5((n / 5)::text), md5(n::text), md5((n / 2)::text), 'model', n, n, n, n, n, n
FROM generate_series(1, 1000) AS n;
ANALYZE budgets, reservations;
SAVEPOINT samples;
TRUNCATE budgets, reservations;
RELEASE SAVEPOINT samples;
