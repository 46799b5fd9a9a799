-- Who a worker is, so that others can tell whether it lives: `beats` grows with each sign of life,
-- `lease` is how long one counts, and a process on the same machine can look for `pid`. `agents` is
-- a JSON array of the agents it serves; `blocking_run` the run whose code holds its event loop;
-- `trying_run` one that may be the death of it, and that it tries with no other unproven one beside.
-- Of a run: how often in a row its worker was lost without progress, and which ones (JSON).
ALTER TABLE workers ADD COLUMN lease bigint NOT NULL DEFAULT 0;
ALTER TABLE workers ADD COLUMN beats bigint NOT NULL DEFAULT 0;
ALTER TABLE workers ADD COLUMN host text COLLATE "C" NOT NULL DEFAULT '';
ALTER TABLE workers ADD COLUMN boot_id text COLLATE "C" NOT NULL DEFAULT '';
ALTER TABLE workers ADD COLUMN pid_namespace text COLLATE "C" NOT NULL DEFAULT '';
ALTER TABLE workers ADD COLUMN pid bigint NOT NULL DEFAULT 0;
ALTER TABLE workers ADD COLUMN process_start bigint NOT NULL DEFAULT 0;
ALTER TABLE workers ADD COLUMN agents text COLLATE "C" NOT NULL DEFAULT '[]';
ALTER TABLE workers ADD COLUMN blocking_run text COLLATE "C" NOT NULL DEFAULT '';
ALTER TABLE workers ADD COLUMN trying_run text COLLATE "C" NOT NULL DEFAULT '';

ALTER TABLE runs ADD COLUMN lost bigint NOT NULL DEFAULT 0;
ALTER TABLE runs ADD COLUMN losses text COLLATE "C" NOT NULL DEFAULT '[]';

CREATE INDEX runs_suspect ON runs (tenant, ready_at) WHERE lost > 1 AND status = 'ready';
