"""Both real ends in virtual time: client engines over replica files, one server engine, no sockets.

A ``Wire`` is the server, its clock, and the ``Line`` of each connection. Frames wait in two plain
queues per line, so that a test delivers, drops, doubles, delays or forges them by hand, and cuts
the line wherever it likes. Everything random comes from a seed: the same calls give the same bytes.
"""

from __future__ import annotations

import contextlib
import copy
import random
import shutil
import sqlite3
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from syncline.client import Replica
from syncline.client._core import LeaseLost
from syncline.client._database import CommitUnknown
from syncline.client._engine import ClientEngine, Reconnect
from syncline.server import (
    Close,
    Connected,
    Disconnected,
    Drained,
    Identity,
    Input,
    MemoryStore,
    Received,
    Send,
    ServerEngine,
    Store,
    Tick,
    Tokens,
)
from syncline.sync import (
    Entry,
    Frame,
    SyncError,
    ToClient,
    ToServer,
    decode_to_client,
    decode_to_server,
    encode_frame,
)

IN_MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
NOW = 1_700_000_000_000_000
SECOND = 1_000_000
ROUNDS_MAX = 100_000
SYNCS_MAX = 20


def new_store(name: str = "store") -> MemoryStore:
    """An empty store with a name that is not random."""
    store = MemoryStore()
    store._identity = Identity(name, 1)
    return store


def restored(store: MemoryStore, epoch: int) -> MemoryStore:
    """What a store held, taken into service again as another store, in a new epoch."""
    copied = copy.deepcopy(store)
    copied._identity = Identity(store.identity().store_id, epoch)
    return copied


class Line:
    """One connection of one replica. ``ended`` is why it ended, None while it is up."""

    def __init__(
        self,
        wire: Wire,
        conn: int,
        replica: Replica,
        token: str | None,
        only: Iterable[str] | None,
        signals: list[tuple[str, str, bytes, str]],
    ) -> None:
        self._wire = wire
        self.conn = conn
        self.replica = replica
        self.core = replica._core
        self.to_server: deque[bytes] = deque()
        self.to_client: deque[bytes] = deque()
        self.sent: list[ToServer] = []
        self.ended: Exception | None = None
        self.signals = signals
        self.engine = ClientEngine(
            self.core,
            token=token,
            only=only,
            random_bytes=self.core.random_bytes,
            on_signal=lambda *signal: signals.append(signal),
        )
        assert self.core.acquire_lease(), "this replica is connected already"
        self.core.on_local_write = lambda session: self.do(
            lambda: self.engine.local_change(wire.now, session)
        )
        self.do(lambda: self.engine.start(wire.now))

    @property
    def up(self) -> bool:
        return self.ended is None

    def do(self, call: Callable[[], object]) -> None:
        """Let the client's engine do something, and take what it has to say."""
        if not self.up:
            return
        try:
            call()
        except (Reconnect, SyncError, LeaseLost, CommitUnknown) as error:
            self.cut(error)
            return
        for data in self.engine.take_output():
            frame = decode_to_server(data)
            assert frame is not None
            self.sent.append(frame)
            self.to_server.append(data)

    def send_one(self) -> None:
        """The next frame arrives at the server."""
        self._wire.feed(Received(self.conn, self.to_server.popleft()))

    def receive_one(self) -> None:
        """The next frame arrives at the client."""
        data = self.to_client.popleft()
        self._wire.feed(Drained(self.conn, len(data)))
        self.do(lambda: self.engine.receive(data, self._wire.now))

    def receive(self, *frames: Frame | bytes) -> None:
        """These frames arrive at the client, whoever made them."""
        for frame in frames:
            data = frame if isinstance(frame, bytes) else encode_frame(frame)
            self.do(lambda data=data: self.engine.receive(data, self._wire.now))  # type: ignore[misc]

    def waiting(self) -> list[ToClient]:
        """The frames on their way to the client, decoded."""
        return [frame for data in self.to_client if (frame := decode_to_client(data)) is not None]

    def deliver(self) -> None:
        """Everything arrives, on this line alone, until nothing is on its way."""
        for _ in range(ROUNDS_MAX):
            if self.to_server and self.up:
                self.send_one()
            elif self.to_client and self.up:
                self.receive_one()
            else:
                return
        raise AssertionError("the two ends talk without end")

    def cut(self, why: Exception | None = None) -> None:
        """The connection breaks; what was on its way is lost."""
        if not self.up:
            return
        self.ended = why or Reconnect("cut")
        self.to_server.clear()
        self.to_client.clear()
        self.core.on_local_write = None
        self._wire.hung_up(self)


