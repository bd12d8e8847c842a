"""A server engine in virtual time, and clients made by hand: frames in, frames out, no sockets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256

from syncline.server import (
    Close,
    Connected,
    Disconnected,
    Drained,
    Input,
    MemoryStore,
    Output,
    Received,
    Send,
    ServerEngine,
    Store,
    Tick,
    Tokens,
)
from syncline.sync import (
    Change,
    Dot,
    Entries,
    Entry,
    Frame,
    Hello,
    Mark,
    Op,
    Open,
    Opened,
    Patch,
    Push,
    Put,
    ToClient,
    Value,
    VoidOp,
    Welcome,
    decode_to_client,
    encode_body,
    encode_frame,
    encode_op,
    walk_chain,
)

NOW = 1_700_000_000_000_000
NONCE = b"n" * 16


def salt_of(name: str) -> bytes:
    return sha256(name.encode()).digest()[:16]


def make_op(
    n: int,
    *changes: Change,
    at: int = NOW,
    stamps: Sequence[int] | None = None,
    salt: str | None = None,
    former: Dot | None = None,
) -> Op:
    """An op of these changes, each stamped ``at``; its salt, unless given, is made of the op."""
    stamps = tuple(stamps) if stamps is not None else (at,) * len(changes)
    return Op(n, salt_of(salt or f"op {n} {changes!r}"), stamps, encode_body(changes), former)


def put(id_: str = "r1", context: Mapping[str, int] | None = None, **fields: Value) -> Put:
    return Put("notes", id_, context or {}, fields)


def patch(id_: str = "r1", context: Mapping[str, int] | None = None, **fields: Value) -> Patch:
    return Patch("notes", id_, context or {}, fields)


class HandClient:
    """One connection. ``reads`` off: nothing that is sent to it leaves."""

    def __init__(self, server: HandServer, conn: int) -> None:
        self._server = server
        self.conn = conn
        self.reads = True
        self.unsent_bytes = 0
        self.closed: Close | None = None
        self._frames: list[ToClient] = []

    def send(self, *frames: Frame) -> None:
        """These frames, all at once."""
        self.send_raw(*(encode_frame(frame) for frame in frames))

    def send_raw(self, *messages: bytes | str) -> None:
        self._server.feed(*(Received(self.conn, message) for message in messages))

    def take(self) -> list[ToClient]:
        """The frames that came since the last time."""
        frames, self._frames = self._frames, []
        return frames

    def got(self, frame: ToClient) -> None:
        self._frames.append(frame)

    def ask(self, frame: Frame) -> ToClient:
        """The one answer to a frame."""
        self.take()
        self.send(frame)
        (answer,) = self.take()
        return answer

    def open(self, session: str, seq: int = 0, hash_: bytes | None = None) -> Opened:
        """Open a session; entries that follow at once are left to be taken."""
        self.take()
        self.send(Open(session=session, epoch=1, seq=seq, hash=hash_))
        opened = self._frames.pop(0)
        assert isinstance(opened, Opened), opened
        return opened

    def push(self, session: str, *ops: Op | VoidOp) -> list[ToClient]:
        """Push, and what comes back."""
        self.take()
        self.send(push_of(session, *ops))
        return self.take()

    def drain(self, bytes_sent: int | None = None) -> None:
        self._server.feed(Drained(self.conn, bytes_sent or self.unsent_bytes))

    def hang_up(self) -> None:
        self._server.feed(Disconnected(self.conn))


class HandServer:
    """An engine over a store, its clock, and its connections."""

    def __init__(self, store: Store | None = None, tokens: Tokens | None = None, **options: int):
        self.store = store if store is not None else MemoryStore()
        self.engine = ServerEngine(self.store, tokens, **options)
        self.now = NOW
        self.calls = 0
        self._clients: dict[int, HandClient] = {}
        self._incarnations: dict[str, int] = {}

    def connect(self) -> HandClient:
        """A connection that has not said anything."""
        client = HandClient(self, len(self._clients) + 1)
        self._clients[client.conn] = client
        self.feed(Connected(client.conn, f"peer:{client.conn}"))
        return client

    def hello(self, name: str, token: str | None = None, incarnation: int | None = None) -> Hello:
        """The next hello of a client."""
        if incarnation is None:
            incarnation = self._incarnations.get(name, 0) + 1
        self._incarnations[name] = incarnation
        return Hello(client=name, incarnation=incarnation, nonce=NONCE, token=token, clock=1)

    def sign_in(self, name: str, token: str | None = None) -> HandClient:
        client = self.connect()
        assert isinstance(client.ask(self.hello(name, token)), Welcome)
        return client

    def feed(self, *inputs: Input) -> list[Output]:
        """One call of the engine, and those that it asks for at once or that reading causes."""
        outputs = self._process(inputs)
        fed = list(outputs)
        while outputs or self._is_due():
            drained = [
                Drained(client.conn, client.unsent_bytes)
                for client in self._clients.values()
                if client.reads and client.unsent_bytes
            ]
            if not drained and not self._is_due():
                break
            outputs = self._process(drained or [Tick()])
            fed += outputs
        return fed

    def _is_due(self) -> bool:
        deadline = self.engine.next_deadline()
        return deadline is not None and deadline <= self.now

    def _process(self, inputs: Sequence[Input]) -> list[Output]:
        self.calls += 1
        for item in inputs:
            if isinstance(item, Drained):
                self._clients[item.conn].unsent_bytes -= item.bytes_sent
        outputs = self.engine.process(inputs, self.now)
        for output in outputs:
            client = self._clients[output.conn]
            if isinstance(output, Send):
                assert client.closed is None, "something was sent after a close"
                frame = decode_to_client(output.data)
                assert frame is not None
                client.got(frame)
                client.unsent_bytes += len(output.data)
            elif isinstance(output, Close):
                client.closed = output
                client.unsent_bytes = 0
        return outputs


def push_of(session: str, *ops: Op | VoidOp) -> Push:
    return Push(session=session, ops=tuple(encode_op(op) for op in ops))


def mark(id_: int = 1) -> Mark:
    return Mark(id=id_)


def entries_in(frames: Sequence[Frame]) -> list[Entry]:
    """The entries of these frames, which must follow on each other and on the chain."""
    entries: list[Entry] = []
    previous: bytes | None = None
    for frame in frames:
        assert isinstance(frame, Entries), frame
        page = [Entry.decode(data) for data in frame.entries]
        assert page[0].seq == frame.seq
        assert previous is None or frame.previous == previous
        for entry, hash_ in walk_chain(page, frame.previous):
            assert not entries or entry.seq == entries[-1].seq + 1
            entries.append(entry)
            previous = hash_
    return entries


def filled(server: HandServer, session: str, count: int, bytes_each: int = 0) -> HandClient:
    """A client that has pushed so many ops, each to a record of its own."""
    ann = server.sign_in("ann")
    ann.open(session)
    ops = [make_op(n, put(f"r{n}", text="x" * bytes_each)) for n in range(1, count + 1)]
    for start in range(0, count, 500):
        ann.push(session, *ops[start : start + 500])
    return ann
