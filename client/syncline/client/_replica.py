"""The replica: the app's own copy, which it reads and writes whether or not there is a network."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlite_utils
import uuid_utils

from syncline.sync import (
    CHECKPOINT_COLLECTION,
    DELETED,
    HEADER_COLLECTION,
    HEADER_ID,
    LocalError,
    NotFound,
    Record,
    check_id,
    unpack,
)

from ._core import Core
from ._database import ConnectionFactory, Database, Durability, connect
from ._link import Connection, Link, SyncReport, sync_once
from ._receipt import Receipt
from ._rows import SessionState
from ._session import Session
from ._views import register

OUTBOX_OPS_MAX = 1_000_000
SYNC_S_MAX = 60.0


@dataclass(frozen=True, slots=True)
class SessionStatus:
    """How one session stands. ``oldest_pending_at`` is microseconds since the Unix epoch."""

    id: str
    label: str
    epoch: int
    seq: int
    pending: int
    oldest_pending_at: int | None
    refused: int
    conflicts: int
    paused: str | None
    bootstrapping: bool


@dataclass(frozen=True, slots=True)
class Notice:
    """Something beyond the ordinary that was dealt with: a healing, a clone, a wrong clock."""

    at: int
    kind: str
    session: str | None
    detail: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Status:
    """How a replica stands: what waits, since when, and why.

    ``connection`` and ``reason`` are the word of whoever holds the connection, in any process,
    since ``since``. Times are microseconds since the Unix epoch, None when it never happened.
    """

    path: str
    client_id: str
    sqlite_version: str
    journal_mode: str
    durability: str
    wal_guard: bool
    connection: str
    reason: str
    url: str | None
    since: int | None
    synced_at: int | None
    clock_offset_us: int
    pending: int
    oldest_pending_at: int | None
    refused: int
    conflicts: int
    sessions: tuple[SessionStatus, ...]
    notices: tuple[Notice, ...]


def _wall_clock() -> int:
    return time.time_ns() // 1000


class Replica:
    """Opens or creates the replica at ``path``.

    ``client_id`` names a fresh replica (default: a random id); an existing one must have it.
    ``clock`` returns microseconds since the Unix epoch. ``durability="full"`` survives a power cut
    for every write that returned; ``"normal"`` is faster and survives any crash of the process, but
    a power cut may take the last writes. Any number of threads and processes may use one replica.

    Raises NotAReplica, Damaged, ReadOnly, NewerFormat, NotFound or DiskFull; the file is then as
    it was.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        client_id: str | None = None,
        clock: Callable[[], int] = _wall_clock,
        durability: Durability = "full",
        create: bool = True,
        outbox_ops_max: int = OUTBOX_OPS_MAX,
        connection_factory: ConnectionFactory = connect,
        random_bytes: Callable[[int], bytes] = os.urandom,
    ) -> None:
        if durability not in ("full", "normal"):
            raise LocalError(f"durability is 'full' or 'normal', not {durability!r}")
        if client_id is not None:
            check_id(client_id, "client id")
        self.path = Path(path)
        database = Database(
            self.path, durability=durability, create=create, factory=connection_factory
        )
        self._core = Core(
            database,
            clock=clock,
            random_bytes=random_bytes,
            new_client_id=lambda: uuid.UUID(bytes=random_bytes(16), version=4).hex,
            outbox_ops_max=outbox_ops_max,
        )
        self._readers: list[sqlite3.Connection] = []
        self._link: Link | None = None
        self._link_lock = threading.Lock()
        try:
            self._core.make(client_id)
        except BaseException:
            database.close()
            raise

    def __repr__(self) -> str:
        return f"<Replica {self.path}>"

    def __enter__(self) -> Replica:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Disconnect and close the file. What is pending stays in it. Safe to call twice."""
        with self._link_lock:
            link, self._link = self._link, None
        if link is not None:
            link.stop()
        for reader in self._readers:
            reader.close()
        self._readers.clear()
        self._core.database.close()

    @property
    def client_id(self) -> str:
        """Who this replica is; a copied one takes a new id when it first meets the server."""
        return self._core.client()

    # Sessions.

    def create_session(self, label: str = "", *, session_id: str | None = None) -> Session:
        """Make a session, offline too. Its id is a UUIDv7 unless one is given."""
        id_ = check_id(session_id or str(uuid_utils.uuid7()), "session id")
        session = Session(self._core, id_)
        with self._core.batch():
            self._core.ensure_session(id_)
            now = self._core.now
            with self._core.op(id_) as op:
                op.patch(
                    HEADER_COLLECTION,
                    HEADER_ID,
                    {"label": label, "status": "active", "created_at": now},
                    None,
                )
        return session

    def session(self, id: str, *, create: bool = True) -> Session:
        """The session with this id. It may be known to others only: then it fills when synced.

        Raises NotFound (3113) for an unknown one when ``create`` is False.
        """
        check_id(id, "session id")
        if create:
            self._core.ensure_session(id)
        elif id not in self._core.session_ids():
            raise NotFound(f"there is no session {id} in this replica")
        return Session(self._core, id)

    def delete_session(self, id: str) -> Receipt:
        """Delete a session everywhere, for good, together with its checkpoints.

        Nothing is written to it after that, on any device. What is here can still be read, and
        forked. Raises NotFound (3113), and SessionDeleted (3014) when it was deleted before.
        """
        session = self.session(id, create=False)
        with session.transaction() as receipt:
            for checkpoint, _ in session.records(CHECKPOINT_COLLECTION):
                session.delete(CHECKPOINT_COLLECTION, checkpoint)
            ended = {"status": DELETED, "deleted": True}
            session.patch(HEADER_COLLECTION, HEADER_ID, ended)
        return receipt

    def sessions(self) -> list[Session]:
        """The sessions that this replica knows, by id."""
        return [Session(self._core, id_) for id_ in self._core.session_ids()]

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Many ops, one local commit: fast imports and bursts, durable when the block ends.

        Each write is still an op of its own. An exception stores nothing of the block.
        """
        with self._core.batch():
            yield

    def receipt(self, id: str) -> Receipt:
        """The receipt with this id, of a write made by any process. Raises NotFound (3113)."""
        try:
            known = self._core.knows(bytes.fromhex(id))
        except ValueError:
            known = False
        if not known:
            raise NotFound(f"this replica knows no write {id}")
        return Receipt(self._core, id)

    @property
    def db(self) -> sqlite_utils.Database:
        """A read-only sqlite-utils Database on the same file, with one view per collection.

        It belongs to this replica and closes with it. A view has the fields as columns, and
        ``"$session"``, ``"$id"``, ``"$updated_at"`` and ``"$fields"`` (all of them, as JSON).
        """
        reader = self._core.database.reader()
        register(reader)
        self._readers.append(reader)
        return sqlite_utils.Database(reader)

    # Syncing.

    def sync_once(
        self,
        url: str,
        *,
        token: str | None = None,
        sessions: Iterable[str] | None = None,
        timeout: float | None = SYNC_S_MAX,
    ) -> SyncReport:
        """Send all that waits, take all there is, and disconnect.

        ``sessions`` names those to sync (default: all that the identity may open). ``timeout`` is
        in seconds. Raises Unreachable (3108), BadPeer (3109), Unauthenticated (3020),
        UnknownVersion (3010), LeaseHeld (3107) or TimedOut (3114): what was not sent then waits.
        """
        with self._link_lock:
            if self._link is not None:
                raise LocalError("this replica is connected: use its connection's wait_synced")
        return sync_once(self._core, url, token=token, only=sessions, timeout=timeout)

    def connect(
        self,
        url: str,
        *,
        token: str | Callable[[], str | None] | None = None,
        sessions: Iterable[str] | None = None,
        on_signal: Callable[[str, str, bytes, str], None] | None = None,
    ) -> Connection:
        """Stay connected in the background, from now until closed.

        ``token`` may be a function, which is asked at each attempt. ``on_signal(session, kind,
        payload, client)`` gets the ephemeral signals of others, in the connection's thread.
        """
        with self._link_lock:
            if self._link is not None:
                raise LocalError("this replica is connected already: close that connection first")
            link = Link(self._core, url, token=token, only=sessions, on_signal=on_signal)
            self._link = link
        link.start()
        return Connection(self._core, link, self._unlink)

    def _unlink(self) -> None:
        with self._link_lock:
            self._link = None

    def status(self) -> Status:
        """What waits here, since when and why; true also for other processes' work."""
        core = self._core
        with core.database.reading() as db:
            sessions = tuple(_session_status(db, state) for state in core.states())
            link = core.link() or {}
            meta = dict(db.execute("SELECT key, value FROM syncline_meta"))
            (journal,) = db.execute("PRAGMA journal_mode").fetchone()
            notices = db.execute(
                "SELECT at, kind, session, detail FROM syncline_notices ORDER BY id"
            )
            listed = tuple(Notice(at, kind, s, unpack(detail)) for at, kind, s, detail in notices)
        oldest = [s.oldest_pending_at for s in sessions if s.oldest_pending_at is not None]
        return Status(
            path=str(self.path),
            client_id=meta["client"],
            sqlite_version=sqlite3.sqlite_version,
            journal_mode=journal,
            durability=core.database.durability,
            wal_guard=core.database.guarded,
            connection=link.get("state", "never connected"),
            reason=link.get("reason", ""),
            url=link.get("url"),
            since=link.get("since"),
            synced_at=meta.get("synced_at"),
            clock_offset_us=meta["offset_us"],
            pending=sum(s.pending for s in sessions),
            oldest_pending_at=min(oldest, default=None),
            refused=sum(s.refused for s in sessions),
            conflicts=sum(s.conflicts for s in sessions),
            sessions=sessions,
            notices=listed,
        )


def _session_status(db: sqlite3.Connection, state: SessionState) -> SessionStatus:
    pending, oldest = db.execute(
        "SELECT count(*), min(written_at) FROM syncline_outbox WHERE session=?", (state.key,)
    ).fetchone()
    (refused,) = db.execute(
        "SELECT count(*) FROM syncline_refused WHERE session=?", (state.key,)
    ).fetchone()
    (conflicts,) = db.execute(
        "SELECT count(*) FROM syncline_conflicts WHERE gen=? AND closed=0", (state.gen,)
    ).fetchone()
    header = db.execute(
        "SELECT state FROM syncline_records WHERE gen=? AND collection=? AND id=?",
        (state.gen, HEADER_COLLECTION, HEADER_ID),
    ).fetchone()
    return SessionStatus(
        id=state.id,
        label=_label(header),
        epoch=state.epoch,
        seq=state.seq,
        pending=pending,
        oldest_pending_at=oldest,
        refused=refused,
        conflicts=conflicts,
        paused=state.paused_reason,
        bootstrapping=state.boot is not None,
    )


def _label(header: tuple[bytes] | None) -> str:
    if header is None or not header[0]:
        return ""
    label = Record.decode(header[0]).fields.get("label", "")
    return label if isinstance(label, str) else ""
