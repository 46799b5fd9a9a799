-- Whether a checkpoint is final is said by the journal: by an entry CHECKPOINT_FINALIZED that names
-- its id, and by no index row. What the journal tells of a checkpoint is found by that id, which is
-- the first fact of such entries (a link's second one): MessagePack, after an array's head and a
-- binary's.
CREATE INDEX journal_told ON journal
    (tenant,
     (CASE kind WHEN 'CHECKPOINT_LINKED' THEN substring(facts FROM 22 FOR 16)
                ELSE substring(facts FROM 4 FOR 16) END),
     kind, seq)
    WHERE kind IN ('CHECKPOINT_UPDATED', 'CHECKPOINT_FINALIZED', 'CHECKPOINT_LINKED',
                   'CHECKPOINT_DELETED');
-- Of checkpoints themselves only those that tell of a record: the last fact of all others is nil.
CREATE INDEX journal_told_created ON journal (tenant, (substring(facts FROM 4 FOR 16)))
    WHERE kind = 'CHECKPOINT_CREATED' AND substring(facts FROM length(facts) FOR 1) <> '\xc0';
-- What takes rows and bodies away, on the record.
CREATE INDEX journal_tombstones ON journal (tenant, run_id, seq)
    WHERE kind IN ('CHECKPOINT_DELETED', 'CHECKPOINTS_PRUNED', 'BODIES_ERASED');

-- Checkpoints as before, and where the entry of each one's parent lies.
DROP VIEW told_checkpoints;
CREATE VIEW told_checkpoints AS
SELECT c.tenant, c.run_id, c.version, c.seq, c.checkpoint_id, c.parent, c.base_seq, c.created_at,
       c.phase, c.agent, c.status, c.label, r.agent_type, r.phase AS told_phase,
       r.status AS told_status, r.summary, r.words, r.revision, r.revised_seq, r.final_seq,
       r.linked,
       (SELECT p.checkpoint_id FROM checkpoints p
        WHERE p.tenant = c.tenant AND p.run_id = c.run_id AND p.version = c.parent) AS parent_id,
       (SELECT p.seq FROM checkpoints p
        WHERE p.tenant = c.tenant AND p.run_id = c.run_id AND p.version = c.parent) AS parent_seq
FROM checkpoints c
LEFT JOIN records r ON r.tenant = c.tenant AND r.run_id = c.run_id AND r.version = c.version;

DROP TRIGGER final_record ON records;
DROP TRIGGER final_checkpoint_changed ON checkpoints;
DROP TRIGGER final_checkpoint_gone ON checkpoints;
DROP TRIGGER final_revision ON revisions;
DROP TRIGGER final_entry ON journal;
DROP FUNCTION holdfast_keep_final_row();
DROP FUNCTION holdfast_keep_final_entry();
DROP FUNCTION holdfast_is_removing();
DROP VIEW final_entries;

CREATE FUNCTION holdfast_is_final(of_tenant text, id bytea) RETURNS boolean
LANGUAGE sql STABLE AS $$
    SELECT EXISTS (
        SELECT 1 FROM journal
        WHERE tenant = of_tenant AND kind = 'CHECKPOINT_FINALIZED'
          AND (CASE kind WHEN 'CHECKPOINT_LINKED' THEN substring(facts FROM 22 FOR 16)
                         ELSE substring(facts FROM 4 FOR 16) END) = id)
$$;

CREATE FUNCTION holdfast_is_final_version(of_tenant text, of_run text, of_version bigint)
RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT EXISTS (
        SELECT 1 FROM checkpoints
        WHERE tenant = of_tenant AND run_id = of_run AND version = of_version
          AND holdfast_is_final(of_tenant, uuid_send(checkpoint_id)))
$$;

-- Rows go, and bodies, with an entry that says so, in the same transaction.
CREATE FUNCTION holdfast_is_told(of_tenant text, of_run text) RETURNS boolean
LANGUAGE sql STABLE AS $$
    SELECT coalesce((
        SELECT tx >= (SELECT tx_base FROM identity) + pg_current_xact_id()::text::bigint
        FROM journal
        WHERE tenant = of_tenant AND run_id = of_run
          AND kind IN ('CHECKPOINT_DELETED', 'CHECKPOINTS_PRUNED', 'BODIES_ERASED')
        ORDER BY seq DESC
        LIMIT 1), false)
$$;

-- Else only the owner of the tables does that, and only when that is said: in the functions below.
CREATE FUNCTION holdfast_is_maintaining(relation oid) RETURNS boolean
LANGUAGE sql STABLE AS $$
    SELECT coalesce(current_setting('holdfast.removing', true), '') = 'on'
       AND current_user = (SELECT pg_get_userbyid(relowner) FROM pg_class WHERE oid = relation)
$$;

CREATE FUNCTION holdfast_keep_final_row() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF holdfast_is_final_version(OLD.tenant, OLD.run_id, OLD.version)
       AND (TG_OP = 'UPDATE' OR NOT (holdfast_is_told(OLD.tenant, OLD.run_id)
                                     OR holdfast_is_maintaining(TG_RELID))) THEN
        RAISE EXCEPTION 'holdfast: this checkpoint is final' USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN CASE TG_OP WHEN 'DELETE' THEN OLD ELSE NEW END;
END
$$;

CREATE FUNCTION holdfast_keep_final_entry() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    id bytea := CASE OLD.kind WHEN 'CHECKPOINT_LINKED' THEN substring(OLD.facts FROM 22 FOR 16)
                              ELSE substring(OLD.facts FROM 4 FOR 16) END;
    is_erasure boolean := false;
BEGIN
    IF TG_OP = 'UPDATE' THEN
        is_erasure := NEW.body IS NULL AND NEW.erased_digest = sha256(OLD.nonce || OLD.body)
            AND (NEW.tenant, NEW.run_id, NEW.seq, NEW.kind, NEW.at, NEW.actor, NEW.schema,
                 NEW.encoding, NEW.key_id, NEW.facts, NEW.nonce, NEW.link)
              = (OLD.tenant, OLD.run_id, OLD.seq, OLD.kind, OLD.at, OLD.actor, OLD.schema,
                 OLD.encoding, OLD.key_id, OLD.facts, OLD.nonce, OLD.link)
            AND holdfast_is_told(OLD.tenant, OLD.run_id);
    END IF;
    IF NOT coalesce(is_erasure, false) AND NOT holdfast_is_maintaining(TG_RELID)
       AND holdfast_is_final(OLD.tenant, id) THEN
        RAISE EXCEPTION 'holdfast: this checkpoint is final' USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN CASE TG_OP WHEN 'DELETE' THEN OLD ELSE NEW END;
END
$$;

CREATE FUNCTION holdfast_keep_all() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NOT holdfast_is_maintaining(TG_RELID) THEN
        RAISE EXCEPTION 'holdfast: % is not to be emptied', TG_TABLE_NAME
            USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN NULL;
END
$$;

CREATE TRIGGER final_record_changed BEFORE UPDATE ON records
    FOR EACH ROW WHEN (OLD.final_seq > 0) EXECUTE FUNCTION holdfast_keep_final_row();
CREATE TRIGGER final_record_gone BEFORE DELETE ON records
    FOR EACH ROW EXECUTE FUNCTION holdfast_keep_final_row();
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
                                    'CHECKPOINT_FINALIZED', 'CHECKPOINT_LINKED'))
    EXECUTE FUNCTION holdfast_keep_final_entry();
