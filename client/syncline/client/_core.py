"""The replica's core: what the engine asks and tells, each as one transaction.

``LocalCore`` is what the app uses; this adds what syncing needs. What relies on the sync lease
checks it again inside its transaction.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from syncline.sync import (
    ID_CHARS_MAX,
    NUMBER_MAX,
    Entry,
    MalformedFrame,
    Op,
    ReplicaCloned,
    SnapshotPage,
    VoidOp,
    Welcome,
    encode_op,
    pack,
    same_content,
    unpack,
)

from . import _bootstrap, _healing
from ._applying import Applied, apply_refusal, apply_repeat, retire_void
from ._database import Database
from ._erasing import SCRUB_DUE, apply_page
from ._local import LocalCore, by_collection
from ._rows import (
    Boot,
    SessionState,
    last_own,
    lowest_pending,
    meta,
    notice,
    pending_op,
    pending_ops,
    running_at,
    session_row,
    set_meta,
)
from ._watch import Notification

LEASE_US = 10_000_000
"""A holder that was killed or stopped is believed to hold the lease for this long."""
CLOCK_STEP_US = 5_000
"""A measured offset is kept when it moved by more; below, it is the network's noise."""
AHEAD_US_MAX = 60_000_000
ID_ENDING_CHARS = 8
TIME_US_MAX = 1 << 62
"""No clock is ever there: a time beyond it, from a server, is not believed."""


class LeaseLost(Exception):
    """Another process has taken the lease: whatever this one was about to do, it must not."""


