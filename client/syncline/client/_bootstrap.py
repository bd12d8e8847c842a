"""A bootstrap on the replica's side: pages into a generation of their own, shown at once.

Pages are read on the server at different moments, each row with the seq that touched it last; the
entries since the first page are folded on top, skipping rows that have them already. When the head
of the last page is reached, one update of the session's row shows it all, the own ops that the
snapshot holds leave the outbox, and the rest is settled on top. Until then nothing of it shows, and
a break at any point costs no page twice: the progress is a column of the session's row.
"""

from __future__ import annotations

import sqlite3

from syncline.sync import (
    HEADER_COLLECTION,
    RUNTIME_COLLECTIONS,
    Conflict,
    Entry,
    MalformedFrame,
    Record,
    SnapshotPage,
    Value,
    decode_conflict,
    events_in,
    merge,
    same,
)

from ._applying import Applied, mark_closing, put_conflicts, repredict, take_back_refused
from ._predict import Key, changes_on
from ._rows import (
    PUT_RECORD,
    Boot,
    SessionState,
    count_change,
    drop_pending,
    next_gen,
    pending_again,
    pending_op,
    pending_ops,
    put_pending,
    settle_number,
)


def begin(db: sqlite3.Connection, session: SessionState) -> None:
    """Start a bootstrap, or go on with the one under way."""
    if session.boot is None:
        session.boot = Boot(next_gen(db))


def begin_healing(db: sqlite3.Connection, session: SessionState, common: int) -> None:
    """Start the bootstrap of a healing, which goes on from ``common``."""
    if session.boot is None:
        session.boot = Boot(next_gen(db), healing=True)
    assert session.boot.healing and session.boot.cursor is None
    session.boot.common = common


def drop(db: sqlite3.Connection, session: SessionState) -> None:
    """Give up what a bootstrap brought whose server changed under it; the next starts afresh."""
    boot = session.boot
    if boot is None:
        return
    _forget_gen(db, boot.gen)
    # Its entries too, which may be of a history that is no more.
    kept = boot.common if boot.healing else session.seq
    _await_own(db, session, kept)
    db.execute("DELETE FROM syncline_entries WHERE session=? AND seq>?", (session.key, kept))
    session.boot = Boot(next_gen(db), healing=boot.healing, common=boot.common)


def _await_own(db: sqlite3.Connection, session: SessionState, after: int) -> None:
    """Own ops that only the entries above a seq tell of (they were refused once) wait again."""
    rows = db.execute(
        "SELECT entry, n, running FROM syncline_entries e WHERE session=? AND seq>? AND n NOT NULL"
        " AND NOT EXISTS (SELECT 1 FROM syncline_outbox o WHERE o.session=e.session AND o.n=e.n)",
        (session.key, after),
    ).fetchall()
    for data, n, running in rows:
        entry = Entry.decode(data)
        put_pending(db, session.key, pending_again(entry, n, running, None, entry.accepted_at))


def apply_page(
    db: sqlite3.Connection, session: SessionState, client: str, page: SnapshotPage
) -> Applied:
    """Take in one page. Raises MalformedFrame (3001) for rows that are none."""
    boot = session.boot
    assert boot is not None and boot.after is not None, "a page was asked for"
    applied = Applied()
    rows = []
    for collection, id_, seq, state in page.rows:
        record = Record.decode(state)
        if seq > page.seq:
            # Its entries would be skipped, as if the row had them already.
            raise MalformedFrame(f"a bootstrap's row has seq {seq}, its head is {page.seq}")
        rows.append((boot.gen, collection, id_, record.alive, seq, state, None))
        if collection != HEADER_COLLECTION:
            applied.fields.setdefault(collection, set()).update(record.fields)
    db.executemany(PUT_RECORD, rows)
    put_conflicts(db, boot.gen, (decode_conflict(item) for item in page.conflicts))
    for hash_, item in page.entries:
        _keep_entry(db, session, client, hash_, item)
    head = (page.epoch, page.seq, page.hash)
    if boot.begin is None:
        boot.begin = boot.cursor = head
    assert boot.cursor is not None
    if page.seq < boot.cursor[1]:
        raise MalformedFrame("a bootstrap's head went back")
    boot.target = head
    boot.after = page.after
    if page.after is None:
        if page.vector is None:
            raise MalformedFrame("the last page of a bootstrap lacks the session's vector")
        boot.vector = dict(page.vector)
    return applied


