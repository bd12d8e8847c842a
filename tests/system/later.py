"""A later version of the product: one whose replicas have format 3, and which knows the way there.

Format 2 makes the outbox anew, as an upgrade must that changes a key or a type; format 3 adds to a
table, and fills one of its own.
"""

from __future__ import annotations

from collections.abc import Callable

from syncline.client import _database
from syncline.client._schema import SHAPE

TO_2 = """
ALTER TABLE syncline_outbox RENAME TO syncline_outbox_1;
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
    authored TEXT NOT NULL DEFAULT 'format 2',
    PRIMARY KEY (session, n)
) WITHOUT ROWID;
INSERT INTO syncline_outbox SELECT *, 'format 1' FROM syncline_outbox_1;
DROP TABLE syncline_outbox_1;
"""
TO_3 = """
ALTER TABLE syncline_sessions ADD COLUMN colour TEXT;
CREATE TABLE syncline_sizes (session INTEGER, n INTEGER, size INTEGER, PRIMARY KEY (session, n));
INSERT INTO syncline_sizes SELECT session, n, length(body) FROM syncline_outbox;
"""
_SHAPE = {
    **SHAPE,
    "syncline_outbox": SHAPE["syncline_outbox"] | {"authored"},
    "syncline_sessions": SHAPE["syncline_sessions"] | {"colour"},
    "syncline_sizes": frozenset({"session", "n", "size"}),
}


def become_later(
    put_in_place: Callable[[object, str, object], None] = setattr,
) -> None:
    """From now on this process is of the later version."""
    for name, value in (("FORMAT", 3), ("STEPS", {1: TO_2, 2: TO_3}), ("SHAPE", _SHAPE)):
        put_in_place(_database, name, value)
