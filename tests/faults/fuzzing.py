"""What is fuzzed, and what must hold whatever comes: three targets with one interface.

A target takes frames until its round is over, then ``finish`` looks at what is left. Anything
raised that the product does not promise is the finding; it carries the seed of its round. No round
depends on another, so a seed and a target's name play any finding again.
"""

from __future__ import annotations

import random
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.client.wire import IN_MEMORY, Line, Wire, new_store, restored, state_of
from tests.server.hand_client import HandClient, HandServer, entries_in, make_op, push_of, put

from syncline.cli.verify import verify_file
from syncline.server import Drained, SqliteStore, Store, Transaction
from syncline.sync import (
    FRAME_BYTES_BEFORE_SIGN_IN_MAX,
    Common,
    Effect,
    Entries,
    Entry,
    Frame,
    Record,
    SnapshotPage,
    SyncError,
    decode_body,
    decode_conflict,
    decode_op,
    decode_to_client,
    decode_to_server,
)

from . import hostile
from .frames_in import CLIENTS, SESSIONS, Writer

ROUND_FRAMES = 200


class Finding(AssertionError):
    """Something that must not be, with the line that plays it again."""


@dataclass(slots=True)
class Tally:
    """What a run did. ``slowest_us`` is the most CPU time that one frame took."""

    frames: int = 0
    rounds: int = 0
    slowest_us: dict[str, int] = field(default_factory=dict)
    reached: dict[str, int] = field(default_factory=dict)

    def reach(self, what: str) -> None:
        self.reached[what] = self.reached.get(what, 0) + 1

    @contextmanager
    def timed(self, what: str) -> Iterator[None]:
        began = time.thread_time_ns()
        yield
        took = (time.thread_time_ns() - began) // 1000
        self.slowest_us[what] = max(self.slowest_us.get(what, 0), took)


# Decoders.

_DECODERS: tuple[tuple[str, Callable[[Any], object]], ...] = (
    ("to server", decode_to_server),
    ("to client", decode_to_client),
    ("op", decode_op),
    ("body", decode_body),
    ("entry", lambda data: Entry.decode(data).read()),
    ("record", lambda data: Record.decode(data).encode()),
    ("conflict", lambda data: decode_conflict(data).encode()),
    ("effect", lambda data: _effect(data)),
)


def _effect(data: bytes) -> object:
    effect = Effect.decode(hostile.unpack(data))
    return None if effect is None else effect.encode()


def fuzz_decoders(seed: int, frames: int, tally: Tally) -> None:
    """Every decoder takes anything, and raises nothing but errors of the tree.

    What it lets through can be encoded again: nothing that the product cannot handle gets in.
    """
    rng = random.Random(f"decoders {seed}")
    good = _good_bytes(rng)
    for _ in range(frames):
        name, decode = rng.choice(_DECODERS)
        data: bytes | str
        if rng.random() < 0.8:
            data = hostile.spoil(rng, rng.choice(good[name]))
        else:
            data = hostile.garbage(rng)
        if isinstance(data, str) and not name.startswith("to "):
            data = data.encode("utf-8", "surrogatepass")
        with tally.timed(f"decode {name}"):
            try:
                decode(data)
                tally.reach(f"{name}: decoded")
            except SyncError as error:
                tally.reach(f"{name}: {error.code}")
        tally.frames += 1


