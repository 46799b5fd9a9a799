-- What checkpoints tell of the work itself, to search by; see checkpoint schema 1.0. `words` is the
-- summary as it is found: words in lower case.

CREATE TABLE records (
    tenant text COLLATE "C" NOT NULL,
    run_id text COLLATE "C" NOT NULL,
    version bigint NOT NULL,
    agent_type text COLLATE "C" NOT NULL,
    phase text COLLATE "C" NOT NULL,
    status text COLLATE "C" NOT NULL,
    summary text COLLATE "C" NOT NULL,
    words text COLLATE "C" NOT NULL,
    revision bigint NOT NULL,
    revised_seq bigint NOT NULL,
    final_seq bigint NOT NULL,
    linked text COLLATE "C" NOT NULL,
    PRIMARY KEY (tenant, run_id, version)
);

CREATE INDEX records_by_words ON records USING gin (to_tsvector('simple', words))
    WHERE words <> '';

CREATE TABLE revisions (
    tenant text COLLATE "C" NOT NULL,
    run_id text COLLATE "C" NOT NULL,
    version bigint NOT NULL,
    revision bigint NOT NULL,
    seq bigint NOT NULL,
    PRIMARY KEY (tenant, run_id, version, revision)
);

-- Checkpoints, what is told of their records if anything is, and the id of each one's parent.
CREATE VIEW told_checkpoints AS
SELECT c.tenant, c.run_id, c.version, c.seq, c.checkpoint_id, c.parent, c.base_seq, c.created_at,
       c.phase, c.agent, c.status, c.label, r.agent_type, r.phase AS told_phase,
       r.status AS told_status, r.summary, r.words, r.revision, r.revised_seq, r.final_seq,
       r.linked,
       (SELECT p.checkpoint_id FROM checkpoints p
        WHERE p.tenant = c.tenant AND p.run_id = c.run_id AND p.version = c.parent) AS parent_id
FROM checkpoints c
LEFT JOIN records r ON r.tenant = c.tenant AND r.run_id = c.run_id AND r.version = c.version;

CREATE VIEW final_entries (tenant, run_id, version, seq) AS
SELECT r.tenant, r.run_id, r.version, r.final_seq
FROM records r
WHERE r.final_seq > 0
UNION ALL
SELECT r.tenant, r.run_id, r.version, c.seq
FROM records r
JOIN checkpoints c ON c.tenant = r.tenant AND c.run_id = r.run_id AND c.version = r.version
WHERE r.final_seq > 0
UNION ALL
SELECT r.tenant, r.run_id, r.version, v.seq
FROM records r
JOIN revisions v ON v.tenant = r.tenant AND v.run_id = r.run_id AND v.version = r.version
WHERE r.final_seq > 0;

-- A checkpoint that is final is not to be changed, by nobody: neither its rows nor its entries. A
-- transaction that rebuilds or erases a run on the record says so in the setting.
CREATE FUNCTION holdfast_is_removing() RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT coalesce(current_setting('holdfast.removing', true), '') = 'on'
$$;

CREATE FUNCTION holdfast_keep_final_row() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF (TG_OP = 'UPDATE' OR NOT holdfast_is_removing())
       AND EXISTS (SELECT 1 FROM records r
                   WHERE r.tenant = OLD.tenant AND r.run_id = OLD.run_id
                     AND r.version = OLD.version AND r.final_seq > 0) THEN
        RAISE EXCEPTION 'holdfast: this checkpoint is final' USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN CASE TG_OP WHEN 'DELETE' THEN OLD ELSE NEW END;
END
$$;

CREATE FUNCTION holdfast_keep_final_entry() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NOT holdfast_is_removing()
       AND EXISTS (SELECT 1 FROM final_entries f
                   WHERE f.tenant = OLD.tenant AND f.run_id = OLD.run_id AND f.seq = OLD.seq) THEN
        RAISE EXCEPTION 'holdfast: this checkpoint is final' USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN CASE TG_OP WHEN 'DELETE' THEN OLD ELSE NEW END;
END
$$;

CREATE TRIGGER final_record BEFORE UPDATE OR DELETE ON records
    FOR EACH ROW WHEN (OLD.final_seq > 0) EXECUTE FUNCTION holdfast_keep_final_row();
-- Where its loading begins may change: what is loaded does not.
CREATE TRIGGER final_checkpoint_changed
    BEFORE UPDATE OF tenant, run_id, version, seq, checkpoint_id, parent, created_at, phase, agent,
                     status, label ON checkpoints
    FOR EACH ROW EXECUTE FUNCTION holdfast_keep_final_row();
CREATE TRIGGER final_checkpoint_gone BEFORE DELETE ON checkpoints
    FOR EACH ROW EXECUTE FUNCTION holdfast_keep_final_row();
CREATE TRIGGER final_revision BEFORE UPDATE OR DELETE ON revisions
    FOR EACH ROW EXECUTE FUNCTION holdfast_keep_final_row();
CREATE TRIGGER final_entry BEFORE UPDATE OR DELETE ON journal
    FOR EACH ROW WHEN (OLD.kind IN ('CHECKPOINT_CREATED', 'CHECKPOINT_UPDATED',
                                    'CHECKPOINT_FINALIZED'))
    EXECUTE FUNCTION holdfast_keep_final_entry();

-- Statistics of a store in use, as in 0003.
INSERT INTO records
SELECT '', md5((n / 20)::text), n, 'implementation', '', '', '', md5(n::text), 1, 0, 0, ''
FROM generate_series(1, 1000) AS n;
INSERT INTO revisions
SELECT '', md5((n / 20)::text), n / 2, n, n
FROM generate_series(1, 1000) AS n;
ANALYZE records, revisions;
SAVEPOINT samples;
TRUNCATE records, revisions;
RELEASE SAVEPOINT samples;
