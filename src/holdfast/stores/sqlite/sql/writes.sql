-- name: add_writes
-- Where writes of a mark lie, in the commit of their entry.
INSERT INTO writes (tenant, run_id, space, name, seq)
VALUES (?1, ?2, ?3, ?4, ?5)
ON CONFLICT DO NOTHING;

-- name: list_writes_of_marks
-- Where the writes of some marks of a run lie: their spaces and their names in hex, each a
-- JSON array.
SELECT w.tenant, w.run_id, w.space, w.name, w.seq
FROM json_each(?3) AS s
JOIN json_each(?4) AS n ON n.key = s.key
CROSS JOIN writes w ON w.tenant = ?1 AND w.run_id = ?2 AND w.space = s.value AND w.name = unhex(n.value)
ORDER BY w.seq;

-- name: list_writes
-- Where all writes of a run lie, in order.
SELECT tenant, run_id, space, name, seq
FROM writes
WHERE tenant = ?1 AND run_id = ?2
ORDER BY seq;

-- name: delete_write_rows
-- Forget a run's rows before they are rebuilt from the journal.
DELETE FROM writes WHERE tenant = ?1 AND run_id = ?2;
