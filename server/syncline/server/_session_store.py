"""The server's store as a store of sessions: a save is an ordinary op, which every replica gets.

What a session is made of lies in its records (see ``syncline.sync.sessions``). A save reads them,
and in one transaction makes sure that nobody has written since, settles the op and appends it, as
a client of its own.

``version`` is the seq of the last entry that changed the session. So it is 1 for a session that was
created here, one more with each save that follows on another, and never goes back; a save fails
when, and only when, an entry has changed the session since it was loaded, whoever wrote it. It is
a number of this log, and has nothing to do with version vectors.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

from syncline.sync import (
    CHECKPOINT_COLLECTION,
    HEADER_COLLECTION,
    HEADER_ID,
    RUNTIME_COLLECTIONS,
    Busy,
    Delete,
    Op,
    Patch,
    Put,
    Record,
    RecordChange,
    check_id,
    encode_body,
    is_id,
    refusal,
)
from syncline.sync.sessions import (
    AgentSession,
    RecordWrite,
    SessionHeader,
    SessionRecords,
    SessionStatus,
    check_creatable,
    check_savable,
    deletion,
    read_header,
    read_session,
    session_changes,
)

from ._audit import Author
from ._coordinator import AHEAD_US_MAX, Committed
from ._settling import SessionWork
from ._store import Head, RecordKey, Store
from ._worker import T, now_us

TRIES_MAX = 100
"""Each try fails because somebody else's write came through, so so many in a row are trouble."""
PAGE_BYTES = 4 << 20
PAGE_ITEMS = 256
SESSIONS_PER_PAGE = 1000

_HEADER = RecordKey(HEADER_COLLECTION, HEADER_ID)
_LAST_COLLECTION = max(RUNTIME_COLLECTIONS)


@dataclass(slots=True)
class _View:
    """A session's records at one seq of its log (0: there is no log yet)."""

    seq: int = 0
    version: int = 0
    kept: dict[RecordKey, Record] = field(default_factory=dict)
    records: SessionRecords = field(default_factory=SessionRecords)

    @property
    def there(self) -> bool:
        return self.records.there

    @property
    def updated_at(self) -> int:
        return self.kept[_HEADER].life.updated_at

    def session(self, id_: str) -> AgentSession:
        return read_session(id_, self.records, version=self.version, updated_at=self.updated_at)


