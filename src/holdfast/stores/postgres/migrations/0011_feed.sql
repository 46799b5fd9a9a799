-- breaking: an older version writes entries without their place in the feed.
-- Numbers of a sequence are not in the order of commits, so an entry has the id of the transaction
-- that wrote it: below the oldest one that is still open nothing can come any more. `tx_base` is
-- added to them, so that what a new cluster counts goes on after what was restored into it.
ALTER TABLE identity ADD COLUMN cluster text COLLATE "C" NOT NULL DEFAULT '';
ALTER TABLE identity ADD COLUMN tx_base bigint NOT NULL DEFAULT 0;
ALTER TABLE journal ADD COLUMN tx bigint;

-- What is there already comes in about the order of its time, and in order for each run.
UPDATE journal j
SET tx = numbered.tx
FROM (SELECT tenant, run_id, seq,
             row_number() OVER (ORDER BY newest, tenant, run_id, seq) AS tx
      FROM (SELECT tenant, run_id, seq,
                   max(stored_at) OVER (PARTITION BY tenant, run_id ORDER BY seq) AS newest
            FROM journal) AS timed) AS numbered
WHERE j.tenant = numbered.tenant AND j.run_id = numbered.run_id AND j.seq = numbered.seq;
UPDATE identity SET tx_base = (SELECT coalesce(max(tx), 0) FROM journal);

ALTER TABLE journal ALTER COLUMN tx SET NOT NULL;
CREATE INDEX journal_feed ON journal (tenant, tx);