class Core(LocalCore):
    """One process's replica, as its app and its connection use it."""

    def __init__(
        self,
        database: Database,
        *,
        clock: Callable[[], int],
        random_bytes: Callable[[int], bytes],
        new_client_id: Callable[[], str],
        outbox_ops_max: int,
    ) -> None:
        super().__init__(
            database,
            clock=clock,
            random_bytes=random_bytes,
            new_client_id=new_client_id,
            outbox_ops_max=outbox_ops_max,
        )
        self._holder = random_bytes(8).hex()
        self.scrub()

    # The lease.

    def acquire_lease(self) -> bool:
        """Take the right to sync this replica; False while another process has it.

        A power cut that takes the row takes its holder along.
        """
        with self.database.unforced() as db:
            held = self._is_held_by_another(db)
            if not held:
                self._write_lease(db, self.clock())
            return not held

    def _is_held_by_another(self, db: sqlite3.Connection) -> bool:
        row = db.execute("SELECT holder, expires_us FROM syncline_lease").fetchone()
        now = self.clock()
        # An expiry further off than any lease is long was written by a wrong clock.
        return row is not None and row[0] != self._holder and now < row[1] <= now + LEASE_US

    def renew_lease(self) -> None:
        """Raises LeaseLost when it is not ours any more."""
        with self.database.unforced() as db:
            self._check_lease(db)
            self._write_lease(db, self.clock())

    def release_lease(self) -> None:
        with self.database.unforced() as db:
            db.execute("DELETE FROM syncline_lease WHERE holder=?", (self._holder,))
            set_meta(db, "connected", 0)

    def _write_lease(self, db: sqlite3.Connection, now: int) -> None:
        db.execute(
            "INSERT OR REPLACE INTO syncline_lease (one, holder, expires_us) VALUES (1, ?, ?)",
            (self._holder, now + LEASE_US),
        )

    def _check_lease(self, db: sqlite3.Connection) -> None:
        row = db.execute("SELECT holder FROM syncline_lease").fetchone()
        if row is None or row[0] != self._holder:
            raise LeaseLost

    @contextlib.contextmanager
    def _syncing(self) -> Iterator[sqlite3.Connection]:
        with self.database.transaction() as db:
            self._check_lease(db)
            yield db

    @contextlib.contextmanager
    def _session(self, id_: str) -> Iterator[tuple[sqlite3.Connection, SessionState, str]]:
        """A transaction on one session, saved when the block ends well."""
        with self._syncing() as db:
            session = session_row(db, id_)
            yield db, session, str(meta(db, "client"))
            session.save(db)

    # What the engine asks.

    def begin_connection(self) -> tuple[str, int]:
        """The client id and a fresh incarnation, durable before anybody hears of it."""
        with self._syncing() as db:
            incarnation = int(meta(db, "incarnation")) + 1
            set_meta(db, "incarnation", incarnation)
            if meta(db, "connected"):
                # The last connection did not end in order: what was marked as sent may have been
                # lost with a power cut, so all that waits may have been sent.
                db.execute("UPDATE syncline_outbox SET sent=1 WHERE sent=0")
            set_meta(db, "connected", 1)
            return str(meta(db, "client")), incarnation

    def cursor(self, id_: str) -> int:
        """The seq up to which entries are folded in (of a bootstrap, while one is under way)."""
        session = self._read(id_)
        if session.boot is not None and session.boot.cursor is not None:
            return session.boot.cursor[1]
        return session.seq

    def shown_seq(self, id_: str) -> int:
        """The seq of what the app sees; -1 while a bootstrap is under way."""
        session = self._read(id_)
        return session.seq if session.boot is None else -1

    def open_point(self, id_: str) -> tuple[int, int, bytes | None, int, bool]:
        """``(epoch, seq, hash, pending_from, snapshot)`` to open the session with."""
        with self.database.reading() as db:
            session = session_row(db, id_)
            lowest = lowest_pending(db, session)
            boot = session.boot
            if boot is None:
                return session.epoch, session.seq, session.hash, lowest, False
            if boot.cursor is None:
                return 0, 0, None, lowest, True
            return *boot.cursor, lowest, False

    def lowest_pending(self, id_: str) -> int:
        with self.database.reading() as db:
            return lowest_pending(db, session_row(db, id_))

    def snapshot_from(self, id_: str) -> int:
        """The own number from which a snapshot shall bring the entries.

        After a healing, entries that this replica has settled may stand at other places.
        """
        with self.database.reading() as db:
            session = session_row(db, id_)
            if session.boot is None or not session.boot.healing:
                return lowest_pending(db, session)
            (held,) = db.execute(
                "SELECT max(n) FROM syncline_entries WHERE session=?", (session.key,)
            ).fetchone()
            return int(held or 0) + 1

    def is_booting(self, id_: str) -> bool:
        return self._read(id_).boot is not None

    def boot_is_void(self, id_: str, diverged: bool, epoch: int, head: int) -> bool:
        """Whether the server has been restored below the bootstrap under way, or emptied.

        The pages that came may hold what the restored log does not, and they do not tell.
        """
        boot = self._read(id_).boot
        if boot is None or boot.cursor is None:
            return boot is not None and not boot.healing and (diverged or head == 0)
        if diverged or head == 0:
            return True
        return boot.target is not None and (epoch != boot.target[0] or head < boot.target[1])

    def compare_anew(self, id_: str) -> int | None:
        """What a healing without any page had in common with a log that may be gone; else None."""
        boot = self._read(id_).boot
        return boot.common if boot is not None and boot.healing and boot.cursor is None else None

    def boot_after(self, id_: str) -> bytes | None:
        """The cursor of the next page; None when no bootstrap wants pages."""
        boot = self._read(id_).boot
        return None if boot is None else boot.after

    def compare_from(self, id_: str) -> int:
        return self._read(id_).seq

    def compare_points(self, id_: str, low: int, high: int, count: int) -> list[tuple[int, bytes]]:
        with self.database.reading() as db:
            return _healing.points(db, session_row(db, id_), low, high, count)

    def check_lineage(self, id_: str, last: int, running: bytes) -> None:
        """Raises ReplicaCloned (3016) when the server knows another history of this client."""
        with self.database.reading() as db:
            session = session_row(db, id_)
            own, _ = last_own(db, session)
            mine = running_at(db, session, last) if last <= own else None
        if mine != running:
            raise ReplicaCloned(
                f"the server has {last} ops of this client in session {id_} that are not this"
                " replica's"
            )

    # What the engine tells.

    def meet(self, welcome: Welcome, sent_at: int) -> None:
        """Measure the clock's offset by half the round trip, and note which store this is.

        A store in another epoch was restored and may have forgotten ops of this client. Copies of
        this replica may then write other ops under the same numbers, and nobody could tell: so
        this replica takes a new id, once it has given back what was forgotten (``renew_due``).
        What a power cut takes of this is noticed again at the next meeting.
        """
        with self.database.unforced() as db:
            self._check_lease(db)
            known = int(meta(db, "offset_us", 0))
            offset = welcome.clock - (sent_at + self.clock()) // 2
            if abs(offset - known) > CLOCK_STEP_US:
                set_meta(db, "offset_us", offset)
            set_meta(db, "server_clock", welcome.clock)
            store = pack([welcome.store, welcome.epoch])
            if meta(db, "store", store) != store:
                set_meta(db, "renewing", 1)
            set_meta(db, "store", store)

    def renew_due(self) -> bool:
        """Whether it is time for a new client id: nothing numbered under the old log waits."""
        with self.database.reading() as db:
            if not meta(db, "renewing", 0):
                return False
            waiting = db.execute(
                "SELECT 1 FROM syncline_outbox o JOIN syncline_sessions s ON s.session = o.session"
                " WHERE o.n <= s.settled_n AND s.paused_code IS NULL LIMIT 1"
            ).fetchone()
            return waiting is None

    def become_new_client(self, reason: str) -> None:
        """Take a new client id, and renumber what is pending."""
        with self._syncing() as db:
            old = str(meta(db, "client"))
            _healing.become_new_client(db, self._renamed(old), self.clock(), reason)

    def _renamed(self, old: str) -> str:
        """A new id; one that people gave keeps its name, with an ending of its own."""
        new = self._new_client_id()
        if len(old) == len(new):
            return new
        name, _, ending = old.rpartition("-")
        stem = name if name and len(ending) == ID_ENDING_CHARS else old
        return f"{stem[: ID_CHARS_MAX - ID_ENDING_CHARS - 1]}-{new[:ID_ENDING_CHARS]}"

    def session_opened(self, id_: str) -> None:
        """The server lets this session be synced (again)."""
        if self._read(id_).paused_code is not None:
            with self._session(id_) as (_, session, _):
                session.paused_code = session.paused_reason = None

    def pause(self, id_: str, code: int, reason: str) -> None:
        with self._session(id_) as (_, session, _):
            session.paused_code, session.paused_reason = code, reason

    def requeue(self, id_: str, last: int) -> int:
        """Own ops after ``last`` that are settled here, but not on the server, wait again."""
        if self._read(id_).settled_n <= last:
            return 0
        with self._session(id_) as (db, session, _):
            try:
                count = _healing.requeue(db, session, last, self.clock())
            except LookupError as error:
                raise ReplicaCloned(f"the server asks for op {error} that is not held") from error
            if count:
                notice(db, self.clock(), "requeued", id_, after=last, requeued=count)
            return count

    def go_back(self, id_: str, *, common: int, last: int, empty: tuple[int, bytes] | None) -> int:
        """Back to the last common seq; ``empty`` is (epoch, genesis) of a server with no log."""
        with self._session(id_) as (db, session, client):
            try:
                count = _healing.go_back(
                    db, session, client, common=common, last=last, now=self.clock()
                )
            except LookupError as error:
                raise ReplicaCloned(f"the server asks for op {error} that is not held") from error
            if empty is not None:
                assert session.boot is not None
                point = (empty[0], 0, empty[1])
                session.boot = Boot(session.boot.gen, None, point, point, point, {}, True)
                self._show(db, session, client)
            return count

    def begin_bootstrap(self, id_: str, *, afresh: bool) -> None:
        with self._session(id_) as (db, session, _):
            if afresh:
                _bootstrap.drop(db, session)
            _bootstrap.begin(db, session)

    def abandon_bootstrap(self, id_: str) -> None:
        with self._session(id_) as (db, session, _):
            _bootstrap.drop(db, session)
            if session.boot is not None and not session.boot.healing:
                session.boot = None

    def apply_snapshot_page(self, id_: str, page: SnapshotPage) -> bool:
        """Take in a page; whether the snapshot shows now."""
        with self._session(id_) as (db, session, client):
            applied = _bootstrap.apply_page(db, session, client, page)
            self._show_fields(db, applied.fields.items())
            return self._show_if_complete(db, session, client)

    def _show_if_complete(self, db: sqlite3.Connection, session: SessionState, client: str) -> bool:
        complete = _bootstrap.is_complete(session)
        if complete:
            self._show(db, session, client)
        return complete

    def _show(self, db: sqlite3.Connection, session: SessionState, client: str) -> None:
        healing = session.boot is not None and session.boot.healing
        _bootstrap.show(db, session, client)
        origin = Notification(session.id, "healing" if healing else "remote", None, ids=None)
        self.database.after_commit(lambda: self._tell([origin]))

    def apply_entries(
        self, id_: str, seq: int, previous: bytes, entries: Sequence[bytes]
    ) -> Applied:
        with self._session(id_) as (db, session, client):
            applied, erased = apply_page(db, session, client, seq, previous, entries, self.clock())
            if erased:
                self.database.after_commit(self.scrub)
            self._show_fields(db, applied.fields.items())
            self._show_if_complete(db, session, client)
            told = [
                Notification(id_, "remote", collection, ids)
                for collection, ids in by_collection(applied.remote)
            ]
            if applied.events:
                told.append(Notification(id_, "remote", None, events=applied.events))
            if applied.conflicts:
                ids = tuple(conflict.id for conflict in applied.conflicts)
                told.append(Notification(id_, "conflict", None, conflict_ids=ids))
            self.database.after_commit(lambda: self._tell(told))
            return applied

    def scrub(self) -> None:
        """Free the file of what an erasure took, if that is due."""
        with self.database.reading() as db:
            due = meta(db, SCRUB_DUE, 0)
        if due and self.database.scrub():
            with self.database.unforced() as db:
                set_meta(db, SCRUB_DUE, 0)

    def take_ops(
        self, id_: str, after: int, *, ops_max: int, bytes_max: int
    ) -> list[tuple[int, bytes]]:
        """The next pending ops, encoded and marked as sent; one at least, if any."""
        taken: list[tuple[int, bytes]] = []
        size = 0
        with self.database.reading() as db:
            session = session_row(db, id_)
            unmarked = False
            # While an old number may mean two things, only what was settled once is sent again.
            through = session.settled_n if meta(db, "renewing", 0) else NUMBER_MAX
            for op in pending_ops(db, session.key, after, ops_max):
                if op.n > through:
                    break
                data = encode_op(
                    VoidOp(op.n, op.running)
                    if op.body is None or op.salt is None
                    else Op(op.n, op.salt, op.stamps, op.body, op.former)
                )
                size += len(data)
                if taken and size > bytes_max:
                    break
                taken.append((op.n, data))
                unmarked = unmarked or not op.sent
        if unmarked:
            with self.database.unforced() as db:
                self._check_lease(db)
                db.execute(
                    "UPDATE syncline_outbox SET sent=1 WHERE session=? AND n BETWEEN ? AND ?",
                    (session.key, taken[0][0], taken[-1][0]),
                )
        return taken

    def refused(self, id_: str, n: int, code: int, reason: str, detail: Mapping[str, Any]) -> None:
        """An op was refused for good, or a void number was consumed (code 0)."""
        with self._session(id_) as (db, session, client):
            op = pending_op(db, session.key, n)
            if op is None:
                return
            if op.body is None or op.salt is None:
                retire_void(db, session, op)
                return
            if code == 0:
                raise MalformedFrame(f"op {n} is said to be in the log, without its entry")
            keys = apply_refusal(
                db,
                session,
                client,
                op,
                code=code,
                reason=reason,
                detail=dict(detail),
                now=self.clock(),
            )
            receipt_id = op.salt.hex()
            told = [
                Notification(id_, "refusal", collection, ids, receipt_id=receipt_id)
                for collection, ids in by_collection(keys)
            ] or [Notification(id_, "refusal", None, receipt_id=receipt_id)]
            self.database.after_commit(lambda: self._tell(told))

    def repeated(self, id_: str, n: int, entry: Entry, hash_: bytes) -> None:
        """The log holds this pending op already, at ``entry``."""
        with self._session(id_) as (db, session, client):
            op = pending_op(db, session.key, n)
            if op is not None and (entry.erased or op.salt == entry.salt):
                # Of an erased entry nobody can tell what it said: the server knew it by its salt.
                if op.body is None or not (entry.erased or same_content(op.body, entry.body)):
                    raise MalformedFrame(f"op {n} is said to be in the log, with other content")
                apply_repeat(db, session, client, op, entry, hash_)
                self.database.after_commit(lambda: self._tell([]))

    def stamp_again(self, id_: str, n: int, code: int, detail: Mapping[str, Any]) -> int:
        """3003 and 3012: set stamps again, by the server's clock where it told it; how many."""
        with self._session(id_) as (db, session, client):
            server = detail.get("server_clock")
            if code == 3012 and type(server) is int and 0 < server < TIME_US_MAX:
                set_meta(db, "offset_us", server - self.clock())
                set_meta(db, "server_clock", server)
            seen = detail.get("seen")
            above = seen if type(seen) is int and 0 <= seen < TIME_US_MAX else 0
            return _healing.stamp_again(
                db,
                session,
                client,
                first=n,
                now=self._now(int(meta(db, "offset_us", 0)), int(meta(db, "server_clock", 0))),
                ahead_us_max=AHEAD_US_MAX // 2,
                above=above if code == 3003 else 0,
            )

    # The link's own word on how it stands, for people and other processes.

    def note_link(self, state: str, reason: str, url: str) -> None:
        """Keep since when and why the connection is as it is; unchanged words keep their time.

        While another process holds the connection, its word counts and not this one's.
        """
        with self.database.reading() as db:
            known = _link(meta(db, "link"))
        if known is not None and (known["state"], known["reason"]) == (state, reason):
            return
        word = pack({"state": state, "reason": reason, "url": url, "since": self.clock()})
        with self.database.unforced() as db:
            if not self._is_held_by_another(db):
                set_meta(db, "link", word)

    def link(self) -> dict[str, Any] | None:
        with self.database.reading() as db:
            return _link(meta(db, "link"))

    def note_synced(self) -> None:
        with self.database.unforced() as db:
            set_meta(db, "synced_at", self.clock())

    def targets(self, only: Iterable[str] | None) -> dict[str, int]:
        """The last pending number of each session that has any."""
        wanted = None if only is None else set(only)
        with self.database.reading() as db:
            rows = db.execute(
                "SELECT s.id, max(o.n) FROM syncline_outbox o JOIN syncline_sessions s"
                " ON s.session = o.session GROUP BY s.id"
            ).fetchall()
        return {id_: n for id_, n in rows if wanted is None or id_ in wanted}

    def pending_count(self, only: Iterable[str] | None) -> int:
        wanted = None if only is None else set(only)
        with self.database.reading() as db:
            rows = db.execute(
                "SELECT s.id, count(*) FROM syncline_outbox o JOIN syncline_sessions s"
                " ON s.session = o.session GROUP BY s.id"
            ).fetchall()
        return sum(count for id_, count in rows if wanted is None or id_ in wanted)

    def is_paused(self, id_: str) -> bool:
        return self._read(id_).paused_code is not None

    def foreign_version(self) -> int:
        """Changes when another process (or another connection) has committed to the file."""
        with self.database.reading() as db:
            (version,) = db.execute("PRAGMA data_version").fetchone()
        return int(version)


def _link(data: bytes | None) -> dict[str, Any] | None:
    return None if data is None else dict(unpack(data))
