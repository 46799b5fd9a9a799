-- name: add_signal
-- Part of a commit. Signals' rows, in the commit of the entry that receives them; one whose id its
-- run has used is left out, and the commit is refused for it.
INSERT INTO signals (tenant, run_id, signal_id, name, seq, received_at, received_by, taken_seq,
                     taken_at)
SELECT :tenant, s.run_id, s.signal_id, s.name, s.seq, s.received_at, s.received_by, s.taken_seq,
       s.taken_at
FROM json_to_recordset(:signals)
     AS s (run_id text, signal_id text, name text, seq bigint, received_at bigint,
           received_by text, taken_seq bigint, taken_at bigint)
WHERE (s.run_id IN (SELECT run_id FROM stored)) IS TRUE
  AND (
        SELECT count(*) FROM journal j
        WHERE j.tenant = :tenant AND j.kind = 'SIGNAL_RECEIVED' AND j.seq <> s.seq
          AND j.proof = substring(
              sha256(convert_to(s.run_id || E'\n' || s.signal_id, 'UTF8')) FROM 1 FOR 16)
  ) = 0
ON CONFLICT DO NOTHING
RETURNING run_id, signal_id AS item;

-- name: take_signal_once
-- Part of a commit. Which entries took signals; one that is not untaken is left out, and the commit
-- is refused for it. Said so that only the key's index fits: the other one would be a walk over all
-- that a run has not taken yet.
UPDATE signals s
SET taken_seq = n.seq, taken_at = n.at
FROM json_to_recordset(:taken_signals)
     AS n (run_id text, signal_id text, seq bigint, at bigint)
WHERE (n.run_id IN (SELECT run_id FROM stored)) IS TRUE
  AND s.tenant = :tenant AND s.run_id = n.run_id AND s.signal_id = n.signal_id AND s.taken_seq < 1
RETURNING n.run_id, n.signal_id AS item;

-- name: get_signal
-- One signal of a run.
SELECT s.tenant, s.run_id, s.signal_id, s.name, s.seq, s.received_at, s.received_by, s.taken_seq,
       s.taken_at, r.kind, r.at, r.actor, r.facts, t.seq, t.at
FROM signals s
LEFT JOIN LATERAL (SELECT j.kind, j.at, j.actor, j.facts FROM journal j
                   WHERE j.tenant = s.tenant AND j.run_id = s.run_id AND j.seq = s.seq
                   LIMIT 1) r ON true
LEFT JOIN LATERAL (SELECT j.seq, j.at FROM journal j
                   WHERE j.tenant = s.tenant AND j.kind = 'SIGNAL_TAKEN'
                     AND j.proof = substring(
                         sha256(convert_to(s.run_id || E'\n' || s.signal_id, 'UTF8')) FROM 1 FOR 16)
                   LIMIT 1) t ON true
WHERE s.tenant = $1 AND s.run_id = $2 AND s.signal_id = $3;

-- name: list_signals_by_id
-- PostgreSQL only. The signals that a batch of decisions looks at, in one round trip. OFFSET 0 has
-- each looked up by its key: a join may be planned as a walk over all that a tenant has.
SELECT s.tenant, s.run_id, s.signal_id, s.name, s.seq, s.received_at, s.received_by, s.taken_seq,
       s.taken_at
FROM unnest($2::text[], $3::text[]) AS n (run_id, signal_id)
CROSS JOIN LATERAL (SELECT * FROM signals k
                    WHERE k.tenant = $1 AND k.run_id = n.run_id AND k.signal_id = n.signal_id
                    OFFSET 0) s;

-- name: find_signal_entry
-- The entry that received a signal, by the digest of its id.
SELECT seq
FROM journal
WHERE tenant = $1 AND kind = 'SIGNAL_RECEIVED' AND proof = $2;

-- name: list_signals
-- A run's signals, in the order they came.
SELECT s.tenant, s.run_id, s.signal_id, s.name, s.seq, s.received_at, s.received_by, s.taken_seq,
       s.taken_at, r.kind, r.at, r.actor, r.facts, t.seq, t.at
FROM signals s
LEFT JOIN LATERAL (SELECT j.kind, j.at, j.actor, j.facts FROM journal j
                   WHERE j.tenant = s.tenant AND j.run_id = s.run_id AND j.seq = s.seq
                   LIMIT 1) r ON true
LEFT JOIN LATERAL (SELECT j.seq, j.at FROM journal j
                   WHERE j.tenant = s.tenant AND j.kind = 'SIGNAL_TAKEN'
                     AND j.proof = substring(
                         sha256(convert_to(s.run_id || E'\n' || s.signal_id, 'UTF8')) FROM 1 FOR 16)
                   LIMIT 1) t ON true
WHERE s.tenant = $1 AND s.run_id = $2
ORDER BY s.seq;

-- name: list_untaken_signals
-- The signals of one name that a run has not taken yet, in the order they came.
SELECT s.tenant, s.run_id, s.signal_id, s.name, s.seq, s.received_at, s.received_by, s.taken_seq,
       s.taken_at, r.kind, r.at, r.actor, r.facts, t.seq, t.at
FROM signals s
LEFT JOIN LATERAL (SELECT j.kind, j.at, j.actor, j.facts FROM journal j
                   WHERE j.tenant = s.tenant AND j.run_id = s.run_id AND j.seq = s.seq
                   LIMIT 1) r ON true
LEFT JOIN LATERAL (SELECT j.seq, j.at FROM journal j
                   WHERE j.tenant = s.tenant AND j.kind = 'SIGNAL_TAKEN'
                     AND j.proof = substring(
                         sha256(convert_to(s.run_id || E'\n' || s.signal_id, 'UTF8')) FROM 1 FOR 16)
                   LIMIT 1) t ON true
WHERE s.tenant = $1 AND s.run_id = $2 AND s.name = $3 AND s.taken_seq = 0
ORDER BY s.seq
LIMIT $4;

-- name: list_waits_for_signals
-- PostgreSQL only. The open waits of many runs that signals of these names resolve, each with its
-- group beside it: both are of one moment. OFFSET 0 is there for the same reason.
SELECT w.tenant, w.wait_id, w.run_id, w.group_id, w.kind, w.name, w.deadline, w.status,
       w.opened_seq, w.opened_at, w.result_seq, w.settled_by, w.settled_at, w.duplicates,
       w.progress_at, w.address, w.patience, w.claimed_by, w.claimed_until, w.progress,
       g.tenant, g.run_id, g.group_id, g.need, g.total, g.resolved, g.failed, g.status, g.closed_seq,
       g.opening, g.open_now, g.resolved_now, g.failed_now, g.closing_kind, g.closing
FROM unnest($2::text[], $3::text[]) AS n (run_id, name)
CROSS JOIN LATERAL (SELECT * FROM waits o
                    WHERE o.tenant = $1 AND o.run_id = n.run_id AND o.name = n.name
                      AND o.kind = 'signal' AND o.status = 'open'
                    OFFSET 0) w
LEFT JOIN counted_groups g ON g.tenant = $1 AND g.run_id = w.run_id AND g.group_id = w.group_id;

-- name: delete_signal_rows
-- Forget a run's rows before they are rebuilt from the journal.
DELETE FROM signals WHERE tenant = $1 AND run_id = $2;
