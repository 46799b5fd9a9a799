-- name: list_migrations
-- The migrations that were applied.
SELECT number, name, is_breaking
FROM migrations
ORDER BY number;

-- name: add_migration
-- Note a migration in its own transaction.
INSERT INTO migrations (number, name, is_breaking, applied_at)
VALUES (?1, ?2, ?3, ?4);

-- name: make_migrations
-- The table that tells which migrations were applied.
CREATE TABLE IF NOT EXISTS migrations (
    number INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    is_breaking INTEGER NOT NULL,
    applied_at INTEGER NOT NULL
) STRICT;

-- name: get_store_id
-- Who this store is.
SELECT store_id
FROM identity;