class ServerSessionStore:
    """Sessions in a server's store. Any thread may use it, while nobody else uses the store.

    Beside a running server, take ``SyncServer.session_store()``. ``clock`` gives microseconds since
    the Unix epoch, ``new_id`` names messages that have no id yet. ``committed`` is told of what was
    appended, once it is durable. A deleted session keeps its id: it is deleted on every replica,
    and cannot be created again.
    """

    def __init__(
        self,
        store: Store,
        *,
        clock: Callable[[], int] = now_us,
        new_id: Callable[[], str] = lambda: os.urandom(16).hex(),
        committed: Callable[[Committed], None] | None = None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._new_id = new_id
        self._committed = committed
        self._author = Author(f"runtime-{store.identity().store_id[:32]}", "")
        self._lock = threading.RLock()

    def create(self, session: AgentSession) -> AgentSession:
        """See ``SessionStore``."""

        def write(view: _View, now: int) -> tuple[list[RecordWrite], AgentSession]:
            check_creatable(session, taken=view.records.header is not None)
            created_at = session.header.created_at or now
            dated = replace(session, header=replace(session.header, created_at=created_at))
            return session_changes(view.records, dated, now=now, new_id=self._new_id)

        return self._write(session, write)

    def save(self, session: AgentSession) -> AgentSession:
        """See ``SessionStore``."""

        def write(view: _View, now: int) -> tuple[list[RecordWrite], AgentSession]:
            check_savable(session, view.version if view.there else None)
            return session_changes(view.records, session, now=now, new_id=self._new_id)

        return self._write(session, write)

    def load(self, session_id: str) -> AgentSession | None:
        check_id(session_id, "session id")
        view = self._read(session_id)
        return view.session(session_id) if view.there else None

    def exists(self, session_id: str) -> bool:
        return self.load(session_id) is not None

    def delete(self, session_id: str) -> None:
        session = self.load(session_id)
        if session is not None and session.status is not SessionStatus.DELETED:
            self._write(session, lambda view, now: (_deletion(view), session))

    def list_headers(self) -> list[SessionHeader]:
        found: list[SessionHeader] = []
        after = ""
        while True:
            with self._lock:
                rows = self._store.sessions(after, SESSIONS_PER_PAGE)
            if not rows:
                return found
            after = rows[-1].id
            views = ((row.id, self._read(row.id)) for row in rows if is_id(row.id))
            for id_, view in views:
                header = view.records.header
                if view.there and header is not None:
                    found.append(
                        read_header(id_, header, version=view.version, updated_at=view.updated_at)
                    )

    # Reading.

    def _read(self, session_id: str) -> _View:
        """The session's records, all of one moment."""
        for _ in range(TRIES_MAX):
            with self._lock:
                view = self._try_to_read(session_id)
            if view is not None:
                return view
        raise Busy(f"session {session_id} is written all the time")

    def _try_to_read(self, session_id: str) -> _View | None:
        """None when somebody wrote between two parts."""
        head: Head | None = self._store.head(session_id)
        view = _View() if head is None else _View(head.seq)
        after: bytes | None = None if head is None else b""
        while after is not None:
            part = self._store.snapshot(session_id, after, "", 1, PAGE_BYTES, PAGE_ITEMS)
            if part.head.seq != view.seq:
                return None
            for row in part.rows:
                if row.collection in RUNTIME_COLLECTIONS or row.collection == CHECKPOINT_COLLECTION:
                    record = Record.decode(row.state)
                    view.kept[RecordKey(row.collection, row.id)] = record
                if row.collection in RUNTIME_COLLECTIONS:
                    view.records.take(row.collection, row.id, record.visible)
                    view.version = max(view.version, row.seq)
            # Parts go through the records in the order of their collections.
            done = not part.rows or part.rows[-1].collection > _LAST_COLLECTION
            after = None if done else part.after
        return view

    # Writing.

    def _write(
        self,
        session: AgentSession,
        write: Callable[[_View, int], tuple[list[RecordWrite], AgentSession]],
    ) -> AgentSession:
        """Write what ``write`` makes of the session as it stands, and no other state of it."""
        for _ in range(TRIES_MAX):
            with self._lock:
                view = self._read(session.id)
                writes, named = write(view, now := self._clock())
                work = self._commit(session.id, view, writes, now)
                if work is None:
                    continue
                head = work.head
                assert head is not None
                if self._committed is not None:
                    self._committed(
                        Committed(
                            session.id,
                            work.previous_seq,
                            work.previous_hash,
                            work.rows,
                            head,
                            work.created,
                        )
                    )
            return named.stored(version=head.seq, updated_at=self._stamp(view, _HEADER, now))
        raise Busy(f"session {session.id} is written all the time")

    def _commit(
        self, session_id: str, view: _View, writes: list[RecordWrite], now: int
    ) -> SessionWork | None:
        """Append the op; None when the log has moved since ``view`` was read."""
        changes = [self._change(view, write) for write in writes]
        stamps = tuple(self._stamp(view, RecordKey(c.collection, c.id), now) for c in changes)
        body = encode_body(changes)
        with self._store.transaction() as tx:
            head = tx.head(session_id)
            if (0 if head is None else head.seq) != view.seq:
                return None
            work = SessionWork(tx, session_id, self._store.identity(), now, AHEAD_US_MAX)
            n = work.last(self._author.client).n + 1
            op = Op(n, os.urandom(16), stamps, body)
            work.load([op], [changes])
            refused = work.take(self._author, op, list(changes))
            if refused is not None:
                raise refusal(refused.code, refused.reason, refused.detail)
            work.write()
        return work

    @staticmethod
    def _change(view: _View, write: RecordWrite) -> RecordChange:
        known = view.kept.get(RecordKey(write.collection, write.id))
        context = {} if known is None else known.vector
        match write.kind:
            case "put":
                return Put(write.collection, write.id, context, write.fields)
            case "patch":
                return Patch(write.collection, write.id, context, write.fields)
            case "delete":
                return Delete(write.collection, write.id, context)

    @staticmethod
    def _stamp(view: _View, key: RecordKey, now: int) -> int:
        known = view.kept.get(key)
        return now if known is None else max(now, known.life.updated_at + 1)


def _deletion(view: _View) -> list[RecordWrite]:
    """The session's end, and that of its checkpoints, in one op."""
    named = sorted(key for key in view.kept if key.collection == CHECKPOINT_COLLECTION)
    alive = [key for key in named if view.kept[key].alive]
    return [*(RecordWrite("delete", *key, {}) for key in alive), *deletion(view.records)]


class Call(Protocol):
    """Runs something in the thread that owns the store, and returns what it returns."""

    def __call__(self, work: Callable[[], T], /) -> T: ...


class SharedSessionStore:
    """Sessions of a store that a running server owns: everything happens in the server's thread."""

    def __init__(self, call: Call, store: Store, committed: Callable[[Committed], None]) -> None:
        self._call = call
        self._inner = call(lambda: ServerSessionStore(store, committed=committed))

    def create(self, session: AgentSession) -> AgentSession:
        return self._call(lambda: self._inner.create(session))

    def save(self, session: AgentSession) -> AgentSession:
        return self._call(lambda: self._inner.save(session))

    def load(self, session_id: str) -> AgentSession | None:
        return self._call(lambda: self._inner.load(session_id))

    def exists(self, session_id: str) -> bool:
        return self._call(lambda: self._inner.exists(session_id))

    def delete(self, session_id: str) -> None:
        self._call(lambda: self._inner.delete(session_id))

    def list_headers(self) -> list[SessionHeader]:
        return self._call(self._inner.list_headers)
