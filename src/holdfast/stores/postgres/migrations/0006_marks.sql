-- What a framework calls checkpoints of a run, and where its writes between them lie. A name
-- is a byte 1 and the 16 of a UUID, or a byte 0 and text. Tags are a JSON object with sorted keys, kept as it was written: jsonb would make whole numbers of floats.

CREATE TABLE marks (
    tenant text COLLATE "C" NOT NULL,
    run_id text COLLATE "C" NOT NULL,
    space text COLLATE "C" NOT NULL,
    version bigint NOT NULL,
    name bytea NOT NULL,
    parent bytea NOT NULL,
    created_at bigint NOT NULL,
    tags json NOT NULL,
    PRIMARY KEY (tenant, run_id, space, version)
);

CREATE UNIQUE INDEX marks_by_name ON marks (tenant, run_id, space, name);

CREATE TABLE writes (
    tenant text COLLATE "C" NOT NULL,
    run_id text COLLATE "C" NOT NULL,
    space text COLLATE "C" NOT NULL,
    name bytea NOT NULL,
    seq bigint NOT NULL,
    PRIMARY KEY (tenant, run_id, space, name, seq)
);

-- A body that is not there is looked up here.
CREATE INDEX journal_erasures ON journal (tenant, run_id, seq) WHERE kind = 'BODIES_ERASED';

-- Statistics of a store in use, as in 0003.
INSERT INTO marks
SELECT '', md5((n / 50)::text), '', n, decode(md5(n::text), 'hex'),
       decode(md5((n - 1)::text), 'hex'), n, '{}'
FROM generate_series(1, 1000) AS n;
INSERT INTO writes
SELECT '', md5((n / 50)::text), '', decode(md5((n / 2)::text), 'hex'), n
FROM generate_series(1, 1000) AS n;
ANALYZE marks, writes;
SAVEPOINT samples;
TRUNCATE marks, writes;
RELEASE SAVEPOINT samples;
