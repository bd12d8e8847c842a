"""A client made by hand: a raw websocket and single frames, for what no honest client does."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from hashlib import sha256
from types import TracebackType
from typing import Self, TypeVar

from websockets.sync.client import ClientConnection, connect
from websockets.typing import Subprotocol

from syncline.sync import (
    FRAME_BYTES_MAX,
    PROTOCOL,
    Change,
    Dot,
    Entries,
    Entry,
    Frame,
    Hello,
    Mark,
    Marked,
    Op,
    Open,
    Opened,
    OpRefused,
    Push,
    Put,
    ToClient,
    Value,
    Welcome,
    decode_to_client,
    encode_body,
    encode_frame,
    encode_op,
)

from .support import SESSION, now_us

F = TypeVar("F", bound=Frame)
NONCE = b"n" * 16


def make_op(
    n: int, *changes: Change, at: int, salt: str | None = None, former: Dot | None = None
) -> Op:
    """An op whose salt is that of its number unless given."""
    bits = sha256((salt or f"op {n}").encode()).digest()[:16]
    return Op(n, bits, (at,) * len(changes), encode_body(changes), former)


def put(id_: str, context: dict[str, int] | None = None, **fields: Value) -> Put:
    return Put("notes", id_, context or {}, fields)


class Hand:
    """One connection. Signs in as ``client`` at once, unless that is empty."""

    def __init__(self, url: str, client: str = "hand", *, incarnation: int = 1) -> None:
        self._stack = ExitStack()
        self.socket: ClientConnection = self._stack.enter_context(
            connect(
                url,
                subprotocols=[Subprotocol(PROTOCOL)],
                compression=None,
                max_size=FRAME_BYTES_MAX,
                close_timeout=1,
            )
        )
        self._marks = 0
        if client:
            self.send(Hello(client=client, incarnation=incarnation, nonce=NONCE, clock=now_us()))
            self.welcome = self.until(Welcome)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def send(self, *frames: Frame) -> None:
        for frame in frames:
            self.socket.send(encode_frame(frame))

    def receive(self, timeout: float = 10.0) -> ToClient:
        """The next frame. Raises ConnectionClosed or TimeoutError."""
        data = self.socket.recv(timeout)
        frame = decode_to_client(data)
        assert frame is not None
        return frame

    def until(self, kind: type[F], timeout: float = 10.0) -> F:
        """The next frame of this kind; those before it are dropped."""
        while True:
            frame = self.receive(timeout)
            if isinstance(frame, kind):
                return frame

    def open(self, session: str = SESSION, seq: int = 0, hash_: bytes | None = None) -> Opened:
        self.send(Open(session=session, epoch=1, seq=seq, hash=hash_))
        return self.until(Opened)

    def push(self, *ops: Op, session: str = SESSION) -> list[OpRefused | Entry]:
        """Push, and what the server says of it: refusals, and entries in their order."""
        self.send(Push(session=session, ops=tuple(encode_op(op) for op in ops)))
        self._marks += 1
        self.send(Mark(id=self._marks))
        said: list[OpRefused | Entry] = []
        while not isinstance(frame := self.receive(), Marked):
            if isinstance(frame, OpRefused):
                said.append(frame)
            elif isinstance(frame, Entries):
                said += [Entry.decode(entry) for entry in frame.entries]
        return said

    def entries(self, through: int, timeout: float = 10.0) -> list[Entry]:
        """Live entries as they arrive, until the one with this seq."""
        found: list[Entry] = []
        while not found or found[-1].seq < through:
            frame = self.until(Entries, timeout)
            found += [Entry.decode(entry) for entry in frame.entries]
        return found


def codes(said: Sequence[OpRefused | Entry]) -> list[int]:
    """The codes of the refusals among what a push brought."""
    return [item.code for item in said if isinstance(item, OpRefused)]
