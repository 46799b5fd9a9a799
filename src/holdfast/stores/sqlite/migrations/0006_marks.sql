-- What a framework calls checkpoints of a run, and where its writes between them lie. A name
-- is a byte 1 and the 16 of a UUID, or a byte 0 and text. Tags are a JSON object with sorted keys.

CREATE TABLE marks (
    tenant TEXT NOT NULL,
    run_id TEXT NOT NULL,
    space TEXT NOT NULL,
    version INTEGER NOT NULL,
    name BLOB NOT NULL,
    parent BLOB NOT NULL,
    created_at INTEGER NOT NULL,
    tags TEXT NOT NULL,
    PRIMARY KEY (tenant, run_id, space, version)
) WITHOUT ROWID, STRICT;

CREATE UNIQUE INDEX marks_by_name ON marks (tenant, run_id, space, name);

CREATE TABLE writes (
    tenant TEXT NOT NULL,
    run_id TEXT NOT NULL,
    space TEXT NOT NULL,
    name BLOB NOT NULL,
    seq INTEGER NOT NULL,
    PRIMARY KEY (tenant, run_id, space, name, seq)
) WITHOUT ROWID, STRICT;

-- A body that is not there is looked up here.
CREATE INDEX journal_erasures ON journal (tenant, run_id, seq) WHERE kind = 'BODIES_ERASED';

-- Statistics of a store in use, as in 0002.
INSERT INTO sqlite_stat1 (tbl, idx, stat) VALUES
    ('marks', 'marks', '500000 500000 50 40 1'),
    ('marks', 'marks_by_name', '500000 500000 50 40 1'),
    ('writes', 'writes', '500000 500000 50 40 2 1'),
    ('journal', 'journal_erasures', '1000 1000 2 1');

-- For this connection too, which has read them before.
ANALYZE sqlite_schema;
