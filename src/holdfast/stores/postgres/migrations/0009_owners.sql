-- Whose run it is: the principal that started it; empty: nobody's.
ALTER TABLE runs ADD COLUMN owner text COLLATE "C" NOT NULL DEFAULT '';

CREATE INDEX runs_by_owner ON runs (tenant, owner, created_at, run_id)
    WHERE owner <> '';