class Wire:
    """A server engine over a store, and its lines. ``now`` is the one clock of them all."""

    def __init__(
        self,
        store: Store | None = None,
        *,
        folder: Path = Path(),
        tokens: Tokens | None = None,
        **options: int,
    ) -> None:
        self.now = NOW
        self.folder = folder
        self._replicas: list[Replica] = []
        self.tokens = tokens
        self.options = options
        self._lines: dict[int, Line] = {}
        self._conns = 0
        self.last_sync: list[Line] = []
        self.store: Any = None
        self.serve(store if store is not None else new_store())

    # The server.

    def serve(self, store: Store) -> None:
        """Start the server, over this store: whoever was connected is not any more."""
        for line in list(self._lines.values()):
            line.cut()
        self.store = store
        self.engine = ServerEngine(store, self.tokens, **self.options)

    def hung_up(self, line: Line) -> None:
        if self._lines.pop(line.conn, None) is not None:
            self.feed(Disconnected(line.conn))

    def feed(self, *inputs: Input) -> None:
        """Let the server deal with these, and put what it says onto the lines."""
        self._process(inputs)
        while (deadline := self.engine.next_deadline()) is not None and deadline <= self.now:
            self._process([Tick()])

    def _process(self, inputs: Iterable[Input]) -> None:
        for output in self.engine.process(inputs, self.now):
            line = self._lines.get(output.conn)
            if line is None:
                continue
            if isinstance(output, Send):
                line.to_client.append(output.data)
            elif isinstance(output, Close):
                del self._lines[output.conn]
                self._close(line, output)

    def _close(self, line: Line, close: Close) -> None:
        """What was said before a close arrives before it."""
        while line.to_client and line.up:
            data = line.to_client.popleft()
            line.do(lambda data=data: line.engine.receive(data, self.now))  # type: ignore[misc]
        line.cut(Reconnect(f"the server closed: {close.reason}"))

    # The clients.

    def replica(
        self, path: Path, client: str | None = None, *, skew: int = 0, **options: Any
    ) -> Replica:
        """A replica on this wire's clock, off by ``skew``; its randomness is that of its name."""
        replica = Replica(
            path,
            client_id=client,
            clock=lambda: self.now + skew,
            durability="normal",
            random_bytes=random.Random(f"{client} {path.name}").randbytes,
            **options,
        )
        self._replicas.append(replica)
        return replica

    def open(self, name: str, *, skew: int = 0, **options: Any) -> Replica:
        """The replica in the wire's folder; a fresh one has its name as its client id."""
        path = self.folder / name
        return self.replica(path, None if path.exists() else name, skew=skew, **options)

    def copy(self, replica: Replica, name: str) -> Replica:
        """A copy of a replica's file, opened as another machine would open it."""
        path = self.folder / name
        with replica._core.database.lock:
            replica._core.database.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            shutil.copy(replica.path, path)
        # The lease that was copied along would only make this one wait until it has run out.
        with contextlib.closing(sqlite3.connect(path)) as db, db:
            db.execute("DELETE FROM syncline_lease")
        return self.open(name)

    def close(self) -> None:
        """Hang up, and close the replicas."""
        for line in list(self._lines.values()):
            line.cut()
        for replica in self._replicas:
            replica.close()

    def connect(
        self, replica: Replica, *, token: str | None = None, only: Iterable[str] | None = None
    ) -> Line:
        """Connect, and say hello; nothing is delivered yet."""
        self._conns += 1
        signals: list[tuple[str, str, bytes, str]] = []
        line = Line(self, self._conns, replica, token, only, signals)
        self._lines[line.conn] = line
        self.feed(Connected(line.conn, f"line:{line.conn}"))
        return line

    def deliver(self) -> None:
        """Everything arrives, on all lines in turn, until nothing is on its way."""
        for _ in range(ROUNDS_MAX):
            lines = [line for line in self._lines.values() if line.to_server or line.to_client]
            if not lines:
                return
            for line in lines:
                if line.to_server and line.up:
                    line.send_one()
                if line.to_client and line.up:
                    line.receive_one()
        raise AssertionError("the ends talk without end")

    def advance(self, us: int) -> None:
        """Let time pass for everybody."""
        self.now += us
        self.feed(Tick())
        for line in list(self._lines.values()):
            line.do(lambda line=line: line.engine.tick(self.now))  # type: ignore[misc]

    def sync(self, replica: Replica, **options: Any) -> Line:
        """Connect as often as the engine asks for until all is said; then hang up.

        The line that said the last of it is returned; it ended for no other reason. All of them
        are in ``last_sync``.
        """
        self.last_sync = []
        for _ in range(SYNCS_MAX):
            line = self.connect(replica, **options)
            self.last_sync.append(line)
            line.deliver()
            while line.up and (held := [t.not_before for t in line.engine.tracks.values()]):
                if not any(held):
                    break
                self.advance(max(0, min(at for at in held if at) - self.now))
                line.deliver()
            if line.up:
                line.cut()
                return line
            assert isinstance(line.ended, Reconnect), line.ended
        raise AssertionError(f"still not synced: {line.ended}")

    # What each end holds.

    def log(self, session: str) -> list[Entry]:
        rows = self.store.entries(session, 0, 1 << 40, 1 << 40)
        return [Entry.decode(row.entry) for row in rows]

    def state(self, session: str) -> dict[str, Any]:
        """The server's materialised state, in bytes."""
        head = self.store.head(session)
        if head is None:
            return {"seq": 0, "records": {}, "conflicts": {}}
        part = self.store.snapshot(session, b"", "", 1, 1 << 40, 1 << 40)
        return {
            "seq": head.seq,
            "epoch": head.epoch if head.seq else None,
            "hash": head.hash,
            "records": {(row.collection, row.id): row.state for row in part.rows},
            "conflicts": {row.id: row.encode() for row in part.conflicts},
        }


