"""Tables of log.db.

Triggers keep the log append-only against mistakes: of ours, and of people with a shell. They are
no protection against who owns the file, the chain is. What they allow: the next seq; erasing a
payload together with its salt; deleting rows up to an anchor in `checkpoints`.

`tiles` has the tree of the leaves as `domain.tree` lays it out: of level 0 full tiles only, as
`log.leaf` has the rest. `tracking` is laid out for views that keep their position here; nothing
writes it yet.
"""

import sqlite3
from collections.abc import Iterable
from contextlib import closing

APPLICATION_ID = 0x6B756475  # "kudu", tells a log from any other SQLite file
SCHEMA_VERSION = 1

TABLES = """
CREATE TABLE meta (
    id      INTEGER PRIMARY KEY CHECK (id = 1),
    log_id  TEXT NOT NULL,
    epoch   INTEGER NOT NULL,
    schema  INTEGER NOT NULL,
    created INTEGER NOT NULL  -- microseconds UTC
) STRICT;

CREATE TABLE streams (
    id  INTEGER PRIMARY KEY,  -- seq of the first event
    key TEXT NOT NULL UNIQUE
) STRICT;

CREATE TABLE scopes (
    id    INTEGER PRIMARY KEY,  -- seq of the first event
    scope TEXT NOT NULL UNIQUE
) STRICT;

CREATE TABLE log (
    seq      INTEGER PRIMARY KEY,
    txn      INTEGER NOT NULL,
    ts       INTEGER NOT NULL,
    stream   INTEGER NOT NULL REFERENCES streams,
    ver      INTEGER NOT NULL,
    scope    INTEGER NOT NULL REFERENCES scopes,
    type     TEXT NOT NULL,
    entry    BLOB NOT NULL,
    salt     BLOB,
    body     BLOB,
    who_salt BLOB,
    who      BLOB,
    leaf     BLOB NOT NULL,
    head     BLOB NOT NULL,
    UNIQUE (stream, ver)
) STRICT;

CREATE INDEX log_scope ON log (scope, seq);

-- Lives of objects: the next version after a deletion begins one.
CREATE INDEX log_deleted ON log (stream, seq, ver) WHERE type = 'obj.deleted.v1';

CREATE TABLE tiles (
    level  INTEGER NOT NULL,
    idx    INTEGER NOT NULL,
    width  INTEGER NOT NULL,
    hashes BLOB NOT NULL,
    PRIMARY KEY (level, idx)
) STRICT, WITHOUT ROWID;

CREATE TABLE checkpoints (
    size     INTEGER PRIMARY KEY,
    note     TEXT NOT NULL,     -- C2SP signed note
    frontier BLOB NOT NULL,
    state    BLOB,              -- digest of the projected state; for an anchor the rows kept
    anchor   INTEGER NOT NULL DEFAULT 0 CHECK (anchor IN (0, 1))  -- 1: rows up to size may go
) STRICT;

CREATE TABLE tracking (
    projection TEXT PRIMARY KEY,
    seq        INTEGER NOT NULL
) STRICT;
"""

SECRETS = """
CREATE TABLE IF NOT EXISTS secrets (
    key    TEXT PRIMARY KEY,
    sealed BLOB NOT NULL
) STRICT, WITHOUT ROWID
"""
"""Secret parts of objects, sealed with the node's key. No part of the chain: a log may come without
them. Logs of the first versions have no such table."""

NO_GAP = """
CREATE TRIGGER log_has_no_gap BEFORE INSERT ON log
WHEN NEW.seq IS NOT 1 + ifnull((SELECT max(seq) FROM log), 0)
    -- or INSERT OR REPLACE would take the other row away without asking the delete trigger
    OR EXISTS (SELECT 1 FROM log WHERE stream = NEW.stream AND ver = NEW.ver)
BEGIN SELECT raise(ABORT, 'the log has no gaps: only the next seq of a new version fits'); END;
"""

