"""The replica's tables, and the steps that bring an older file to them.

All tables begin with ``syncline_``; the app's collections appear as views under their own names
(see ``_views``). ``PRAGMA user_version`` is the format. A step runs in one transaction with the
version's change, so that a crash leaves the old format or the new one, with the outbox in it.

How a record lies here: ``state`` is what the app sees, ``base`` what the log says. ``base`` is NULL
while they are the same, and empty (zero bytes) when the log holds no such record; an empty
``state`` is a record that only the log's future or a refused op knew. ``gen`` is the generation of
a session's rows: a bootstrap fills a new one and is shown by one update of the session's row.
"""

from __future__ import annotations

from collections.abc import Mapping

APPLICATION_ID = 0x53594E52  # "SYNR"
FORMAT = 1

FORMAT_1 = """
CREATE TABLE syncline_meta (key TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE syncline_sessions (
    session INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    gen INTEGER NOT NULL UNIQUE,
    epoch INTEGER NOT NULL DEFAULT 0,
    seq INTEGER NOT NULL DEFAULT 0,
    hash BLOB,
    floor INTEGER NOT NULL DEFAULT 0,
    floor_hash BLOB,
    settled_n INTEGER NOT NULL DEFAULT 0,
    settled_running BLOB NOT NULL,
    vector BLOB NOT NULL,
    paused_code INTEGER,
    paused_reason TEXT,
    created_at INTEGER NOT NULL,
    boot BLOB
);
CREATE TABLE syncline_records (
    gen INTEGER NOT NULL,
    collection TEXT NOT NULL,
    id TEXT NOT NULL,
    alive INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    state BLOB NOT NULL,
    base BLOB,
    PRIMARY KEY (gen, collection, id)
) WITHOUT ROWID;
CREATE TABLE syncline_outbox (
    session INTEGER NOT NULL,
    n INTEGER NOT NULL,
    salt BLOB,
    stamps BLOB,
    body BLOB,
    running BLOB NOT NULL,
    former_client TEXT,
    former_n INTEGER,
    sent INTEGER NOT NULL DEFAULT 0,
    written_at INTEGER NOT NULL,
    lost_seq INTEGER,
    PRIMARY KEY (session, n)
) WITHOUT ROWID;
CREATE TABLE syncline_entries (
    session INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    hash BLOB NOT NULL,
    events INTEGER NOT NULL,
    entry BLOB NOT NULL,
    salt BLOB,
    n INTEGER,
    running BLOB,
    PRIMARY KEY (session, seq)
) WITHOUT ROWID;
CREATE INDEX syncline_entries_events ON syncline_entries (session, seq) WHERE events > 0;
CREATE UNIQUE INDEX syncline_entries_own ON syncline_entries (salt) WHERE salt IS NOT NULL;
CREATE UNIQUE INDEX syncline_entries_own_n ON syncline_entries (session, n) WHERE n IS NOT NULL;
CREATE TABLE syncline_consumed (
    session INTEGER NOT NULL,
    n INTEGER NOT NULL,
    running BLOB NOT NULL,
    salt BLOB,
    seq INTEGER,
    PRIMARY KEY (session, n)
) WITHOUT ROWID;
CREATE TABLE syncline_refused (
    salt BLOB PRIMARY KEY,
    session INTEGER NOT NULL,
    client TEXT NOT NULL,
    n INTEGER NOT NULL,
    code INTEGER NOT NULL,
    reason TEXT NOT NULL,
    detail BLOB NOT NULL,
    stamps BLOB NOT NULL,
    body BLOB NOT NULL,
    refused_at INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE syncline_conflicts (
    gen INTEGER NOT NULL,
    id TEXT NOT NULL,
    closed INTEGER NOT NULL,
    conflict BLOB NOT NULL,
    closing_n INTEGER,
    PRIMARY KEY (gen, id)
) WITHOUT ROWID;
CREATE TABLE syncline_fields (
    collection TEXT NOT NULL,
    field TEXT NOT NULL,
    PRIMARY KEY (collection, field)
) WITHOUT ROWID;
CREATE TABLE syncline_views (collection TEXT PRIMARY KEY, name TEXT NOT NULL UNIQUE) WITHOUT ROWID;
CREATE TABLE syncline_lease (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    holder TEXT NOT NULL,
    expires_us INTEGER NOT NULL
);
CREATE TABLE syncline_notices (
    id INTEGER PRIMARY KEY,
    at INTEGER NOT NULL,
    kind TEXT NOT NULL,
    session TEXT,
    detail BLOB NOT NULL
);
"""

STEPS: Mapping[int, str] = {}
"""From each older format to the next: ``{format: SQL}``. There is no older one yet."""

SHAPE: Mapping[str, frozenset[str]] = {
    "syncline_meta": frozenset({"key", "value"}),
    "syncline_sessions": frozenset(
        {
            "session", "id", "gen", "epoch", "seq", "hash", "floor", "floor_hash", "settled_n",
            "settled_running", "vector", "paused_code", "paused_reason", "created_at", "boot",
        }
    ),
    "syncline_records": frozenset({"gen", "collection", "id", "alive", "seq", "state", "base"}),
    "syncline_outbox": frozenset(
        {
            "session", "n", "salt", "stamps", "body", "running", "former_client", "former_n",
            "sent", "written_at",
        }
    ),
}  # fmt: skip
"""What must be there whatever the number says: a version that lies is damage, not a format."""
