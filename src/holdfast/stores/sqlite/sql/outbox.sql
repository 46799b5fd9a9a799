-- name: add_message
-- A message that a commit owes; one whose id was used in its queue is there already.
INSERT INTO messages (tenant, queue, message_id, ordering, headers, body, created_at, due_at,
                      attempts, worker, status, note)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)
ON CONFLICT DO NOTHING;

-- name: owe_cancels_of_group
-- Tell the peers that a closed group no longer waits for, before its waits are cancelled.
INSERT INTO messages (tenant, queue, message_id, ordering, headers, body, created_at, due_at,
                      attempts, worker, status, note)
SELECT tenant, iif(address LIKE 'queue:%', 'outgoing', 'outbox'), wait_id || '/cancel', run_id,
       json_object('kind', 'cancel', 'address', address, 'subject', wait_id, 'seq', ?4),
       x'', ?5, ?5, 0, '', 'ready', ''
FROM waits
WHERE tenant = ?1 AND run_id = ?2 AND group_id = ?3 AND status = 'open' AND kind = 'peer'
  AND address <> ''
ON CONFLICT DO NOTHING;

-- name: owe_cancels_of_run
-- Tell all peers that a run waits for, before its waits are cancelled.
INSERT INTO messages (tenant, queue, message_id, ordering, headers, body, created_at, due_at,
                      attempts, worker, status, note)
SELECT tenant, iif(address LIKE 'queue:%', 'outgoing', 'outbox'), wait_id || '/cancel', run_id,
       json_object('kind', 'cancel', 'address', address, 'subject', wait_id, 'seq', ?3),
       x'', ?4, ?4, 0, '', 'ready', ''
FROM waits
WHERE tenant = ?1 AND run_id = ?2 AND status = 'open' AND kind = 'peer' AND address <> ''
ON CONFLICT DO NOTHING;
