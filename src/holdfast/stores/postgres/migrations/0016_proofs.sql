-- What index rows are compared with: an entry that changes a run's row has the digest of that row, an
-- intent the digest of its idempotency key, an entry about a signal the digest of the signal's id.
-- The links of the chain cover it.
ALTER TABLE journal ADD COLUMN proof bytea;

CREATE INDEX journal_run_proofs ON journal (tenant, run_id, seq)
    WHERE proof IS NOT NULL AND kind NOT IN ('EFFECT_ISSUED', 'SIGNAL_RECEIVED', 'SIGNAL_TAKEN');
CREATE INDEX journal_key_proofs ON journal (tenant, proof) WHERE kind = 'EFFECT_ISSUED';
CREATE INDEX journal_received_proofs ON journal (tenant, proof) WHERE kind = 'SIGNAL_RECEIVED';
CREATE INDEX journal_taken_proofs ON journal (tenant, proof) WHERE kind = 'SIGNAL_TAKEN';

-- Runs, each with the proof of the last entry that changed its row.
CREATE VIEW proven_runs AS
SELECT r.tenant, r.run_id, r.agent, r.status, r.blocked_reason, r.created_at, r.ready_at, r.worker,
       r.lease_seq, r.attempts, r.waiting_on, r.result_seq, r.root_id, r.parent_id, r.forked_from,
       r.forked_version, r.input_digest, r.schema, r.reply_to, r.subject, r.owner,
       r.handoff, r.giver, r.wish, r.contexts, r.reverts, r.is_recovering, r.lost, r.losses,
       (SELECT j.proof FROM journal j
        WHERE j.tenant = r.tenant AND j.run_id = r.run_id
          AND j.proof IS NOT NULL
          AND j.kind NOT IN ('EFFECT_ISSUED', 'SIGNAL_RECEIVED', 'SIGNAL_TAKEN')
        ORDER BY j.seq DESC
        LIMIT 1) AS proof
FROM runs r;

-- Marks, each with what the entry of its checkpoint says.
CREATE VIEW proven_marks AS
SELECT m.tenant, m.run_id, m.space, m.name, m.version, m.parent, m.created_at, m.tags,
       j.seq, j.at, j.facts
FROM marks m
LEFT JOIN checkpoints c ON c.tenant = m.tenant AND c.run_id = m.run_id AND c.version = m.version
LEFT JOIN journal j ON j.tenant = c.tenant AND j.run_id = c.run_id AND j.seq = c.seq;
