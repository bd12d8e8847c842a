"""Events of a replica as readers and folds get them, from the log and from the outbox."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

from syncline.sync import Entry, Event
from syncline.sync.sessions import LogItem

from .._rows import Pending, SessionState


def entries(db: sqlite3.Connection, session: SessionState, after: int) -> Iterator[Entry]:
    """The entries of the log behind a seq, as far as this replica shows it."""
    rows = db.execute(
        "SELECT entry FROM syncline_entries WHERE session=? AND seq>? AND seq<=? ORDER BY seq",
        (session.key, after, session.seq),
    )
    return (Entry.decode(data) for (data,) in rows)


def logged(entry: Entry) -> Iterator[LogItem]:
    """The events of an entry."""
    salt = entry.salt.hex()
    for index, accepted in enumerate(entry.read()):
        if isinstance(accepted.change, Event):
            event, stamp = accepted.change, accepted.stamp
            at, client = stamp.updated_at, stamp.client
            yield LogItem.read(entry.seq, index, event.type, event.payload, at, client, salt)


def waiting(op: Pending, client: str) -> Iterator[LogItem]:
    """The events of an op in the outbox."""
    salt = "" if op.salt is None else op.salt.hex()
    for index, (change, at) in enumerate(zip(op.changes, op.stamps, strict=True)):
        if isinstance(change, Event):
            yield LogItem.read(None, index, change.type, change.payload, at, client, salt)
