-- name: list_migrations
-- The migrations that were applied.
SELECT number, name, is_breaking
FROM migrations
ORDER BY number;

-- name: add_migration
-- Note a migration in its own transaction.
INSERT INTO migrations (number, name, is_breaking, applied_at)
VALUES ($1, $2, $3, $4);

-- name: make_migrations
-- The table that tells which migrations were applied.
CREATE TABLE IF NOT EXISTS migrations (
    number bigint PRIMARY KEY,
    name text NOT NULL,
    is_breaking boolean NOT NULL,
    applied_at bigint NOT NULL
);

-- name: has_migrations
-- PostgreSQL only. Whether the table is there, and whether this role may make tables; SQLite files
-- tell by opening.
SELECT to_regclass('migrations') IS NOT NULL,
       coalesce(has_schema_privilege(current_schema(), 'CREATE'), false),
       EXISTS (SELECT 1 FROM pg_tables WHERE schemaname = current_schema()
               AND tablename IN ('runs', 'journal', 'checkpoints', 'effects', 'wait_groups',
                                 'waits', 'signals', 'workers'));

-- name: lock_migrations
-- PostgreSQL only. One process at a time changes the schema. The number is ours alone.
SELECT pg_advisory_xact_lock(7525065);

-- name: lock_tables_at_once
-- PostgreSQL only. Fails if a stranger's lock on a whole table keeps everybody from writing.
LOCK TABLE runs, journal, checkpoints, effects, wait_groups, waits, signals, workers
IN ROW EXCLUSIVE MODE NOWAIT;

-- name: set_limits
-- PostgreSQL only. What a session, or a transaction, must not exceed, and plans that stay by the
-- indexes however small a table was when they were made.
SELECT set_config('lock_timeout', $1, $3),
       set_config('idle_in_transaction_session_timeout', $2, $3),
       set_config('synchronous_commit', CASE current_setting('synchronous_commit')
                                        WHEN 'off' THEN 'on' WHEN 'local' THEN 'on'
                                        ELSE current_setting('synchronous_commit') END, $3),
       set_config('enable_seqscan', 'off', $3),
       set_config('enable_hashjoin', 'off', $3),
       set_config('enable_mergejoin', 'off', $3),
       set_config('plan_cache_mode', 'force_generic_plan', $3),
       set_config('jit', 'off', $3);

-- name: get_server
-- PostgreSQL only. What the server is, and what time it has.
SELECT current_setting('server_version'), pg_is_in_recovery(),
       pg_database_size(current_database()),
       current_setting('synchronous_commit'),
       (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;

-- name: get_time
-- PostgreSQL only. What time the server has.
SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;

-- name: wait_for_replicas
-- PostgreSQL only. A commit that waits for the replicas as the one before it should have.
SELECT set_config('synchronous_commit', CASE current_setting('synchronous_commit')
                                        WHEN 'off' THEN 'on' WHEN 'local' THEN 'on'
                                        ELSE current_setting('synchronous_commit') END, true),
       pg_logical_emit_message(true, 'holdfast', 'replicated?');

-- name: get_store_id
-- Who this store is.
SELECT store_id
FROM identity;

-- name: get_cluster
-- PostgreSQL only. Which cluster the transactions of the feed were counted by, and which one this is;
-- nobody knows if this role may not ask.
SELECT cluster,
       CASE WHEN has_function_privilege('pg_control_system()', 'EXECUTE')
            THEN (SELECT system_identifier::text FROM pg_control_system()) ELSE '' END
FROM identity;

-- name: move_to_cluster
-- PostgreSQL only. Let the transactions of this cluster count on after those of the one before.
UPDATE identity
SET cluster = $1, tx_base = greatest(tx_base, (SELECT coalesce(max(tx), 0) FROM journal))
WHERE cluster <> $1;
