-- Values sent to runs from outside, each kept until its run has taken it.

CREATE TABLE signals (
    tenant text COLLATE "C" NOT NULL,
    run_id text COLLATE "C" NOT NULL,
    signal_id text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    seq bigint NOT NULL,
    received_at bigint NOT NULL,
    received_by text COLLATE "C" NOT NULL,
    taken_seq bigint NOT NULL,
    taken_at bigint NOT NULL,
    PRIMARY KEY (tenant, run_id, signal_id)
);

CREATE INDEX signals_untaken ON signals (tenant, run_id, name, seq) WHERE taken_seq = 0;

-- A session opens a wait for each of its messages: what was answered is not looked at again.
CREATE INDEX waits_for_signals ON waits (tenant, run_id, name)
    WHERE kind = 'signal' AND status = 'open';

-- Statistics of a store in use, as in 0001. A table that is truncated by the transaction that made
-- it counts as empty, but for one inside a savepoint: then it counts as new.
INSERT INTO signals
SELECT '', md5((n / 10)::text), md5(n::text), 'name-' || n % 3, n, n, 'worker-' || n % 20,
       CASE WHEN n % 10 = 0 THEN 0 ELSE n END, n
FROM generate_series(1, 1000) AS n;
ANALYZE signals;
SAVEPOINT samples;
TRUNCATE signals;
RELEASE SAVEPOINT samples;
