"""The tables of a server's file, and the steps from older formats.

Rows of one session stand together, since every composite key begins with the session's number. The
log and the ledger take new rows only; triggers refuse the rest, whoever asks. (``REPLACE`` would
delete without firing a trigger, hence the third one on the ledger; in the log it breaks the chain,
which ``verify`` finds.)
"""

from __future__ import annotations

from collections.abc import Mapping

APPLICATION_ID = 0x53594E53
"""``SYNS`` in the file's header: a Syncline server's."""
REPLICA_APPLICATION_ID = 0x53594E52
"""``SYNR``: a client's replica; known here to name the mistake of passing one."""
FORMAT = 2
"""Kept in ``user_version``."""

SCHEMA: Mapping[str, str] = {
    # store_id, epoch, and last_commit: the token of the last commit, by which a commit that failed
    # to answer is found out about.
    "store": """CREATE TABLE store (key TEXT PRIMARY KEY, value NOT NULL) WITHOUT ROWID""",
    "sessions": """CREATE TABLE sessions (
        session INTEGER PRIMARY KEY,
        id TEXT NOT NULL UNIQUE,
        label TEXT NOT NULL,
        genesis BLOB NOT NULL,
        epoch INTEGER NOT NULL,
        seq INTEGER NOT NULL,
        hash BLOB NOT NULL,
        floor INTEGER NOT NULL,
        created_at INTEGER NOT NULL
    )""",
    "clients": """CREATE TABLE clients (
        session INTEGER NOT NULL,
        client TEXT NOT NULL,
        n INTEGER NOT NULL,
        running BLOB NOT NULL,
        PRIMARY KEY (session, client)
    ) WITHOUT ROWID""",
    "devices": """CREATE TABLE devices (
        client TEXT PRIMARY KEY, incarnation INTEGER NOT NULL, principal TEXT
    ) WITHOUT ROWID""",
    "log": """CREATE TABLE log (
        session INTEGER NOT NULL,
        seq INTEGER NOT NULL,
        hash BLOB NOT NULL,
        client TEXT NOT NULL,
        n INTEGER NOT NULL,
        events INTEGER NOT NULL,
        entry BLOB NOT NULL,
        salt BLOB NOT NULL,
        PRIMARY KEY (session, seq)
    ) WITHOUT ROWID""",
    "log_dot": """CREATE UNIQUE INDEX log_dot ON log (session, client, n)""",
    "log_salt": """CREATE UNIQUE INDEX log_salt ON log (session, salt)""",
    "log_events": """CREATE INDEX log_events ON log (session, seq) WHERE events > 0""",
    "log_keeps": """CREATE TRIGGER log_keeps BEFORE DELETE ON log
        BEGIN SELECT RAISE(ABORT, 'the log is append-only'); END""",
    "log_stands": """CREATE TRIGGER log_stands BEFORE UPDATE ON log
        BEGIN SELECT RAISE(ABORT, 'the log is append-only'); END""",
    "records": """CREATE TABLE records (
        session INTEGER NOT NULL,
        collection TEXT NOT NULL,
        id TEXT NOT NULL,
        seq INTEGER NOT NULL,
        state BLOB NOT NULL,
        PRIMARY KEY (session, collection, id)
    ) WITHOUT ROWID""",
    "conflicts": """CREATE TABLE conflicts (
        session INTEGER NOT NULL,
        id TEXT NOT NULL,
        closed INTEGER NOT NULL,
        conflict BLOB NOT NULL,
        PRIMARY KEY (session, id)
    ) WITHOUT ROWID""",
    "refusals": """CREATE TABLE refusals (
        session INTEGER NOT NULL,
        client TEXT NOT NULL,
        n INTEGER NOT NULL,
        code INTEGER NOT NULL,
        reason TEXT NOT NULL,
        detail BLOB NOT NULL,
        digest BLOB,
        of_client TEXT,
        of_n INTEGER,
        PRIMARY KEY (session, client, n)
    ) WITHOUT ROWID""",
    "ledger": """CREATE TABLE ledger (
        n INTEGER PRIMARY KEY, hash BLOB NOT NULL, row BLOB NOT NULL
    )""",
    "ledger_keeps": """CREATE TRIGGER ledger_keeps BEFORE DELETE ON ledger
        BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END""",
    "ledger_stands": """CREATE TRIGGER ledger_stands BEFORE UPDATE ON ledger
        BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END""",
    "ledger_grows": """CREATE TRIGGER ledger_grows BEFORE INSERT ON ledger
        WHEN NEW.n IS NOT (SELECT coalesce(max(n), 0) + 1 FROM ledger)
        BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END""",
    "ledger_identities": """CREATE TABLE ledger_identities (
        n INTEGER PRIMARY KEY, salt BLOB NOT NULL, identity BLOB NOT NULL
    )""",
}
"""What a file must have, by name: tables, indexes and triggers, in the order of making."""

STEPS: Mapping[int, tuple[str, ...]] = {
    1: ("ALTER TABLE devices ADD COLUMN principal TEXT",),
}
"""What brings a file of that format to the next one."""