def _good_bytes(rng: random.Random) -> dict[str, list[bytes]]:
    """Good bytes for each decoder."""
    writer = Writer(rng, "ann", 1_700_000_000_000_000)
    frames = [writer.hello(), *(writer.frame() for _ in range(60))]
    ops = [op for data in frames for op in hostile.unpack(data).get("ops", ())]
    bodies = [tree[3] for op in ops if len(tree := hostile.unpack(op)) == 5]
    stamp = [5, "ann", 1]
    states = [[{"ann": 1}, True, stamp, True, {"a": 1, "b": [1]}, {"a": [4, "cyd", 2]}]]
    lost = ["a", 1, stamp, [6, "cyd", 1]]
    effect = [3, {"a": 1}, ["b"], False, True, {"ann": 1, "cyd": 1}, [lost]]
    salt = b"s" * 16
    entries = [
        [1, seq, "ann", seq, 0, 5, salt, hostile.pack([[5], [effect]]), body]
        for seq, body in enumerate(bodies, 1)
    ]
    entries += [[1, 1, "ann", 1, 0, 5, salt, hostile.pack([[5], None]), body] for body in bodies]
    conflicts = [
        ["c" * 20, "notes", "r1", "a", {"x": [1]}, stamp, stamp],
        ["c" * 20, ["ann", 1]],
    ]
    packed: dict[str, list[Any]] = {
        "entry": entries,
        "record": states,
        "conflict": conflicts,
        "effect": [effect],
    }
    good = {name: [hostile.pack(tree) for tree in trees] for name, trees in packed.items()}
    answers = _answers(good, salt)
    return {**good, "to server": frames, "to client": answers, "op": ops, "body": bodies}


def _answers(good: dict[str, list[bytes]], salt: bytes) -> list[bytes]:
    """Frames of every type that a server sends."""
    hash_ = bytes(32)
    page = {"session": "s1", "seq": 1, "previous": hash_, "entries": good["entry"][:3]}
    trees: Sequence[dict[str, Any]] = (
        {"type": "welcome", "version": 1, "nonce": salt, "store": "st", "epoch": 1, "clock": 5,
         "op_bytes_max": 4 << 20, "ahead_us_max": 60_000_000},
        {"type": "sessions", "items": [["s1", "label", 1, 4]], "page": True, "more": False},
        {"type": "opened", "session": "s1", "stand": "catch_up", "genesis": hash_, "epoch": 1,
         "head": 4, "hash": hash_, "floor": 0, "last": 0, "running": hash_},
        {"type": "entries", **page},
        {"type": "history_page", **page},
        {"type": "common", "session": "s1", "seq": 2},
        {"type": "snapshot_page", "session": "s1", "epoch": 1, "seq": 4, "hash": hash_,
         "rows": [["notes", "r1", 3, good["record"][0]]], "conflicts": good["conflict"],
         "entries": [[hash_, good["entry"][0]]], "after": None, "vector": {"ann": 2}},
        {"type": "refused", "session": "s1", "n": 1, "code": 3002, "reason": "no", "detail": {},
         "final": True, "entry": None, "hash": None},
        {"type": "refused", "session": "s1", "n": 1, "code": 0, "reason": "", "detail": {},
         "final": True, "entry": good["entry"][0], "hash": hash_},
        {"type": "marked", "id": 1, "heads": [["s1", 1, 4]]},
        {"type": "signal", "session": "s1", "kind": "typing", "payload": b"x", "client": "cyd"},
        {"type": "error", "session": "s1", "code": 3018, "reason": "busy", "detail": {},
         "retry_after_ms": 5},
    )  # fmt: skip
    return [hostile.pack(tree) for tree in trees]


# The server's engine.


class _CountedStore:
    """A store that counts the transactions which changed something."""

    _CHANGING = frozenset(
        "create append put_records put_conflicts put_refusals set_last_ops set_head"
        " set_incarnation write_ledger".split()
    )

    def __init__(self, store: Store) -> None:
        self._store = store
        self.changes = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        with self._store.transaction() as tx:
            counted = _CountedTransaction(tx, self._CHANGING)
            yield counted
        self.changes += counted.changed


class _CountedTransaction:
    def __init__(self, tx: Transaction, changing: frozenset[str]) -> None:
        self._tx = tx
        self._changing = changing
        self.changed = False

    def __getattr__(self, name: str) -> Any:
        self.changed = self.changed or name in self._changing
        return getattr(self._tx, name)