def _keep_entry(
    db: sqlite3.Connection, session: SessionState, client: str, hash_: bytes, item: bytes
) -> None:
    """Entries with events, and those of own pending ops, are kept whole, holes between them."""
    entry = Entry.decode(item)
    held = db.execute(
        "SELECT 1 FROM syncline_entries WHERE session=? AND seq=? AND hash=?",
        (session.key, entry.seq, hash_),
    ).fetchone()
    if held is not None:
        return  # An own one knows its number too, which this page does not tell.
    op = pending_op(db, session.key, entry.n) if entry.client == client else None
    if op is None or op.salt is None or not entry.holds(op.salt, op.body or b""):
        op = take_back_refused(db, session, client, entry)
    events = events_in([accepted.change for accepted in entry.read()])
    db.execute(
        "INSERT OR REPLACE INTO syncline_entries (session, seq, hash, events, entry, salt, n,"
        " running) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (
            session.key,
            entry.seq,
            hash_,
            events,
            item,
            None if op is None or entry.erased else op.salt,
            None if op is None else op.n,
            None if op is None else op.running,
        ),
    )


def is_complete(session: SessionState) -> bool:
    """Whether all pages are here and the entries since have reached the last page's head."""
    boot = session.boot
    return (
        boot is not None
        and boot.after is None
        and boot.cursor is not None
        and boot.target is not None
        and boot.cursor[1] >= boot.target[1]
    )


def show(db: sqlite3.Connection, session: SessionState, client: str) -> None:
    """Swap the new generation in: cursor, vector, outbox and what shows, all together."""
    boot = session.boot
    assert is_complete(session) and boot is not None
    assert boot.begin is not None and boot.cursor is not None
    old = session.gen
    shown = _runtime_rows(db, old)
    session.gen, session.boot = boot.gen, None
    session.epoch, session.seq, session.hash = boot.cursor
    session.floor, session.floor_hash = boot.begin[1], boot.begin[2]
    session.vector = merge(boot.vector, session.vector) if not boot.healing else boot.vector
    _settle_held(db, session)
    _forget_gen(db, old)
    touched: set[Key] = set()
    for op in pending_ops(db, session.key):
        touched.update((change.collection, change.id) for change, _ in changes_on(op))
    repredict(db, session, client, touched)
    if not same(_runtime_rows(db, session.gen), shown):
        count_change(db, session.key)
    mark_closing(db, session)


def _runtime_rows(db: sqlite3.Connection, gen: int) -> Value:
    """What shows of the records that the session runtime keeps."""
    marks = ", ".join("?" * len(RUNTIME_COLLECTIONS))
    rows = db.execute(
        "SELECT collection, id, state FROM syncline_records"
        f" WHERE gen=? AND alive=1 AND collection IN ({marks}) ORDER BY collection, id",
        (gen, *sorted(RUNTIME_COLLECTIONS)),
    )
    return [[collection, id_, Record.decode(state).fields] for collection, id_, state in rows]


def _settle_held(db: sqlite3.Connection, session: SessionState) -> None:
    """Own ops whose entries came along leave the outbox as settled."""
    held = db.execute(
        "SELECT o.n, o.running FROM syncline_outbox o JOIN syncline_entries e ON e.salt = o.salt"
        " WHERE o.session=? AND e.session=? ORDER BY o.n",
        (session.key, session.key),
    ).fetchall()
    for n, running in held:
        drop_pending(db, session.key, [n])
        settle_number(session, n, running)


def _forget_gen(db: sqlite3.Connection, gen: int) -> None:
    db.execute("DELETE FROM syncline_records WHERE gen=?", (gen,))
    db.execute("DELETE FROM syncline_conflicts WHERE gen=?", (gen,))


def open_conflicts(db: sqlite3.Connection, gen: int) -> list[Conflict]:
    """The conflicts of a generation that nobody has closed, nor is about to here."""
    rows = db.execute(
        "SELECT conflict FROM syncline_conflicts WHERE gen=? AND closed=0 AND closing_n IS NULL"
        " ORDER BY id",
        (gen,),
    )
    return [c for (data,) in rows if isinstance(c := decode_conflict(data), Conflict)]
