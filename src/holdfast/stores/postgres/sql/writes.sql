-- name: add_writes
-- Part of a commit. Where writes of marks lie, in the commit of their entries.
INSERT INTO writes (tenant, run_id, space, name, seq)
SELECT :tenant, w.run_id, w.space, decode(w.name, 'base64'), w.seq
FROM json_to_recordset(:writes) AS w (run_id text, space text, name text, seq bigint)
WHERE (w.run_id IN (SELECT run_id FROM stored)) IS TRUE
ON CONFLICT DO NOTHING;

-- name: list_writes_of_marks
-- Where the writes of some marks of a run lie: their spaces and their names in hex, each an
-- array. OFFSET 0 has each looked up by its key.
SELECT w.tenant, w.run_id, w.space, w.name, w.seq
FROM unnest($3::text[], $4::text[]) AS n (space, name)
CROSS JOIN LATERAL (SELECT * FROM writes k
                    WHERE k.tenant = $1 AND k.run_id = $2 AND k.space = n.space
                      AND k.name = decode(n.name, 'hex')
                    OFFSET 0) w
ORDER BY w.seq;

-- name: list_writes
-- Where all writes of a run lie, in order.
SELECT tenant, run_id, space, name, seq
FROM writes
WHERE tenant = $1 AND run_id = $2
ORDER BY seq;

-- name: delete_write_rows
-- Forget a run's rows before they are rebuilt from the journal.
DELETE FROM writes WHERE tenant = $1 AND run_id = $2;
