-- Who goes on: the handoff a run is in, whom it goes back to, whom it is to be given to, how many
-- contexts have worked on it, how many handoffs in a row failed, and whether it is being recovered.
ALTER TABLE runs ADD COLUMN handoff TEXT NOT NULL DEFAULT '';
ALTER TABLE runs ADD COLUMN giver TEXT NOT NULL DEFAULT '';
ALTER TABLE runs ADD COLUMN wish TEXT NOT NULL DEFAULT '';
ALTER TABLE runs ADD COLUMN contexts INTEGER NOT NULL DEFAULT 1;
ALTER TABLE runs ADD COLUMN reverts INTEGER NOT NULL DEFAULT 0;
ALTER TABLE runs ADD COLUMN is_recovering INTEGER NOT NULL DEFAULT 0;

CREATE INDEX runs_failing ON runs (tenant, agent) WHERE attempts > 1;
