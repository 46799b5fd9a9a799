-- name: sqlite_threads
-- Every thread with the number and the bytes of its checkpoints, those alone: writes are counted apart.
SELECT thread_id, count(*), sum(coalesce(length(checkpoint), 0) + coalesce(length(metadata), 0))
FROM checkpoints
GROUP BY thread_id
ORDER BY thread_id;

-- name: sqlite_writes_of_threads
-- Every thread with the number and the bytes of its writes.
SELECT thread_id, count(*), sum(coalesce(length(value), 0))
FROM writes
GROUP BY thread_id;

-- name: sqlite_places
-- Which checkpoints a thread has, without what is in them.
SELECT checkpoint_ns, checkpoint_id, parent_checkpoint_id
FROM checkpoints
WHERE thread_id = ?1;

-- name: sqlite_checkpoint
-- One checkpoint: all channels are in one value.
SELECT type, checkpoint, metadata
FROM checkpoints
WHERE thread_id = ?1 AND checkpoint_ns = ?2 AND checkpoint_id = ?3;

-- name: sqlite_writes
-- The writes that hang on one checkpoint.
SELECT task_id, task_path, idx, channel, type, value
FROM writes
WHERE thread_id = ?1 AND checkpoint_ns = ?2 AND checkpoint_id = ?3;

-- name: sqlite_writes_without_path
-- The same of a database from before tasks had paths.
SELECT task_id, '', idx, channel, type, value
FROM writes
WHERE thread_id = ?1 AND checkpoint_ns = ?2 AND checkpoint_id = ?3;
