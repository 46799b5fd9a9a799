-- name: add_signal
-- A signal's row, in the commit of the entry that receives it; nothing is stored for an id that
-- its run has used.
INSERT INTO signals (tenant, run_id, signal_id, name, seq, received_at, received_by, taken_seq,
                     taken_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)
ON CONFLICT DO NOTHING;

-- name: take_signal_once
-- Which entry took a signal; nothing is changed unless it is untaken.
UPDATE signals
SET taken_seq = ?4, taken_at = ?5
WHERE tenant = ?1 AND run_id = ?2 AND signal_id = ?3 AND taken_seq = 0;

-- name: get_signal
-- One signal of a run.
SELECT tenant, run_id, signal_id, name, seq, received_at, received_by, taken_seq, taken_at
FROM signals
WHERE tenant = ?1 AND run_id = ?2 AND signal_id = ?3;

-- name: list_signals
-- A run's signals, in the order they came.
SELECT tenant, run_id, signal_id, name, seq, received_at, received_by, taken_seq, taken_at
FROM signals
WHERE tenant = ?1 AND run_id = ?2
ORDER BY seq;

-- name: list_untaken_signals
-- The signals of one name that a run has not taken yet, in the order they came.
SELECT tenant, run_id, signal_id, name, seq, received_at, received_by, taken_seq, taken_at
FROM signals
WHERE tenant = ?1 AND run_id = ?2 AND name = ?3 AND taken_seq = 0
ORDER BY seq
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