def state_of(replica: Replica, session: str) -> dict[str, Any]:
    """A replica's state in the same form; its outbox must be empty."""
    with replica._core.database.reading() as db:
        key, gen, seq, epoch, hash_ = db.execute(
            "SELECT session, gen, seq, epoch, hash FROM syncline_sessions WHERE id=?", (session,)
        ).fetchone()
        waiting = db.execute("SELECT n FROM syncline_outbox WHERE session=?", (key,)).fetchall()
        assert waiting == [], f"ops {waiting} still wait in {replica}"
        rows = db.execute(
            "SELECT collection, id, state, base FROM syncline_records WHERE gen=?", (gen,)
        ).fetchall()
        assert [row[:2] for row in rows if row[3] is not None] == [], "a base without a pending op"
        conflicts = db.execute(
            "SELECT id, conflict, closing_n FROM syncline_conflicts WHERE gen=?", (gen,)
        ).fetchall()
        assert [row[0] for row in conflicts if row[2] is not None] == [], "closing without an op"
        (others,) = db.execute(
            "SELECT count(*) FROM syncline_records WHERE gen NOT IN"
            " (SELECT gen FROM syncline_sessions)"
        ).fetchone()
        assert others == 0, "rows of a generation that is gone"
    if seq == 0:
        return {"seq": 0, "records": {}, "conflicts": {}}
    return {
        "seq": seq,
        "epoch": epoch,
        "hash": hash_,
        "records": {(collection, id_): state for collection, id_, state, _ in rows},
        "conflicts": {id_: data for id_, data, _ in conflicts},
    }