class ServerRound:
    """One attacker, signed in or not, against a server on a file, and one who must not notice."""

    def __init__(self, seed: int, folder: Path, tally: Tally) -> None:
        self._rng = random.Random(f"server {seed}")
        self._tally = tally
        self._path = folder / "server.db"
        self._store = SqliteStore(self._path)
        self._counted = _CountedStore(self._store)
        self._server = HandServer(self._counted)
        self._writers = {name: Writer(self._rng, name, self._server.now) for name in CLIENTS}
        self._bob = self._server.sign_in("bob")
        for session in SESSIONS:
            self._bob.open(session)
            op = make_op(1, put("r1", a=1), put("r2", b="x"))
            entries_in(self._bob.push(session, op))
        self._seqs = dict.fromkeys(SESSIONS, 1)
        self._hashes = {session: self._head_hash(session) for session in SESSIONS}
        self._attacker: HandClient | None = None
        self._writer = self._writers[CLIENTS[0]]
        self._signed_in = False

    def _head_hash(self, session: str) -> bytes:
        head = self._store.head(session)
        assert head is not None
        return head.hash

    def step(self) -> None:
        """One frame, and what must hold after it."""
        attacker = self._attacker or self._connect()
        data = self._next_frame()
        before, was_signed_in = self._counted.changes, self._signed_in
        self._tally.frames += 1
        # The gateway takes nothing larger from strangers.
        if not was_signed_in:
            data = data[:FRAME_BYTES_BEFORE_SIGN_IN_MAX]
        with self._tally.timed("server signed in" if was_signed_in else "server stranger"):
            attacker.send_raw(data)
        for frame in attacker.take():
            self._answered(frame)
        if attacker.closed is not None:
            assert self._counted.changes == before, "a frame that ended its connection left a trace"
            self._tally.reach(f"server: closed {attacker.closed.code}")
            attacker.hang_up()
            self._attacker = None
        elif not was_signed_in:
            assert self._signed_in, "a stranger said something and stays a stranger"
        assert self._bob.closed is None, "somebody else was closed"
        self._bystander()

    def _connect(self) -> HandClient:
        rng = self._rng
        self._attacker = self._server.connect()
        self._signed_in = False
        self._writer = self._writers[rng.choice(CLIENTS)]
        if rng.random() < 0.7:
            self._attacker.send_raw(self._writer.hello())
            for session in rng.sample(SESSIONS, 2):
                self._attacker.send_raw(self._writer.open(session))
            for frame in self._attacker.take():
                self._answered(frame)
            if self._attacker.closed is not None:
                # A hello that was spoiled has used a later incarnation up.
                self._writer.incarnation += 1000
                return self._connect()
        return self._attacker

    def _next_frame(self) -> bytes | str:
        rng, writer = self._rng, self._writer
        for session in SESSIONS:
            last = self._store.last_op(session, writer.client)
            writer.expects(session, 1 if last is None else last.n + 1)
        if not self._signed_in:
            hello = writer.hello()
            return hostile.spoil(rng, hello) if rng.random() < 0.7 else hostile.garbage(rng)
        kind = rng.random()
        if kind < 0.05:
            return hostile.garbage(rng)
        good = writer.frame()
        return good if kind < 0.5 else hostile.spoil(rng, good)

    def _answered(self, frame: Frame) -> None:
        kind = getattr(frame, "type", "")
        code = getattr(frame, "code", None)
        self._tally.reach(f"server: {kind}" if code is None else f"server: {kind} {code}")
        if kind == "welcome":
            self._signed_in = True
        if code == 3018:
            raise AssertionError(f"a bug, answered as busy: {frame}")

    def _bystander(self) -> None:
        """The bystander sees every log go on, dense and chained."""
        for frame in self._bob.take():
            if not isinstance(frame, Entries) or frame.session not in self._seqs:
                continue
            session = frame.session
            assert frame.seq == self._seqs[session] + 1, "a hole in what a bystander is sent"
            assert frame.previous == self._hashes[session], "a break in the chain"
            for entry in entries_in([frame]):
                self._hashes[session] = entry.hash(self._hashes[session])
                self._seqs[session] = entry.seq

    def finish(self) -> None:
        """The bystander still works, nothing is kept of the dead, and the file verifies."""
        if self._attacker is not None:
            self._attacker.hang_up()
        for session in SESSIONS:
            last = self._store.last_op(session, "bob")
            assert last is not None
            n = last.n + 1
            self._bob.send(push_of(session, make_op(n, put(f"own{n}", a=n))))
        self._bystander()
        for session in SESSIONS:
            assert self._hashes[session] == self._head_hash(session)
        engine = self._server.engine
        assert list(engine._peers) == [self._bob.conn] and not engine._unread
        assert list(engine._peers_by_client) == ["bob"]
        self._bob.hang_up()
        assert not engine._peers and not engine._hub._subscribers and not engine._drain_due
        self._store.close()
        assert verify_file(self._path).all_problems() == []

    def close(self) -> None:
        self._store.close()


