-- The samples of 0001 have left their statistics. Truncated in a transaction after the one that made
-- them, tables count as new and not as empty: plans are made for rows to come.
TRUNCATE runs, journal, checkpoints, effects, wait_groups, waits, workers;
