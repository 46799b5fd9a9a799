-- name: publish_message
-- A message for its queue; nothing is stored for an id that its queue has.
INSERT INTO messages (tenant, queue, message_id, ordering, headers, body, created_at, due_at,
                      attempts, worker, status, note)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)
ON CONFLICT DO NOTHING;

-- name: take_messages
-- Deliver what is due, in order. One of an ordering waits for those before it: if they are due they
-- are in front of it here, so only those that are not due have to be looked for.
UPDATE messages
SET due_at = ?5, worker = ?6, attempts = attempts + 1
WHERE id IN (SELECT m.id
             FROM messages m
             WHERE m.tenant = ?1 AND m.queue = ?2 AND m.status = 'ready' AND m.due_at <= ?3
               AND (m.ordering = ''
                    OR NOT EXISTS (SELECT 1
                                   FROM messages e
                                   WHERE e.tenant = ?1 AND e.queue = ?2
                                     AND e.ordering = m.ordering AND e.ordering <> ''
                                     AND e.status = 'ready' AND e.id < m.id AND e.due_at > ?3))
             ORDER BY m.id
             LIMIT ?4)
RETURNING id, tenant, queue, message_id, ordering, headers, body, created_at, due_at, attempts,
          worker, status, note;

-- name: move_message
-- Change a message that is still as its mover knows it, or as the mover wants it already.
UPDATE messages
SET status = ?7, due_at = ?8, worker = ?9, attempts = ?10, note = ?11
WHERE tenant = ?1 AND queue = ?2 AND message_id = ?3 AND worker = ?4 AND attempts = ?5
  AND status IN (?6, ?7);

-- name: forget_message
-- SQLite only, because PostgreSQL does it with the moves. Delete a message that was delivered, also
-- if somebody else has claimed it meanwhile: else a late acknowledgement would deliver it for ever.
DELETE FROM messages
WHERE tenant = ?1 AND queue = ?2 AND message_id = ?3 AND created_at = ?4 AND status = ?5;

-- name: forget_owed
-- Delete a message of the outbox that is delivered in the same transaction.
DELETE FROM messages
WHERE tenant = ?1 AND queue = 'outbox' AND message_id = ?2 AND status = 'ready';

-- name: purge_messages
-- SQLite only, because PostgreSQL does it with the moves. Some of those that were done long ago.
DELETE FROM messages
WHERE id IN (SELECT id
             FROM messages
             WHERE tenant = ?1 AND queue = ?2 AND status = 'done' AND due_at <= ?3
             ORDER BY due_at
             LIMIT ?4);

-- name: get_message
-- One message of a queue.
SELECT tenant, queue, message_id, ordering, headers, body, created_at, due_at, attempts, worker,
       status, note
FROM messages
WHERE tenant = ?1 AND queue = ?2 AND message_id = ?3;

-- name: count_messages
-- How many messages of each status a queue has.
SELECT status, count(*)
FROM messages
WHERE tenant = ?1 AND queue = ?2
GROUP BY status;

-- name: next_due_at
-- When the next message becomes due of those that are not due at the moment given.
SELECT min(due_at)
FROM messages
WHERE tenant = ?1 AND queue = ?2 AND status = 'ready' AND due_at > ?3;

-- name: list_messages
-- The messages of a status, in the order they were published.
SELECT tenant, queue, message_id, ordering, headers, body, created_at, due_at, attempts, worker,
       status, note
FROM messages
WHERE tenant = ?1 AND queue = ?2 AND status = ?3
ORDER BY id
LIMIT ?4;

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
