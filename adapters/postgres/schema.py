"""Tables of the log in PostgreSQL: those of `adapters.sqlite.schema`, and a counter.

Names are octets: PostgreSQL's text takes no NUL and depends on the encoding of the database. Read
them with `convert_from(key, 'UTF8')`.

The counter row orders the nodes: whoever appends locks it first, and holds it until the commit, so
a later seq never becomes visible before an earlier one, and an append that fails leaves no gap.

The triggers keep the log append-only against mistakes, as in SQLite; a superuser can take them
away, and then the chain shows what was done.
"""

SCHEMA_VERSION = 1

TABLES = """
CREATE TABLE meta (
    id      int PRIMARY KEY CHECK (id = 1),
    log_id  text NOT NULL,
    epoch   int NOT NULL,
    schema  int NOT NULL,
    created bigint NOT NULL  -- microseconds UTC
);

CREATE TABLE counter (
    id  int PRIMARY KEY CHECK (id = 1),
    seq bigint NOT NULL      -- of the newest row of the log
) WITH (fillfactor = 10);    -- room for its next versions on the same page

CREATE TABLE streams (
    id  bigint PRIMARY KEY,  -- seq of the first event
    key bytea NOT NULL UNIQUE
);

CREATE TABLE scopes (
    id    bigint PRIMARY KEY,
    scope bytea NOT NULL UNIQUE
);

CREATE TABLE log (
    seq      bigint PRIMARY KEY,
    txn      bigint NOT NULL,
    ts       bigint NOT NULL,
    stream   bigint NOT NULL REFERENCES streams,
    ver      bigint NOT NULL,
    scope    bigint NOT NULL REFERENCES scopes,
    type     text NOT NULL,
    entry    bytea NOT NULL,
    salt     bytea,
    body     bytea,
    who_salt bytea,
    who      bytea,
    leaf     bytea NOT NULL,
    head     bytea NOT NULL,
    UNIQUE (stream, ver)
);

CREATE INDEX log_scope ON log (scope, seq);

CREATE INDEX log_deleted ON log (stream, seq, ver) WHERE type = 'obj.deleted.v1';

CREATE TABLE tiles (
    level  int NOT NULL,
    idx    bigint NOT NULL,
    width  int NOT NULL,
    hashes bytea NOT NULL,
    PRIMARY KEY (level, idx)
);

CREATE TABLE checkpoints (
    size     bigint PRIMARY KEY,
    note     text NOT NULL,
    frontier bytea NOT NULL,
    state    bytea,
    anchor   int NOT NULL DEFAULT 0 CHECK (anchor IN (0, 1))
);

CREATE TABLE tracking (
    projection text PRIMARY KEY,
    seq        bigint NOT NULL
);

CREATE FUNCTION log_has_no_gap() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    first bigint; last bigint; rows bigint;
BEGIN
    SELECT min(seq), max(seq), count(*) INTO first, last, rows FROM added;
    IF rows > 0 AND (last - first + 1 != rows
        OR first != 1 + coalesce((SELECT max(seq) FROM log WHERE seq < first), 0)) THEN
        RAISE EXCEPTION 'the log has no gaps: only the next seqs fit'
            USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    RETURN NULL;
END $$;

CREATE FUNCTION log_is_not_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF (NEW.seq, NEW.txn, NEW.ts, NEW.stream, NEW.ver, NEW.scope, NEW.type, NEW.entry, NEW.leaf,
        NEW.head)
       IS DISTINCT FROM
       (OLD.seq, OLD.txn, OLD.ts, OLD.stream, OLD.ver, OLD.scope, OLD.type, OLD.entry, OLD.leaf,
        OLD.head)
       OR ((NEW.salt, NEW.body) IS DISTINCT FROM (OLD.salt, OLD.body)
           AND (NEW.salt IS NOT NULL OR NEW.body IS NOT NULL))
       OR ((NEW.who_salt, NEW.who) IS DISTINCT FROM (OLD.who_salt, OLD.who)
           AND (NEW.who_salt IS NOT NULL OR NEW.who IS NOT NULL)) THEN
        RAISE EXCEPTION 'the log is not changed: a payload can be erased, nothing else'
            USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    RETURN NEW;
END $$;

CREATE FUNCTION log_is_kept() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF OLD.seq > coalesce((SELECT max(size) FROM checkpoints WHERE anchor = 1), 0) THEN
        RAISE EXCEPTION 'the log is kept: only rows up to an anchor can be deleted'
            USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    RETURN OLD;
END $$;

CREATE FUNCTION names_are_kept() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' AND TG_TABLE_NAME = 'streams' THEN
        IF NOT EXISTS (SELECT 1 FROM log WHERE stream = OLD.id) THEN RETURN OLD; END IF;
    ELSIF TG_OP = 'DELETE' AND TG_TABLE_NAME = 'scopes' THEN
        IF NOT EXISTS (SELECT 1 FROM log WHERE scope = OLD.id) THEN RETURN OLD; END IF;
    END IF;
    RAISE EXCEPTION '% are kept as long as the log names them, and not changed', TG_TABLE_NAME
        USING ERRCODE = 'integrity_constraint_violation';
END $$;

CREATE FUNCTION is_kept_whole() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% is kept whole', TG_TABLE_NAME
        USING ERRCODE = 'integrity_constraint_violation';
END $$;

CREATE TRIGGER log_has_no_gap AFTER INSERT ON log REFERENCING NEW TABLE AS added
    FOR EACH STATEMENT EXECUTE FUNCTION log_has_no_gap();
CREATE TRIGGER log_is_not_changed BEFORE UPDATE ON log
    FOR EACH ROW EXECUTE FUNCTION log_is_not_changed();
CREATE TRIGGER log_is_kept BEFORE DELETE ON log
    FOR EACH ROW EXECUTE FUNCTION log_is_kept();
CREATE TRIGGER streams_are_kept BEFORE UPDATE OR DELETE ON streams
    FOR EACH ROW EXECUTE FUNCTION names_are_kept();
CREATE TRIGGER scopes_are_kept BEFORE UPDATE OR DELETE ON scopes
    FOR EACH ROW EXECUTE FUNCTION names_are_kept();
CREATE TRIGGER log_is_not_emptied BEFORE TRUNCATE ON log
    FOR EACH STATEMENT EXECUTE FUNCTION is_kept_whole();
CREATE TRIGGER streams_are_not_emptied BEFORE TRUNCATE ON streams
    FOR EACH STATEMENT EXECUTE FUNCTION is_kept_whole();
CREATE TRIGGER scopes_are_not_emptied BEFORE TRUNCATE ON scopes
    FOR EACH STATEMENT EXECUTE FUNCTION is_kept_whole();
CREATE TRIGGER meta_is_one_row BEFORE DELETE ON meta
    FOR EACH STATEMENT EXECUTE FUNCTION is_kept_whole();
CREATE TRIGGER counter_is_one_row BEFORE DELETE ON counter
    FOR EACH STATEMENT EXECUTE FUNCTION is_kept_whole();
"""

SECRETS = """
CREATE TABLE IF NOT EXISTS secrets (
    key    bytea PRIMARY KEY,
    sealed bytea NOT NULL
)
"""
"""See `adapters.sqlite.schema`."""