# The client's engine.


class ClientRound:
    """A replica whose line is in hostile hands: good frames go on, are spoiled, lost, or made up.

    The client may end any connection for it. It must not fail otherwise, lose a write, or be
    unable to sync when the line is honest again.
    """

    def __init__(self, seed: int, folder: Path, tally: Tally) -> None:
        self._rng = rng = random.Random(f"client {seed}")
        self._tally = tally
        self._wire = Wire(new_store(), folder=folder, bootstrap_entries_min=rng.choice((4, 1000)))
        self._honest = self._wire.open("honest")
        self._victim = self._wire.open("victim")
        self._receipts: list[bytes] = []
        self._line: Line | None = None
        self._epoch = 1
        self._misled = False
        self._write(self._honest, 8)
        self._wire.sync(self._honest)
        self._kept = restored(self._wire.store, 1)
        self._seen: list[bytes] = []

    def _write(self, replica: Any, count: int) -> None:
        rng = self._rng
        for _ in range(count):
            session = replica.session(rng.choice(("s1", "s2")))
            key = f"r{rng.randrange(4)}"
            match rng.randrange(6):
                case 0:
                    receipt = session.delete("notes", key)
                case 1:
                    receipt = session.append("said", {"n": rng.randrange(9)})
                case 2 if session.get("notes", key) is not None:
                    receipt = session.patch("notes", key, {"b": rng.randrange(9)})
                case 3 if session.conflicts():
                    receipt = session.resolve_conflict(session.conflicts()[0].id, "local")
                case _:
                    receipt = session.put("notes", key, {"a": rng.randrange(9), "b": "x"})
            if replica is self._victim:
                self._receipts.append(bytes.fromhex(receipt.id))

    def step(self) -> None:
        """One frame to the victim."""
        rng = self._rng
        self._tally.frames += 1
        self._wire.now += rng.randrange(100_000)
        if rng.random() < 0.05:
            self._write(self._victim, 1)
        if rng.random() < 0.01:
            self._write(self._honest, 3)
            self._wire.sync(self._honest)
        if rng.random() < 0.003:
            self._epoch += 1
            self._wire.serve(restored(self._kept, self._epoch))
            self._line = None
        line = self._line
        if line is None or not line.up:
            if line is not None:
                self._tally.reach(f"client: {type(line.ended).__name__}")
            line = self._line = self._wire.connect(self._victim)
        while line.to_server and line.up:
            line.send_one()
        if not line.up:
            return
        data = self._next_frame(line)
        with self._tally.timed("client"):
            if isinstance(data, str):
                line.do(lambda: line.engine.receive(data, self._wire.now))
            else:
                line.receive(data)
        if line.up and line.engine.broken is not None:
            self._tally.reach("client: broken")
        if rng.random() < 0.02:
            self._wire.advance(rng.choice((1, 400_000, 4_000_000)))

    def _next_frame(self, line: Line) -> bytes | str:
        rng = self._rng
        kind = rng.random()
        if kind < 0.01:
            return hostile.garbage(rng)
        if line.to_client:
            data = line.to_client[0]
            if kind > 0.03:
                # Taken by the wire as if it had arrived, so that the server goes on.
                line.to_client.popleft()
                self._wire.feed(Drained(line.conn, len(data)))
            self._seen = [*self._seen[-60:], data]
            frame = decode_to_client(data)
            self._tally.reach(f"client: {getattr(frame, 'type', '')}")
            return data if kind < 0.85 else self._spoiled(line, data)
        # Nothing is on its way: write, or say again what was said before, or almost.
        self._write(self._victim, 1)
        if not self._seen or kind < 0.6:
            return hostile.pack({"type": "nothing new"})
        data = rng.choice(self._seen)
        return data if kind < 0.8 else self._spoiled(line, data)

    def _spoiled(self, line: Line, data: bytes) -> bytes | str:
        """Anything but a lie about which history both share: nobody could see through that.

        Nor through one about the rows of a snapshot, which no chain covers: it is told, and what
        it makes of the replica is not looked at.
        """
        spoiled = hostile.spoil(self._rng, data)
        try:
            frame = decode_to_client(spoiled)
        except SyncError:
            return spoiled
        if isinstance(frame, Common) and frame.session in line.engine.tracks:
            if frame.seq in (0, *line.engine.tracks[frame.session].asked):
                return data
        if isinstance(frame, SnapshotPage) and frame != decode_to_client(data):
            self._misled = True
        return spoiled

    def finish(self) -> None:
        """Every write is somewhere, and an honest line brings both to one state."""
        if self._line is not None:
            self._line.cut()
        core = self._victim._core
        lost = [salt for salt in self._receipts if not core.knows(salt)]
        assert lost == [] or self._misled, f"{len(lost)} writes are nowhere"
        for replica in (self._victim, self._honest, self._victim, self._honest):
            self._wire.sync(replica)
        for session in ("s1", "s2"):
            if self._wire.store.head(session) is None:
                continue
            there = self._wire.state(session)
            assert state_of(self._honest, session) == there, "an honest replica differs"
            healed = self._misled or state_of(self._victim, session) == there
            assert healed, "the replica does not heal"

    def close(self) -> None:
        self._wire.close()


