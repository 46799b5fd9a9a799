-- What a run is about, among those of its agent: the name of a workflow.
ALTER TABLE runs ADD COLUMN subject text COLLATE "C" NOT NULL DEFAULT '';

CREATE INDEX runs_by_subject ON runs (tenant, agent, subject, created_at, run_id)
    WHERE subject <> '';
