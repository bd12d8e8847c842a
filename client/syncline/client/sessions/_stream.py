"""Following a session's log: what is there, then what comes, each event once.

A stream remembers the place in the canonical log up to which it has read, and by their salts the
ops that it has told of ahead of it, from the outbox. So it does not matter when an event moves from
the one to the other, and the change from replay to live is none: both are the same read.

After a healing the log is another one. The stream goes back to the last place that both have in
common and passes over what it has told, by the salts of the newest ``TOLD_MAX`` ops.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
import time
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Iterator
from types import TracebackType

from syncline.sync import Entry
from syncline.sync.sessions import LogItem

from .._core import Core
from .._healing import hash_at
from .._rows import SessionState, pending_ops, session_row
from ._log_items import logged, waiting

POLL_S = 0.5
"""How often a stream looks for what other processes have appended, in seconds."""
PAGE_OPS = 256
TOLD_MAX = 50_000


class EventStream(Iterator[LogItem], AsyncIterator[LogItem]):
    """An iterator over a session's events that waits for the next one. See ``EventLog.stream``.

    Iterate with ``for`` or with ``async for``, in one place at a time. ``close`` ends it from any
    thread, at once.
    """

    def __init__(self, core: Core, session_id: str, after: int, *, poll_s: float) -> None:
        self._core = core
        self._session_id = session_id
        self._poll_s = poll_s
        self._buffer: deque[LogItem] = deque()
        self._start = self._after = after
        self._hash: bytes | None = None
        self._client, self._n = "", 0
        self._ahead: set[bytes] = set()
        self._told: OrderedDict[bytes, tuple[int, bytes]] = OrderedDict()
        self._reading = threading.Lock()
        self._changed = threading.Condition()
        self._news = True
        self._wakers: set[Callable[[], None]] = set()
        self.closed = False
        self._stop_watching = core.watchers.add(session_id, None, lambda _: self._wake())

    @property
    def seq(self) -> int:
        """Where to go on another time: all events up to it were handed out.

        ``stream(after=seq)`` repeats what was handed out from the outbox, and no more than the
        beginning of one op.
        """
        left = (item.seq for item in list(self._buffer) if item.seq is not None)
        return min((seq - 1 for seq in left), default=self._after)

    # Blocking.

    def __iter__(self) -> EventStream:
        return self

    def __next__(self) -> LogItem:
        item = self.get()
        if item is None:
            raise StopIteration
        return item

    def get(self, timeout: float | None = None) -> LogItem | None:
        """The next event; None when there is none within ``timeout`` seconds, or once closed."""
        until = None if timeout is None else time.monotonic() + timeout
        while not self.closed:
            self._fill()
            item = self._taken()
            if item is not None:
                return item
            left = self._poll_s if until is None else min(self._poll_s, until - time.monotonic())
            if left <= 0:
                return None
            with self._changed:
                self._changed.wait_for(lambda: self._news or self.closed, left)
        return None

    def close(self) -> None:
        """End the stream; a reader that waits gets the end. Safe to call twice."""
        self._stop_watching()
        self.closed = True
        self._wake()

    def __enter__(self) -> EventStream:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # For asyncio.

    def __aiter__(self) -> EventStream:
        return self

    async def __anext__(self) -> LogItem:
        loop, woken = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            with contextlib.suppress(RuntimeError):  # The loop has ended.
                loop.call_soon_threadsafe(woken.set)

        self._wakers.add(wake)
        try:
            while not self.closed:
                woken.clear()
                if not self._buffer:
                    await asyncio.to_thread(self._fill)
                item = self._taken()
                if item is not None:
                    return item
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(woken.wait(), self._poll_s)
        finally:
            self._wakers.discard(wake)
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """``close``, for ``contextlib.aclosing``."""
        self.close()

    async def __aenter__(self) -> EventStream:
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.close()

    # Reading.

    def _wake(self) -> None:
        with self._changed:
            self._news = True
            self._changed.notify_all()
        for waker in list(self._wakers):
            waker()

    def _taken(self) -> LogItem | None:
        return self._buffer.popleft() if self._buffer else None

    def _fill(self) -> None:
        """Read on, when all that was read was handed out."""
        with self._reading:
            if self._buffer:
                return
            self._news = False
            with self._core.database.reading() as db:
                session = session_row(db, self._session_id)
                self._find_place(db, session)
                if self._take_entries(db, session):
                    self._take_waiting(db, session)

    def _find_place(self, db: sqlite3.Connection, session: SessionState) -> None:
        """Stand at a place of the log that is there now, also when it was healed."""
        client = self._core.client()
        if client != self._client:
            self._client, self._n = client, 0
        if self._hash is None or _holds(db, session, self._after, self._hash):
            return
        self._n = 0
        for seq, hash_ in reversed(self._told.values()):
            if _holds(db, session, seq, hash_):
                self._after, self._hash = seq, hash_
                return
        self._after, self._hash = self._start, None

    def _take_entries(self, db: sqlite3.Connection, session: SessionState) -> bool:
        """Take a page of the log; whether that is all there is."""
        rows = db.execute(
            "SELECT seq, hash, entry FROM syncline_entries WHERE session=? AND seq>? AND seq<=?"
            " AND events>0 ORDER BY seq LIMIT ?",
            (session.key, self._after, session.seq, PAGE_OPS),
        ).fetchall()
        for seq, hash_, data in rows:
            entry = Entry.decode(data)
            known = entry.salt in self._ahead or entry.salt in self._told
            self._ahead.discard(entry.salt)
            self._told[entry.salt] = (seq, hash_)
            self._told.move_to_end(entry.salt)
            if not known:
                self._buffer.extend(logged(entry))
        while len(self._told) > TOLD_MAX:
            self._told.popitem(last=False)
        if len(rows) == PAGE_OPS:
            self._after, self._hash = rows[-1][:2]
            return False
        if session.seq >= self._after:
            self._after, self._hash = session.seq, session.hash
        return True

    def _take_waiting(self, db: sqlite3.Connection, session: SessionState) -> None:
        for op in pending_ops(db, session.key, self._n, PAGE_OPS):
            self._n = op.n
            if op.salt is not None and op.salt not in self._ahead and op.salt not in self._told:
                self._ahead.add(op.salt)
                self._buffer.extend(waiting(op, self._client))


def _holds(db: sqlite3.Connection, session: SessionState, seq: int, hash_: bytes | None) -> bool:
    """Whether the log has this place, as far as can be told."""
    there = hash_at(db, session, seq) if seq <= session.seq else None
    return seq <= session.seq and (there is None or hash_ is None or there == hash_)