CREATE TRIGGER whole_journal BEFORE TRUNCATE ON journal
    FOR EACH STATEMENT EXECUTE FUNCTION holdfast_keep_all();
CREATE TRIGGER whole_checkpoints BEFORE TRUNCATE ON checkpoints
    FOR EACH STATEMENT EXECUTE FUNCTION holdfast_keep_all();
CREATE TRIGGER whole_records BEFORE TRUNCATE ON records
    FOR EACH STATEMENT EXECUTE FUNCTION holdfast_keep_all();
CREATE TRIGGER whole_revisions BEFORE TRUNCATE ON revisions
    FOR EACH STATEMENT EXECUTE FUNCTION holdfast_keep_all();

-- What maintenance does to rows of a run that are final, with the rights of the tables' owner: they
-- are made anew from the journal in the same transaction.
CREATE FUNCTION holdfast_forget_rows(of_tenant text, of_run text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    PERFORM set_config('holdfast.removing', 'on', true);
    DELETE FROM records WHERE tenant = of_tenant AND run_id = of_run;
    DELETE FROM revisions WHERE tenant = of_tenant AND run_id = of_run;
    DELETE FROM checkpoints WHERE tenant = of_tenant AND run_id = of_run;
    PERFORM set_config('holdfast.removing', 'off', true);
END
$$;
REVOKE ALL ON FUNCTION holdfast_forget_rows(text, text) FROM PUBLIC;