TARGETS: dict[str, Callable[[int, Path, Tally], ServerRound | ClientRound]] = {
    "server": ServerRound,
    "client": ClientRound,
}
SHARES = {"decoders": 5, "server": 3, "client": 2}
"""Of ten rounds."""


def play(name: str, seed: int, tally: Tally, frames: int = ROUND_FRAMES) -> None:
    """One round. Raises Finding with the line that plays it again."""
    tally.rounds += 1
    before = tally.frames
    folder = Path(tempfile.mkdtemp(prefix="syncline-fuzz-", dir=IN_MEMORY))
    try:
        if name == "decoders":
            fuzz_decoders(seed, frames, tally)
            return
        with closing(TARGETS[name](seed, folder, tally)) as round_:
            for _ in range(frames):
                round_.step()
            round_.finish()
    except Exception as error:
        at = tally.frames - before
        again = f"python -m benchmarks.fuzz --target {name} --seed {seed} --frames {frames}"
        raise Finding(f"frame {at}: {type(error).__name__}: {error} (again: {again})") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def schedule(first_seed: int, frames: int) -> Iterator[tuple[str, int, int]]:
    """``(target, seed, frames)`` of the rounds that make so many frames."""
    order = [name for name, share in SHARES.items() for _ in range(share)]
    left, seed = frames, first_seed
    while left > 0:
        count = min(left, ROUND_FRAMES)
        yield order[seed % len(order)], seed, count
        left -= count
        seed += 1