_OTHER_TRIGGERS = """
CREATE TRIGGER log_is_not_changed BEFORE UPDATE ON log
WHEN NEW.seq IS NOT OLD.seq OR NEW.txn IS NOT OLD.txn OR NEW.ts IS NOT OLD.ts
    OR NEW.stream IS NOT OLD.stream OR NEW.ver IS NOT OLD.ver OR NEW.scope IS NOT OLD.scope
    OR NEW.type IS NOT OLD.type OR NEW.entry IS NOT OLD.entry
    OR NEW.leaf IS NOT OLD.leaf OR NEW.head IS NOT OLD.head
    OR NOT ((NEW.salt IS OLD.salt AND NEW.body IS OLD.body)
         OR (NEW.salt IS NULL AND NEW.body IS NULL))
    OR NOT ((NEW.who_salt IS OLD.who_salt AND NEW.who IS OLD.who)
         OR (NEW.who_salt IS NULL AND NEW.who IS NULL))
BEGIN SELECT raise(ABORT, 'the log is not changed: a payload can be erased, nothing else'); END;

CREATE TRIGGER log_is_kept BEFORE DELETE ON log
WHEN OLD.seq > ifnull((SELECT max(size) FROM checkpoints WHERE anchor = 1), 0)
BEGIN SELECT raise(ABORT, 'the log is kept: only rows up to an anchor can be deleted'); END;

CREATE TRIGGER streams_are_not_changed BEFORE UPDATE ON streams
BEGIN SELECT raise(ABORT, 'streams are not changed'); END;

CREATE TRIGGER streams_are_kept BEFORE DELETE ON streams
WHEN EXISTS (SELECT 1 FROM log WHERE stream = OLD.id)
BEGIN SELECT raise(ABORT, 'streams are kept as long as the log names them'); END;

CREATE TRIGGER scopes_are_not_changed BEFORE UPDATE ON scopes
BEGIN SELECT raise(ABORT, 'scopes are not changed'); END;

CREATE TRIGGER scopes_are_kept BEFORE DELETE ON scopes
WHEN EXISTS (SELECT 1 FROM log WHERE scope = OLD.id)
BEGIN SELECT raise(ABORT, 'scopes are kept as long as the log names them'); END;

CREATE TRIGGER tiles_only_grow BEFORE UPDATE ON tiles
WHEN NEW.level IS NOT OLD.level OR NEW.idx IS NOT OLD.idx OR NEW.width < OLD.width
    OR substr(NEW.hashes, 1, length(OLD.hashes)) IS NOT OLD.hashes
BEGIN SELECT raise(ABORT, 'tiles only grow'); END;

CREATE TRIGGER tiles_are_kept BEFORE DELETE ON tiles
BEGIN SELECT raise(ABORT, 'tiles are kept'); END;

CREATE TRIGGER checkpoints_are_not_changed BEFORE UPDATE ON checkpoints
WHEN NEW.size IS NOT OLD.size OR NEW.note IS NOT OLD.note OR NEW.frontier IS NOT OLD.frontier
BEGIN SELECT raise(ABORT, 'checkpoints are not changed: one can become an anchor'); END;

CREATE TRIGGER checkpoints_are_kept BEFORE DELETE ON checkpoints
BEGIN SELECT raise(ABORT, 'checkpoints are kept'); END;

CREATE TRIGGER meta_is_one_row BEFORE DELETE ON meta
BEGIN SELECT raise(ABORT, 'a log keeps its name'); END;
"""

TRIGGERS = NO_GAP + _OTHER_TRIGGERS

OBJECTS = "SELECT name, type, sql FROM sqlite_schema WHERE type IN ('table', 'trigger', 'view')"


def difference(found: Iterable[tuple[str, str, str]]) -> str:
    """In what the OBJECTS of a log are not as kudurru makes them, empty where they are: tables that
    promise what they should, and triggers and views that nobody else has put there."""
    with closing(sqlite3.connect(":memory:")) as db:
        db.executescript(TABLES + SECRETS + ";" + TRIGGERS)
        ours = {name: sql for name, _, sql in db.execute(OBJECTS)}
    theirs = {name: (type_, sql) for name, type_, sql in found}
    for name, sql in ours.items():
        if name not in theirs and name != "secrets":
            return f"{name} is missing"
        if name in theirs and theirs[name][1] != sql:
            return f"{name} is not as kudurru made it"
    for name, (type_, _) in theirs.items():
        if type_ != "table" and name not in ours:
            return f"there is a {type_} {name}, which is not kudurru's"
    return ""
