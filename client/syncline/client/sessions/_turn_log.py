"""One session's log as whoever runs its turns needs it: folded, and written under the lease.

``TurnLog`` keeps the fold of the canonical log and, on top, of what waits in the outbox. It reads
each entry once: own ops that move from the outbox into the log, in their order, change nothing that
was folded already. Whatever else happens (entries of others before own pending ops, a healing, a
refusal) is folded again from the last place in the canonical log, or from its beginning.

``append`` looks at the lease and writes in one transaction of the replica's file, which no other
process and no arriving entry can come between: nobody writes under a lease that, as far as this
replica knows, is not theirs any more.
"""

from __future__ import annotations

import sqlite3
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from syncline.sync import Entry, Event
from syncline.sync.sessions import Lease, Logged, LogItem, Prompt, TurnState

from .._core import Core
from .._receipt import Receipt
from .._rows import SessionState, pending_ops, session_row


class Fenced(Exception):
    """The lease is not ours any more, or the turn is over: what was about to be written, is not."""


@dataclass(slots=True)
class Folded:
    """The folds of a log up to some place: what is open, and what the model is shown."""

    state: TurnState = field(default_factory=TurnState)
    prompt: Prompt = field(default_factory=Prompt)

    def add(self, logged: LogItem) -> None:
        """Fold one event; what is stale counts for nothing but itself."""
        if self.state.take(logged.event, logged.at):
            self.prompt.add(logged)

    def copy(self) -> Folded:
        """An equal one that goes its own way."""
        return Folded(self.state.copy(), self.prompt.copy())


@dataclass(frozen=True, slots=True)
class _Point:
    """A place in the canonical log, and what else decides whether the folds still hold."""

    client: str
    gen: int
    seq: int
    hash: bytes | None
    refused: int


class TurnLog:
    """The folded log of one session. Not for several threads at once."""

    def __init__(self, core: Core, session_id: str) -> None:
        self.core = core
        self.session_id = session_id
        self._forget()

    def _forget(self) -> None:
        self._base = Folded()
        self.seen = Folded()
        self._seq, self._n = 0, 0
        self._ahead: deque[bytes] = deque()
        self._point: _Point | None = None

    # Reading.

    def refresh(self) -> TurnState:
        """Fold what is new; the state as this replica shows it."""
        with self.core.database.reading() as db:
            self._refresh(db)
        return self.seen.state

    def _refresh(self, db: sqlite3.Connection) -> None:
        session = session_row(db, self.session_id)
        point = self._standing(db, session)
        known = self._point
        if known == point:
            self._take_pending(db, session, point.client)
            return
        if known is not None and not self._continues(db, session, known, point):
            self._forget()
        in_step = True
        for entry in _entries(db, session, self._seq):
            own = bool(self._ahead) and self._ahead[0] == entry.salt
            if own:
                self._ahead.popleft()
            for logged in _logged(entry):
                self._base.add(logged)
                in_step = in_step and own
        self._seq, self._point = session.seq, point
        if not in_step:
            self._begin_again()
        self._take_pending(db, session, point.client)

    def _begin_again(self) -> None:
        self.seen, self._n = self._base.copy(), 0
        self._ahead.clear()

    def _standing(self, db: sqlite3.Connection, session: SessionState) -> _Point:
        (client,) = db.execute("SELECT value FROM syncline_meta WHERE key='client'").fetchone()
        (refused,) = db.execute(
            "SELECT count(*) FROM syncline_refused WHERE session=?", (session.key,)
        ).fetchone()
        return _Point(client, session.gen, session.seq, session.hash, refused)

    def _continues(
        self, db: sqlite3.Connection, session: SessionState, known: _Point, point: _Point
    ) -> bool:
        """Whether the log that was folded is the beginning of the one that is there now."""
        if (known.client, known.gen, known.refused) != (point.client, point.gen, point.refused):
            return False
        if point.seq < known.seq or known.seq == 0:
            return known.seq == 0
        row = db.execute(
            "SELECT hash FROM syncline_entries WHERE session=? AND seq=?",
            (session.key, known.seq),
        ).fetchone()
        return row is not None and row[0] == known.hash

    def _take_pending(self, db: sqlite3.Connection, session: SessionState, client: str) -> None:
        if self._ahead and not _waits(db, session, self._n, self._ahead[-1]):
            # It was folded inside a transaction that then stored nothing.
            self._begin_again()
        for op in pending_ops(db, session.key, self._n):
            self._n = op.n
            if op.salt is None:
                continue
            self._ahead.append(op.salt)
            for index, (change, at) in enumerate(zip(op.changes, op.stamps, strict=True)):
                if isinstance(change, Event):
                    self.seen.add(
                        LogItem.read(
                            None, index, change.type, change.payload, at, client, op.salt.hex()
                        )
                    )

    # Writing.

    def append(
        self, make: Callable[[TurnState], Sequence[Logged]], lease: Lease | None = None
    ) -> Receipt | None:
        """Append, as one op, what ``make`` makes of the newest state; None when that is nothing.

        With ``lease`` only while a turn runs under it: else raises Fenced, and nothing is stored.
        """
        with self.core.op(self.session_id) as op:
            state = self.refresh()
            if lease is not None and (state.lease != lease or state.running is None):
                raise Fenced
            events = make(state)
            for event in events:
                op.append(event.type, event.payload(), None)
        if not events:
            return None
        return Receipt(self.core, op.salt.hex(), (self.session_id, op.head.n))


def _waits(db: sqlite3.Connection, session: SessionState, n: int, salt: bytes) -> bool:
    row = db.execute(
        "SELECT salt FROM syncline_outbox WHERE session=? AND n=?", (session.key, n)
    ).fetchone()
    return row is not None and row[0] == salt


def _entries(db: sqlite3.Connection, session: SessionState, after: int) -> Iterator[Entry]:
    rows = db.execute(
        "SELECT entry FROM syncline_entries WHERE session=? AND seq>? AND seq<=? ORDER BY seq",
        (session.key, after, session.seq),
    )
    return (Entry.decode(data) for (data,) in rows)


def _logged(entry: Entry) -> Iterator[LogItem]:
    for index, accepted in enumerate(entry.read()):
        if isinstance(accepted.change, Event):
            event, stamp = accepted.change, accepted.stamp
            yield LogItem.read(
                entry.seq,
                index,
                event.type,
                event.payload,
                stamp.updated_at,
                stamp.client,
                entry.salt.hex(),
            )
