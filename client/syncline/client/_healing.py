"""When the two ends do not agree about the past: restored servers, copied replicas, wrong clocks.

Each function works in its caller's transaction and reports what it did as a durable notice.
Nothing is ever dropped: what the log no longer has goes back into the outbox, and what this
replica may not say under its old name it says under a new one.
"""

from __future__ import annotations

import sqlite3
from bisect import bisect_left, bisect_right

from syncline.sync import (
    NO_HASH,
    Change,
    Delete,
    Dot,
    Entry,
    Patch,
    Put,
    Record,
    RecordChange,
    Refused,
    Stamp,
    TooLarge,
    encode_body,
    op_digest,
    pack,
    running_hash,
    seen_stamp,
    settle,
    unpack,
)

from . import _bootstrap
from ._applying import repredict
from ._predict import Key, changes_on
from ._rows import (
    Pending,
    SessionState,
    last_own,
    meta,
    notice,
    pending_again,
    pending_ops,
    put_pending,
    record_state,
    session_rows,
    set_meta,
)

POINTS_FIRST = 24


# A server that lost part of its log.


def points(
    db: sqlite3.Connection, session: SessionState, low: int, high: int, count: int
) -> list[tuple[int, bytes]]:
    """Places of the held history strictly between ``low`` and ``high`` to ask the server about.

    At most ``count`` of them, evenly spread; chain hashes make the search a bisection, since
    agreeing at one place is agreeing about everything before it.
    """
    low = max(low, session.floor - 1)
    span = high - low - 1
    if span <= 0:
        return []
    step = max(1, -(-span // count))
    places = list(range(high - 1, low, -step))
    found = []
    for seq in places:
        hash_ = hash_at(db, session, seq)
        if hash_ is not None:
            found.append((seq, hash_))
    return found


def hash_at(db: sqlite3.Connection, session: SessionState, seq: int) -> bytes | None:
    """The chain's hash at a place of the held history."""
    if seq == session.seq:
        return session.hash
    if seq == session.floor:
        return session.floor_hash
    row = db.execute(
        "SELECT hash FROM syncline_entries WHERE session=? AND seq=?", (session.key, seq)
    ).fetchone()
    return None if row is None else bytes(row[0])


def go_back(
    db: sqlite3.Connection,
    session: SessionState,
    client: str,
    *,
    common: int,
    last: int,
    now: int,
) -> int:
    """Put own ops that the server no longer has back into the outbox; forget the false history.

    ``common`` is the last seq that both logs share, ``last`` the last own number that the server
    knows. A bootstrap follows, which shows the server's state with these ops on top. Returns how
    many ops went back.
    """
    count = _requeue_former(db, session, client, common, now)
    count += requeue(db, session, last, now)
    _await_again(db, session, common, last, now)
    db.execute("DELETE FROM syncline_entries WHERE session=? AND seq>?", (session.key, common))
    db.execute(
        "UPDATE syncline_entries SET n=NULL, running=NULL WHERE session=? AND n>?",
        (session.key, last),
    )
    _bootstrap.begin_healing(db, session, common)
    set_meta(db, "renewing", 1)
    notice(db, now, "healed", session.id, common=common, was_at=session.seq, requeued=count)
    return count


def _await_again(
    db: sqlite3.Connection, session: SessionState, common: int, last: int, now: int
) -> None:
    """Own ops that the server has at another place now wait until their new entries come."""
    rows = db.execute(
        "SELECT entry, n, running FROM syncline_entries WHERE session=? AND seq>? AND n<=?",
        (session.key, common, last),
    ).fetchall()
    for data, n, running in rows:
        put_pending(db, session.key, pending_again(Entry.decode(data), n, running, None, now))


def requeue(db: sqlite3.Connection, session: SessionState, last: int, now: int) -> int:
    """Put own numbers after ``last`` that were settled here back into the outbox.

    A number that a refusal consumed goes as a void one. Returns how many ops went back. Raises
    LookupError when a number is needed that this replica no longer holds.
    """
    there = {op.n for op in pending_ops(db, session.key, last)}
    count = 0
    for n in range(last + 1, session.settled_n + 1):
        if n in there:
            continue
        op = _own_op(db, session, n, now)
        if op is None:
            raise LookupError(n)
        put_pending(db, session.key, op)
        count += op.body is not None
    return count


def _own_op(db: sqlite3.Connection, session: SessionState, n: int, now: int) -> Pending | None:
    row = db.execute(
        "SELECT entry, running FROM syncline_entries WHERE session=? AND n=?", (session.key, n)
    ).fetchone()
    if row is not None:
        return pending_again(Entry.decode(row[0]), n, row[1], None, now)
    row = db.execute(
        "SELECT running FROM syncline_consumed WHERE session=? AND n=?", (session.key, n)
    ).fetchone()
    return None if row is None else Pending(n, None, (), None, row[0], None, True, now)


def _requeue_former(
    db: sqlite3.Connection, session: SessionState, client: str, common: int, now: int
) -> int:
    """Own ops from under a former client id get new numbers, and name the dot that they had."""
    lost = db.execute(
        "SELECT entry FROM syncline_entries WHERE session=? AND seq>? AND salt IS NOT NULL"
        " AND n IS NULL ORDER BY seq",
        (session.key, common),
    ).fetchall()
    n, running = last_own(db, session)
    for (data,) in lost:
        entry = Entry.decode(data)
        n += 1
        running = running_hash(running, n, op_digest(entry.salt, entry.body))
        put_pending(db, session.key, pending_again(entry, n, running, entry.dot, now))
    return len(lost)


# A copied replica.


def become_new_client(db: sqlite3.Connection, new: str, now: int, reason: str) -> None:
    """Take a new client id and renumber what is pending, in its dots and in its contexts.

    Numbers up to the last common one stay under the old id. Every renumbered op names its former
    dot, so that an op which was pending when the file was copied enters the log once.
    """
    old = str(meta(db, "client"))
    former = unpack(meta(db, "former"))
    for session in session_rows(db):
        _renumber(db, session, old, new)
    set_meta(db, "client", new)
    set_meta(db, "former", pack([*former, old]))
    set_meta(db, "incarnation", 0)
    set_meta(db, "renewing", 0)
    notice(db, now, "new client id", None, was=old, now=new, reason=reason)


def _renumber(db: sqlite3.Connection, session: SessionState, old: str, new: str) -> None:
    # What was in a log once came before all that never was, and the later writes have seen it.
    pending = sorted(
        (op for op in pending_ops(db, session.key) if op.body is not None),
        key=lambda op: (op.lost_seq is None, op.lost_seq or 0, op.n),
    )
    moves = _Moves(new)
    for n, op in enumerate(pending, 1):
        is_former = op.lost_seq is not None and op.former is not None
        dot = op.former if is_former and op.former is not None else Dot(old, op.n)
        moves.add(dot, n)
    db.execute("DELETE FROM syncline_outbox WHERE session=?", (session.key,))
    db.execute("DELETE FROM syncline_consumed WHERE session=?", (session.key,))
    db.execute(
        "UPDATE syncline_entries SET n=NULL, running=NULL WHERE session=? AND n IS NOT NULL",
        (session.key,),
    )
    session.settled_n, session.settled_running = 0, NO_HASH
    running = NO_HASH
    touched: set[Key] = set()
    for n, op in enumerate(pending, 1):
        body = _moved_body(op, n, moves)
        assert op.salt is not None
        running = running_hash(running, n, op_digest(op.salt, body))
        former = op.former or Dot(old, op.n)  # Whatever it was called since, this names it.
        moved = op._replace(n=n, body=body, running=running, former=former, lost_seq=None)
        put_pending(db, session.key, moved)
        touched.update((change.collection, change.id) for change, _ in changes_on(moved))
        db.execute(
            "UPDATE syncline_conflicts SET closing_n=? WHERE gen=? AND closing_n=?",
            (-n, session.gen, op.n),
        )
    db.execute(
        "UPDATE syncline_conflicts SET closing_n=-closing_n WHERE gen=? AND closing_n<0",
        (session.gen,),
    )
    session.save(db)
    repredict(db, session, new, touched)


def _moved_body(op: Pending, number: int, moves: _Moves) -> bytes:
    changes = op.changes
    try:
        return encode_body([moves.renamed(change, number) for change in changes])
    except TooLarge:
        # The new id is longer, and the op was as large as an op can be: its contexts say less.
        return encode_body([moves.renamed(change, 0) for change in changes])


class _Moves:
    """Which dots became which numbers of the new client, and contexts that say so."""

    def __init__(self, new: str) -> None:
        self._new = new
        self._moved: dict[str, tuple[list[int], list[int]]] = {}

    def add(self, dot: Dot, number: int) -> None:
        """Called in the order of the new numbers, which keeps the order of each client's own."""
        old, new = self._moved.setdefault(dot.client, ([], []))
        old.append(dot.n)
        new.append(number)

    def renamed(self, change: Change, number: int) -> Change:
        """The change of the op that became ``number``, naming the moved ops by their new dots.

        Only what now stands before it: saying less than was seen costs a conflict that is none,
        saying more would cost a value.
        """
        if not isinstance(change, RecordChange):
            return change
        context = dict(change.context)
        for client, (old, new) in self._moved.items():
            first, seen = old[0], context.get(client, 0)
            if seen < first:
                continue
            before = min(bisect_right(old, seen), bisect_left(new, number))
            if before:
                context[self._new] = max(context.get(self._new, 0), new[before - 1])
            # What was not moved keeps its name.
            context[client] = first - 1
            if first == 1:
                del context[client]
        match change:
            case Delete():
                return Delete(change.collection, change.id, context)
            case Put():
                return Put(change.collection, change.id, context, change.fields)
            case Patch():
                return Patch(change.collection, change.id, context, change.fields)


# A clock that was wrong.


def stamp_again(
    db: sqlite3.Connection,
    session: SessionState,
    client: str,
    *,
    first: int,
    now: int,
    ahead_us_max: int,
    above: int = 0,
) -> int:
    """Set the stamps of pending ops again, in order, where they must be; returns how many.

    From op ``first`` on, a stamp beyond ``now + ahead_us_max``, or not above what its context had
    seen, becomes ``max(now, seen + 1)``. Contexts stay, so what an author had seen stays true; the
    ops that build on a changed one follow. ``above`` is a stamp that the server said the first op
    had seen (3003).
    """
    shown: dict[Key, Record | None] = {}
    count = 0
    touched: set[Key] = set()
    for op in list(pending_ops(db, session.key)):
        stamps = []
        for change, at in _all_changes(op):
            if not isinstance(change, RecordChange):
                stamps.append(min(at, now) if op.n >= first and at > now + ahead_us_max else at)
                continue
            key = (change.collection, change.id)
            if key not in shown:
                shown[key] = record_state(db, session.gen, *key).canonical
            record = shown[key]
            seen = None if record is None else seen_stamp(record, change.context)
            least = 0 if seen is None else seen.updated_at + 1
            if op.n == first and above:
                least = max(least, above + 1)
            if op.n >= first and (at > max(now + ahead_us_max, least) or at < least):
                at = max(now, least)
                touched.add(key)
            stamps.append(at)
            try:
                held = {**session.vector, client: op.n - 1}
                settled = settle(record, change, Stamp(at, client, op.n), held)
                shown[key] = settled.record
            except Refused:
                continue  # It will be refused; those behind it build on what is there without it.
        if tuple(stamps) != op.stamps:
            put_pending(db, session.key, op._replace(stamps=tuple(stamps)))
            count += 1
    repredict(db, session, client, touched)
    if count:
        notice(db, now, "stamped again", session.id, ops=count, first=first)
    return count


def _all_changes(op: Pending) -> list[tuple[Change, int]]:
    return list(zip(op.changes, op.stamps, strict=True))
