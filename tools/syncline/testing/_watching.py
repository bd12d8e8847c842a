"""What must be true at every moment of a world, looked at after each commit that changed anything.

The end of a world hides much: what was wrong for a minute may have healed. So a replica is compared
with every other one (and with the server) that was ever at the same hash of the log; what its app
sees must be the log's state with the pending ops on top, predicted anew from all of them; and the
cursor, the receipts and what watchers are told may only go one way.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from syncline.client._core import Core
from syncline.client._predict import Key, changes_on, predict
from syncline.client._rows import Pending, SessionState, meta, pending_ops, session_rows
from syncline.server import MemoryStore
from syncline.server._memory_store import _Session
from syncline.sync import Record, Resolve, unpack

from ._app import GHOSTS

if TYPE_CHECKING:
    from ._device import Device


class Watch:
    """Sees all replicas and the server of one world. ``broken`` is told of what is not true."""

    def __init__(self, broken: Callable[[str, str], None], tell: Callable[[str], None]) -> None:
        self._broken = broken
        self.tell = tell
        self._hashes: dict[tuple[str, int, int], bytes] = {}
        self._states: dict[tuple[str, bytes], int] = {}
        self._places: dict[tuple[str, str], tuple[int, int]] = {}
        self._dots: dict[tuple[str, str, int], bytes] = {}
        self._seen_changes: dict[str, tuple[Core, int]] = {}
        self._notices: Counter[str] = Counter()
        self._may_go_back: set[tuple[str, str]] = set()
        self._sent: dict[str, set[bytes]] = {}
        self._looked_at: dict[tuple[str, str], tuple[Any, ...]] = {}
        self.went_back: set[str] = set()
        """Devices whose file itself went back to an earlier one."""
        self.copied: set[str] = set()
        self.server_went_back = False

    # The server.

    def committed(self, store: MemoryStore) -> None:
        """A transaction of the server is durable."""
        for id_, session in store._sessions.items():
            head = session.head
            key = (id_, head.hash)
            if not head.seq or key in self._states:
                continue
            self._states[key] = _digest(
                {(k.collection, k.id): row.state for k, row in session.records.items()}
            )
            self._observe_claims(id_, session)
            for row in reversed(session.log):
                dot = (id_, row.client, row.n)
                if self._dots.get(dot) == row.salt:
                    break
                self._dot_means(dot, row.salt)

    def _observe_claims(self, id_: str, session: _Session) -> None:
        """What was touched last claims to have seen only what the log has settled."""
        for key, row in session.records.items():
            if row.seq == session.head.seq:
                for client, n in Record.decode(row.state).vector.items():
                    last = session.last_ops.get(client)
                    if last is None or last.n < n:
                        self._broken(
                            "healing", f"{key} of {id_} claims {client}/{n}, which is not settled"
                        )

    def _dot_means(self, dot: tuple[str, str, int], salt: bytes) -> None:
        known = self._dots.get(dot)
        if known is not None and not (self.server_went_back and self.went_back):
            # Where the server and the author both forgot an op, its number is free again.
            self._broken("exactly once", f"dot {dot[1]}/{dot[2]} of {dot[0]} means two ops")
        self._dots[dot] = salt

    # The replicas.

    def told(self, device: Device) -> None:
        """A watcher is told: what it hears of must be durable."""
        core = device.core
        if core is not None and core.database.connection.in_transaction:
            self._broken("durable", f"{device.name} tells its app of what is not committed")

    def file_went_back(self, name: str) -> None:
        self.went_back.add(name)
        self._sent.pop(name, None)

    def observe(self, device: Device) -> None:
        """Look at a replica between two of its transactions."""
        core = device.core
        if core is None:
            return
        changes = core.database.connection.total_changes
        if self._seen_changes.get(device.name) == (core, changes):
            return
        self._seen_changes[device.name] = (core, changes)
        with core.database.reading() as db:
            sessions = session_rows(db)
            self._heed_notices(device, db, sessions)
            client = str(meta(db, "client"))
            for session in sessions:
                self._observe_place(device.name, session)
                self._observe_state(device.name, db, session, client)
            if device.connected:
                self._observe_sent(device.name, db)

    def _heed_notices(
        self, device: Device, db: sqlite3.Connection, sessions: list[SessionState]
    ) -> None:
        name = device.name
        (count,) = db.execute("SELECT count(*) FROM syncline_notices").fetchone()
        if count == self._notices[name]:
            return
        words = [
            (kind, unpack(detail).get("reason", ""))
            for kind, detail in db.execute(
                "SELECT kind, detail FROM syncline_notices ORDER BY rowid LIMIT -1 OFFSET ?",
                (self._notices[name] if count > self._notices[name] else 0,),
            )
        ]
        self._notices[name] = count
        kinds = [kind for kind, _ in words]
        self.tell(f"{name}: " + "; ".join(" ".join(word) for word in words))
        self._may_go_back |= {(name, session.id) for session in sessions}
        excused = name in self.copied or name in self.went_back or self.server_went_back
        if "new client id" in kinds and not excused:
            self._broken("healing", f"{name} took itself for a copy, and is none")

    def _observe_place(self, name: str, session: SessionState) -> None:
        if session.hash is None or session.seq == 0:
            return
        place = (session.epoch, session.seq)
        known = self._hashes.setdefault((session.id, *place), session.hash)
        if known != session.hash:
            self._broken("dense", f"{session.id} at {place} means two things")
        before = self._places.get((name, session.id), (0, 0))
        if place < before:
            reported = (name, session.id) in self._may_go_back
            self._may_go_back.discard((name, session.id))
            if not reported and name not in self.went_back:
                self._broken("monotonic", f"{name} went from {before} to {place} in {session.id}")
        self._places[name, session.id] = place

    def _observe_state(
        self, name: str, db: sqlite3.Connection, session: SessionState, client: str
    ) -> None:
        rows = db.execute(
            "SELECT collection, id, state, base FROM syncline_records WHERE gen=?", (session.gen,)
        ).fetchall()
        waiting = db.execute(
            "SELECT n, salt, stamps FROM syncline_outbox WHERE session=? ORDER BY n",
            (session.key,),
        ).fetchall()
        looked_at = (session.seq, session.hash, session.boot, rows, waiting)
        if self._looked_at.get((name, session.id)) == looked_at:
            return
        self._looked_at[name, session.id] = looked_at
        canonical: dict[Key, bytes] = {
            (collection, id_): state if base is None else base
            for collection, id_, state, base in rows
            if (state if base is None else base)
        }
        if session.hash is not None and session.seq:
            digest = _digest(canonical)
            if self._states.setdefault((session.id, session.hash), digest) != digest:
                self._broken(
                    "convergent", f"{name} at {session.seq} of {session.id} is not as others there"
                )
        if session.boot is not None:
            return  # Ops that a healing put back are not on top before the bootstrap shows.
        visible: dict[Key, bytes] = {(c, i): state for c, i, state, _ in rows if state}
        ops = list(pending_ops(db, session.key))
        if not ops:
            if visible != canonical:
                self._broken("convergent", f"{name} keeps a base with nothing pending")
        else:
            self._observe_prediction(name, session, client, ops, canonical, visible)
        self._observe_closing(name, db, session, ops)

    def _observe_prediction(
        self,
        name: str,
        session: SessionState,
        client: str,
        ops: list[Pending],
        canonical: Mapping[Key, bytes],
        visible: Mapping[Key, bytes],
    ) -> None:
        bases: dict[Key, Record | None] = {
            (change.collection, change.id): None for op in ops for change, _ in changes_on(op)
        }
        bases.update((key, Record.decode(data)) for key, data in canonical.items())
        forced = {
            (change.collection, change.id)
            for op in ops
            if any(change.collection == GHOSTS for change, _ in changes_on(op))
            for change, _ in changes_on(op)
        }
        expected = predict(ops, bases, client, session.vector)
        for key, record in expected.items():
            if key in forced:
                continue  # Written past the local checks: it shows until it is refused.
            data = visible.get(key)
            shown = None if data is None else Record.decode(data).visible
            due = None if record is None else record.visible
            if shown != due:
                self._broken("convergent", f"{name} shows {shown} for {key}, due is {due}")

    def _observe_closing(
        self, name: str, db: sqlite3.Connection, session: SessionState, ops: list[Pending]
    ) -> None:
        """A conflict is hidden while, and only while, an op that closes it waits."""
        closing = {
            change.conflict_id for op in ops for change in op.changes if isinstance(change, Resolve)
        }
        rows = db.execute(
            "SELECT id, closing_n IS NOT NULL FROM syncline_conflicts WHERE gen=? AND closed=0",
            (session.gen,),
        )
        for id_, hidden in rows:
            if hidden != (id_ in closing):
                story = "hidden with nothing that closes it" if hidden else "open though resolved"
                self._broken("monotonic", f"{name}: conflict {id_[:8]} is {story}")

    def _observe_sent(self, name: str, db: sqlite3.Connection) -> None:
        sent = self._sent.setdefault(name, set())
        for salt, is_sent in db.execute("SELECT salt, sent FROM syncline_outbox"):
            if is_sent:
                sent.add(salt)
            elif salt in sent:
                self._broken("monotonic", f"{name}: a receipt went from sent back to queued")


def _digest(states: Mapping[Key, bytes]) -> int:
    return hash(frozenset(states.items()))
