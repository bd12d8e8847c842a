"""What the log says, applied: entries, refusals, and the cursor, in one transaction.

The caller holds the transaction. Entries change the base; the outbox row of an own op goes in the
same transaction as its entry and the cursor, so there is no moment at which an op is in neither or
in both. A page that does not fit the cursor and the chain is not applied at all.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from syncline.sync import (
    Closed,
    Conflict,
    Diverged,
    Dot,
    Entry,
    Event,
    MalformedFrame,
    Outcome,
    RecordChange,
    ReplicaCloned,
    Resolve,
    conflicts_of,
    decode_body,
    encode_body,
    encode_effects,
    events_in,
    pack,
    running_hash,
)

from ._page import Page
from ._predict import Key, ops_touching, predict
from ._rows import (
    Pending,
    SessionState,
    drop_pending,
    lowest_pending,
    pending_op,
    pending_ops,
    running_at,
    settle_number,
)

_RESOLVES = encode_body([Resolve("")])[1:3]
"""The first bytes of a resolve in an op's body: what other ops may have, but a resolve must."""


@dataclass(slots=True)
class Applied:
    """What a page or a refusal did, for watchers and reports."""

    remote: set[Key] = field(default_factory=set)
    events: int = 0
    settled: list[tuple[int, Outcome]] = field(default_factory=list)
    conflicts: list[Conflict | Closed] = field(default_factory=list)
    entries: int = 0
    fields: dict[str, set[str]] = field(default_factory=dict)

    def add(self, more: Applied) -> None:
        """Take in what a later run of entries did."""
        self.remote |= more.remote
        self.events += more.events
        self.settled += more.settled
        self.conflicts += more.conflicts
        self.entries += more.entries
        for collection, names in more.fields.items():
            self.fields.setdefault(collection, set()).update(names)


def apply_entries(
    db: sqlite3.Connection,
    session: SessionState,
    client: str,
    seq: int,
    previous: bytes,
    data: Sequence[bytes],
) -> Applied:
    """Fold a page of entries into the session (or into its bootstrap, while one is under way).

    Entries at or below the cursor are skipped. Raises Diverged (3015) when the page does not
    continue the chain at the cursor, ReplicaCloned (3016) for an entry under this client's id that
    it did not write, and MalformedFrame (3001) for bytes that are no entries.
    """
    boot = session.boot
    at_seq, at_hash = (
        (boot.cursor[1], boot.cursor[2])
        if boot is not None and boot.cursor is not None
        else (session.seq, session.hash)
    )
    entries = [Entry.decode(item) for item in data]
    for offset, entry in enumerate(entries):
        if entry.seq != seq + offset:
            raise MalformedFrame(f"a page has entry {entry.seq} in the place of {seq + offset}")
    fresh = [(e, d) for e, d in zip(entries, data, strict=True) if e.seq > at_seq]
    applied = Applied()
    if not fresh:
        return applied
    if seq == at_seq + 1 and at_hash is not None and previous != at_hash:
        raise Diverged(f"entry {seq} does not continue the chain at {at_seq}", seq=at_seq)
    if seq > at_seq + 1:
        raise MalformedFrame(f"a page begins at {seq}, the cursor is at {at_seq}")
    chain = previous
    for entry in entries[: len(entries) - len(fresh)]:
        chain = entry.hash(chain)
    if session.hash is None and boot is None:
        session.floor_hash = chain

    page = Page(db, session.gen if boot is None else boot.gen)
    outbox = _own_ops(db, session, [e.n for e, _ in fresh if e.client == client])
    vector = session.vector if boot is None else boot.vector
    rows: list[tuple[Any, ...]] = []
    for entry, item in fresh:
        chain = entry.hash(chain)
        own = _settle_own(db, session, client, entry, outbox, applied)
        events = _add_entry(page, entry, applied, own)
        n, running = (None, None) if own is None else (own.n, own.running)
        salt = None if own is None or entry.erased else own.salt
        rows.append((session.key, entry.seq, chain, events, item, salt, n, running))
        if entry.n > vector.get(entry.client, 0):
            vector[entry.client] = entry.n
    for collection, names in page.fold():
        applied.fields.setdefault(collection, set()).update(names)
    drop_pending(db, session.key, [n for n, _ in applied.settled])
    db.executemany(
        "INSERT OR REPLACE INTO syncline_entries (session, seq, hash, events, entry, salt, n,"
        " running) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        rows,
    )
    last = fresh[-1][0]
    if boot is None:
        refresh(db, session, client, page)
        applied.remote = page.shows_anew()
        page.write()
        session.epoch, session.seq, session.hash = last.epoch, last.seq, chain
    else:
        for row in page.rows.values():
            row.base, row.has_base = None, False
        page.write()
        boot.cursor = (last.epoch, last.seq, chain)
    put_conflicts(db, session.gen if boot is None else boot.gen, applied.conflicts)
    if boot is None and applied.conflicts:
        mark_closing(db, session)
    applied.entries = len(fresh)
    return applied


