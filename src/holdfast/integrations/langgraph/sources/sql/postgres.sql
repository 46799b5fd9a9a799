-- name: postgres_columns
-- The columns of LangGraph's tables, as they are found without naming a schema.
SELECT c.relname, a.attname
FROM pg_class c
JOIN pg_attribute a ON a.attrelid = c.oid
WHERE c.oid IN (to_regclass('checkpoints'), to_regclass('checkpoint_blobs'), to_regclass('checkpoint_writes'))
  AND a.attnum > 0 AND NOT a.attisdropped;

-- name: postgres_threads
-- Every thread with the number and the bytes of its checkpoints, values that are stored apart included.
SELECT c.thread_id, c.number, c.bytes + coalesce(b.bytes, 0)
FROM (
    SELECT thread_id, count(*) AS number, sum(pg_column_size(checkpoint) + pg_column_size(metadata)) AS bytes
    FROM checkpoints
    GROUP BY thread_id
) c
LEFT JOIN (
    SELECT thread_id, sum(octet_length(blob)) AS bytes
    FROM checkpoint_blobs
    GROUP BY thread_id
) b USING (thread_id)
ORDER BY c.thread_id;

-- name: postgres_writes_of_threads
-- Every thread with the number and the bytes of its writes.
SELECT thread_id, count(*), coalesce(sum(octet_length(blob)), 0)
FROM checkpoint_writes
GROUP BY thread_id;

-- name: postgres_places
-- Which checkpoints a thread has, without what is in them.
SELECT checkpoint_ns, checkpoint_id, parent_checkpoint_id
FROM checkpoints
WHERE thread_id = $1;

-- name: postgres_checkpoint
-- One checkpoint; values that are not plain are stored apart.
SELECT checkpoint, metadata
FROM checkpoints
WHERE thread_id = $1 AND checkpoint_ns = $2 AND checkpoint_id = $3;

-- name: postgres_values
-- The values that one checkpoint has apart: of each channel the version it names.
SELECT b.channel, b.type, b.blob
FROM checkpoints c
CROSS JOIN LATERAL jsonb_each_text(c.checkpoint -> 'channel_versions') AS v
JOIN checkpoint_blobs b ON b.thread_id = c.thread_id AND b.checkpoint_ns = c.checkpoint_ns
    AND b.channel = v.key AND b.version = v.value
WHERE c.thread_id = $1 AND c.checkpoint_ns = $2 AND c.checkpoint_id = $3;

-- name: postgres_writes
-- The writes that hang on one checkpoint.
SELECT task_id, task_path, idx, channel, type, blob
FROM checkpoint_writes
WHERE thread_id = $1 AND checkpoint_ns = $2 AND checkpoint_id = $3;

-- name: postgres_writes_without_path
-- The same of a database from before tasks had paths.
SELECT task_id, '', idx, channel, type, blob
FROM checkpoint_writes
WHERE thread_id = $1 AND checkpoint_ns = $2 AND checkpoint_id = $3;

-- name: postgres_shallow_places
-- The same as postgres_places where only the last checkpoint of each namespace is kept.
SELECT checkpoint_ns, checkpoint ->> 'id', NULL
FROM checkpoints
WHERE thread_id = $1;

-- name: postgres_shallow_checkpoint
-- The same as postgres_checkpoint where only the last one is kept.
SELECT checkpoint, metadata
FROM checkpoints
WHERE thread_id = $1 AND checkpoint_ns = $2 AND checkpoint ->> 'id' = $3;

-- name: postgres_shallow_values
-- The same as postgres_values where only the last value of a channel is kept.
SELECT b.channel, b.type, b.blob
FROM checkpoints c
JOIN checkpoint_blobs b ON b.thread_id = c.thread_id AND b.checkpoint_ns = c.checkpoint_ns
WHERE c.thread_id = $1 AND c.checkpoint_ns = $2 AND c.checkpoint ->> 'id' = $3
  AND c.checkpoint -> 'channel_versions' ? b.channel;
