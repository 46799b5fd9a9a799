-- An entry that opens waits has the digest of their group, and rows of groups are compared with the
-- journal and with their waits. That proof is none of a run's row, so the index of those leaves it out.
DROP VIEW proven_runs;
DROP INDEX journal_run_proofs;
CREATE INDEX journal_run_proofs ON journal (tenant, run_id, seq)
    WHERE proof IS NOT NULL
      AND kind NOT IN ('EFFECT_ISSUED', 'SIGNAL_RECEIVED', 'SIGNAL_TAKEN', 'WAITS_OPENED');

-- Whether a run has a budget, whatever the rows say.
CREATE INDEX journal_budgets ON journal (tenant, run_id) WHERE kind = 'BUDGET_SET';

DROP INDEX waits_by_run;
CREATE INDEX waits_by_group ON waits (tenant, run_id, group_id, status, wait_id);

-- Runs, each with the proof of the last entry that changed its row.
CREATE VIEW proven_runs AS
SELECT r.tenant, r.run_id, r.agent, r.status, r.blocked_reason, r.created_at, r.ready_at, r.worker,
       r.lease_seq, r.attempts, r.waiting_on, r.result_seq, r.root_id, r.parent_id, r.forked_from,
       r.forked_version, r.input_digest, r.schema, r.reply_to, r.subject, r.owner,
       r.handoff, r.giver, r.wish, r.contexts, r.reverts, r.is_recovering, r.lost, r.losses,
       (SELECT j.proof FROM journal j
        WHERE j.tenant = r.tenant AND j.run_id = r.run_id
          AND j.proof IS NOT NULL
          AND j.kind NOT IN ('EFFECT_ISSUED', 'SIGNAL_RECEIVED', 'SIGNAL_TAKEN',
                             'WAITS_OPENED')
        ORDER BY j.seq DESC
        LIMIT 1) AS proof
FROM runs r;

-- Wait groups, each with what its row is compared with: the proof of the entry that opened it, its open
-- waits (65 at most are counted), the others where they decide something, and the entry that closed it.
CREATE VIEW counted_groups AS
SELECT g.tenant, g.run_id, g.group_id, g.need, g.total, g.resolved, g.failed, g.status, g.closed_seq,
       (SELECT j.proof FROM journal j
        WHERE j.tenant = g.tenant AND j.run_id = g.run_id
          AND j.seq = (SELECT w.opened_seq FROM waits w
                       WHERE w.tenant = g.tenant AND w.run_id = g.run_id
                         AND w.group_id = g.group_id
                       LIMIT 1)) AS opening,
       (SELECT count(*)
        FROM (SELECT 1 FROM waits w
              WHERE w.tenant = g.tenant AND w.run_id = g.run_id AND w.group_id = g.group_id
                AND w.status = 'open'
              LIMIT 65) AS few) AS open_now,
       CASE WHEN g.total <= 64
              OR (g.need > 0 AND (g.resolved + 64 >= g.need OR g.total - g.failed - 64 < g.need))
            THEN (SELECT count(*) FROM waits w
                  WHERE w.tenant = g.tenant AND w.run_id = g.run_id AND w.group_id = g.group_id
                    AND w.status = 'resolved') END AS resolved_now,
       CASE WHEN g.total <= 64
            THEN (SELECT count(*) FROM waits w
                  WHERE w.tenant = g.tenant AND w.run_id = g.run_id AND w.group_id = g.group_id
                    AND w.status IN ('expired', 'cancelled')
                    AND w.result_seq <> g.closed_seq) END AS failed_now,
       (SELECT j.kind FROM journal j
        WHERE j.tenant = g.tenant AND j.run_id = g.run_id AND j.seq = g.closed_seq) AS closing_kind,
       (SELECT j.facts FROM journal j
        WHERE j.tenant = g.tenant AND j.run_id = g.run_id AND j.seq = g.closed_seq) AS closing
FROM wait_groups g;

-- Statistics of a store in use, as in 0002.
INSERT INTO sqlite_stat1 (tbl, idx, stat) VALUES
    ('journal', 'journal_run_proofs', '300000 300000 3 1'),
    ('journal', 'journal_budgets', '10000 10000 1 1'),
    ('waits', 'waits_by_group', '100000 100000 2 1 1 1');

-- For this connection too, which has read them before.
ANALYZE sqlite_schema;