def _own_ops(
    db: sqlite3.Connection, session: SessionState, numbers: Sequence[int]
) -> dict[int, Pending]:
    """The pending ops that may have these numbers, read at once."""
    if not numbers:
        return {}
    low, high = min(numbers), max(numbers)
    if high - low > 4 * len(numbers):
        found = (pending_op(db, session.key, n) for n in numbers)
        return {op.n: op for op in found if op is not None}
    return {op.n: op for op in pending_ops(db, session.key, low - 1, through=high)}


def _settle_own(
    db: sqlite3.Connection,
    session: SessionState,
    client: str,
    entry: Entry,
    outbox: dict[int, Pending],
    applied: Applied,
) -> Pending | None:
    """The own op that an entry settles; None for a foreign entry. The caller drops those settled.

    While a bootstrap is under way the op stays where it is: what shows still needs it.
    """
    if entry.client != client:
        return None
    op = outbox.get(entry.n) or take_back_refused(db, session, client, entry)
    if op is None and session.boot is not None:
        return None
    if op is None or not _is_entry_of(db, session, op, entry):
        raise ReplicaCloned(
            f"the log has an op {entry.n} of this client that this replica did not write"
        )
    if session.boot is None:
        settle_number(session, op.n, op.running)
        applied.settled.append((op.n, entry.outcome))
    return op


def _is_entry_of(db: sqlite3.Connection, session: SessionState, op: Pending, entry: Entry) -> bool:
    if op.salt is not None and op.body is not None:
        return entry.holds(op.salt, op.body)
    # A void number: what it was is erased here, and only its running hash can tell.
    before = running_at(db, session, op.n - 1)
    return before is not None and running_hash(before, op.n, entry.op_digest) == op.running


def take_back_refused(
    db: sqlite3.Connection, session: SessionState, client: str, entry: Entry
) -> Pending | None:
    """An own op that was refused for good, and that a restored server's log holds after all.

    It is refused no longer. None when the entry is no such op.
    """
    if entry.client != client:
        return None
    row = db.execute(
        "SELECT running FROM syncline_consumed WHERE session=? AND n=? AND salt=? AND seq IS NULL",
        (session.key, entry.n, entry.salt),
    ).fetchone()
    if row is None:
        return None
    db.execute("DELETE FROM syncline_refused WHERE salt=?", (entry.salt,))
    db.execute("DELETE FROM syncline_consumed WHERE session=? AND n=?", (session.key, entry.n))
    stamps = tuple(accepted.stamp.updated_at for accepted in entry.read())
    at = entry.accepted_at
    return Pending(entry.n, entry.salt, stamps, entry.body, row[0], None, True, at)


def _add_entry(page: Page, entry: Entry, applied: Applied, own: Pending | None) -> int:
    """Put an entry's changes on the page; how many of them are events."""
    if own is not None and own.body == entry.body:
        as_written = encode_effects(own.stamps, ())
        if entry.effects == as_written and page.add_quiet(entry):
            return 0
    events = 0
    for accepted in entry.read():
        change = accepted.change
        if isinstance(change, RecordChange):
            page.add(entry, accepted)
        events += type(change) is Event
        if accepted.effect is not None or type(change) is Resolve:
            applied.conflicts.extend(conflicts_of(accepted))
    if own is None:
        applied.events += events
    return events


def refresh(db: sqlite3.Connection, session: SessionState, client: str, page: Page) -> None:
    """Bring what shows up to date: predict where the base moved, drop bases nobody needs."""
    lowest = lowest_pending(db, session)
    # With a hole, numbers above the lowest may be settled: the vector alone cannot tell whether
    # anything is still pending on a record.
    hole = lowest <= session.settled_n
    again: set[Key] = set()
    for key, row in page.rows.items():
        if not row.has_base:
            continue
        shown = row.visible
        if shown is None or shown.vector.get(client, 0) >= lowest:
            if hole or key in page.stale or shown is None:
                again.add(key)
        else:
            row.visible, row.base, row.has_base = row.base, None, False
    if not again:
        return
    bases = {key: page.rows[key].canonical for key in again}
    ops = ops_touching(db, session, again)
    for key, record in predict(ops, bases, client, session.vector).items():
        row = page.rows[key]
        row.visible = record
        if record is row.base:
            row.base, row.has_base = None, False


def repredict(
    db: sqlite3.Connection, session: SessionState, client: str, keys: Iterable[Key]
) -> None:
    """Predict these records afresh (after a refusal, a new stamp, a new number)."""
    page = Page(db, session.gen)
    page.read(list(keys))
    if not page.rows:
        return
    bases = {key: row.canonical for key, row in page.rows.items()}
    ops = ops_touching(db, session, set(bases))
    for key, record in predict(ops, bases, client, session.vector).items():
        row = page.rows[key]
        base = row.canonical
        row.visible = record
        row.has_base = record is not base
        row.base = base if row.has_base else None
    page.write()


