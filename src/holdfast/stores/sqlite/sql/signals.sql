-- name: add_signal
-- A signal's row, in the commit of the entry that receives it; nothing is stored for an id that
-- its run has used.
INSERT INTO signals (tenant, run_id, signal_id, name, seq, received_at, received_by, taken_seq,
                     taken_at)
SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9
WHERE NOT EXISTS (
    SELECT 1 FROM journal j
    WHERE j.tenant = ?1 AND j.kind = 'SIGNAL_RECEIVED' AND j.seq <> ?5
      AND j.proof = (SELECT o.proof FROM journal o
                     WHERE o.tenant = ?1 AND o.run_id = ?2 AND o.seq = ?5)
)
ON CONFLICT DO NOTHING;

-- name: take_signal_once
-- Which entry took a signal; nothing is changed unless it is untaken.
UPDATE signals
SET taken_seq = ?4, taken_at = ?5
WHERE tenant = ?1 AND run_id = ?2 AND signal_id = ?3 AND taken_seq = 0;

-- name: get_signal
-- One signal of a run.
SELECT s.tenant, s.run_id, s.signal_id, s.name, s.seq, s.received_at, s.received_by, s.taken_seq,
       s.taken_at, r.kind, r.at, r.actor, r.facts, t.seq, t.at
FROM signals s
LEFT JOIN journal r ON r.tenant = s.tenant AND r.run_id = s.run_id AND r.seq = s.seq
LEFT JOIN journal t ON t.tenant = s.tenant AND t.kind = 'SIGNAL_TAKEN'
                   AND t.proof = substr(holdfast_sha256(CAST(s.run_id || char(10) AS BLOB),
                                           CAST(s.signal_id AS BLOB)), 1, 16)
WHERE s.tenant = ?1 AND s.run_id = ?2 AND s.signal_id = ?3;

-- name: find_signal_entry
-- The entry that received a signal, by the digest of its id.
SELECT seq
FROM journal
WHERE tenant = ?1 AND kind = 'SIGNAL_RECEIVED' AND proof = ?2;

-- name: list_signals
-- A run's signals, in the order they came.
SELECT s.tenant, s.run_id, s.signal_id, s.name, s.seq, s.received_at, s.received_by, s.taken_seq,
       s.taken_at, r.kind, r.at, r.actor, r.facts, t.seq, t.at
FROM signals s
LEFT JOIN journal r ON r.tenant = s.tenant AND r.run_id = s.run_id AND r.seq = s.seq
LEFT JOIN journal t ON t.tenant = s.tenant AND t.kind = 'SIGNAL_TAKEN'
                   AND t.proof = substr(holdfast_sha256(CAST(s.run_id || char(10) AS BLOB),
                                           CAST(s.signal_id AS BLOB)), 1, 16)
WHERE s.tenant = ?1 AND s.run_id = ?2
ORDER BY s.seq;

-- name: list_untaken_signals
-- The signals of one name that a run has not taken yet, in the order they came.
SELECT s.tenant, s.run_id, s.signal_id, s.name, s.seq, s.received_at, s.received_by, s.taken_seq,
       s.taken_at, r.kind, r.at, r.actor, r.facts, t.seq, t.at
FROM signals s
LEFT JOIN journal r ON r.tenant = s.tenant AND r.run_id = s.run_id AND r.seq = s.seq
LEFT JOIN journal t ON t.tenant = s.tenant AND t.kind = 'SIGNAL_TAKEN'
                   AND t.proof = substr(holdfast_sha256(CAST(s.run_id || char(10) AS BLOB),
                                           CAST(s.signal_id AS BLOB)), 1, 16)
WHERE s.tenant = ?1 AND s.run_id = ?2 AND s.name = ?3 AND s.taken_seq = 0
ORDER BY s.seq
LIMIT ?4;

-- name: list_waits_for_signal
-- SQLite only, because PostgreSQL looks for many runs and names at once. A run's open waits that a
-- signal of this name resolves.
SELECT tenant, wait_id, run_id, group_id, kind, name, deadline, status, opened_seq, opened_at,
       result_seq, settled_by, settled_at, duplicates, progress_at, address, patience,
       claimed_by, claimed_until, progress
FROM waits
WHERE tenant = ?1 AND run_id = ?2 AND name = ?3 AND kind = 'signal' AND status = 'open';

-- name: delete_signal_rows
-- Forget a run's rows before they are rebuilt from the journal.
DELETE FROM signals WHERE tenant = ?1 AND run_id = ?2;