def apply_refusal(
    db: sqlite3.Connection,
    session: SessionState,
    client: str,
    op: Pending,
    *,
    code: int,
    reason: str,
    detail: dict[str, Any],
    now: int,
) -> set[Key]:
    """Move a finally refused op from the outbox to the refused table; the records it touched."""
    assert op.salt is not None and op.body is not None
    keys = _retire(db, session, op, seq=None)
    db.execute(
        "INSERT OR REPLACE INTO syncline_refused (salt, session, client, n, code, reason, detail,"
        " stamps, body, refused_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            op.salt,
            session.key,
            client,
            op.n,
            code,
            reason,
            pack(detail),
            pack(op.stamps),
            op.body,
            now,
        ),
    )
    repredict(db, session, client, keys)
    return keys


def apply_repeat(
    db: sqlite3.Connection,
    session: SessionState,
    client: str,
    op: Pending,
    entry: Entry,
    hash_: bytes,
) -> None:
    """Retire an op that the log holds already, at ``entry`` (at or below the cursor).

    Raises MalformedFrame (3001) when the history that is held has it elsewhere, or another there.
    """
    another = db.execute(
        "SELECT 1 FROM syncline_entries WHERE session=? AND seq=? AND hash<>?",
        (session.key, entry.seq, hash_),
    ).fetchone()
    elsewhere = db.execute(
        "SELECT 1 FROM syncline_entries WHERE salt=? AND (session<>? OR seq<>?)",
        (op.salt, session.key, entry.seq),
    ).fetchone()
    if another is not None or elsewhere is not None:
        raise MalformedFrame(f"op {op.n} is said to be entry {entry.seq}, which it is not here")
    own_dot = entry.dot == Dot(client, op.n)
    # Below a bootstrap the entry may not be held yet: the receipt needs it.
    events = events_in([accepted.change for accepted in entry.read()])
    db.execute(
        "INSERT OR IGNORE INTO syncline_entries (session, seq, hash, events, entry)"
        " VALUES (?, ?, ?, ?, ?)",
        (session.key, entry.seq, hash_, events, entry.encode()),
    )
    if own_dot:
        drop_pending(db, session.key, [op.n])
        settle_number(session, op.n, op.running)
        keys = {(c.collection, c.id) for c in op.changes if isinstance(c, RecordChange)}
    else:
        keys = _retire(db, session, op, seq=entry.seq)
    db.execute(
        "UPDATE syncline_entries SET salt=?, n=?, running=? WHERE session=? AND seq=?",
        (
            None if entry.erased else op.salt,
            op.n if own_dot else None,
            op.running if own_dot else None,
            session.key,
            entry.seq,
        ),
    )
    repredict(db, session, client, keys)


def retire_void(db: sqlite3.Connection, session: SessionState, op: Pending) -> None:
    """A void number is consumed again on the server."""
    _retire(db, session, op, seq=None)


def _retire(
    db: sqlite3.Connection, session: SessionState, op: Pending, *, seq: int | None
) -> set[Key]:
    """Take an op out of the outbox whose number was consumed without an entry of its own."""
    drop_pending(db, session.key, [op.n])
    settle_number(session, op.n, op.running)
    db.execute(
        "INSERT OR REPLACE INTO syncline_consumed (session, n, running, salt, seq)"
        " VALUES (?, ?, ?, ?, ?)",
        (session.key, op.n, op.running, op.salt, seq),
    )
    db.execute(
        "UPDATE syncline_conflicts SET closing_n=NULL WHERE gen=? AND closing_n=?",
        (session.gen, op.n),
    )
    return {(c.collection, c.id) for c in op.changes if isinstance(c, RecordChange)}


def mark_closing(db: sqlite3.Connection, session: SessionState) -> None:
    """Hide the conflicts that pending ops close: after a healing, those may be here first."""
    rows = db.execute(
        "SELECT n, body FROM syncline_outbox WHERE session=? AND instr(body, ?) > 0 ORDER BY n",
        (session.key, _RESOLVES),
    ).fetchall()
    for n, body in rows:
        for change in decode_body(body):
            if isinstance(change, Resolve):
                db.execute(
                    "UPDATE syncline_conflicts SET closing_n=? WHERE gen=? AND id=? AND closed=0",
                    (n, session.gen, change.conflict_id),
                )


def put_conflicts(db: sqlite3.Connection, gen: int, rows: Iterable[Conflict | Closed]) -> None:
    """Closed wins over open, whichever came first."""
    db.executemany(
        "INSERT INTO syncline_conflicts (gen, id, closed, conflict) VALUES (?, ?, ?, ?)"
        " ON CONFLICT (gen, id) DO UPDATE SET closed=1, conflict=excluded.conflict,"
        " closing_n=NULL WHERE excluded.closed AND NOT closed",
        [(gen, row.id, isinstance(row, Closed), row.encode()) for row in rows],
    )
