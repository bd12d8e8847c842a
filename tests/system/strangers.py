"""Peers that are nobody: raw sockets that speak as much websocket as their mischief needs."""

from __future__ import annotations

import asyncio
import contextlib
import zlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from syncline.sync import PROTOCOL, Hello, encode_frame
from syncline.testing import Message, Way
from syncline.testing._link import CLOSE, Frames

from .support import now_us

TEXT, BINARY, PING = 1, 2, 9


def frame(opcode: int, payload: bytes, *, final: bool = True, compressed: bool = False) -> bytes:
    """A client's websocket frame, masked with zeros."""
    first = opcode | 0x80 * final | 0x40 * compressed
    size = len(payload)
    if size < 126:
        head = bytes([first, 0x80 | size])
    elif size < 1 << 16:
        head = bytes([first, 0x80 | 126]) + size.to_bytes(2, "big")
    else:
        head = bytes([first, 0x80 | 127]) + size.to_bytes(8, "big")
    return head + bytes(4) + payload


def hello(token: str | None, client: str = "stranger") -> bytes:
    return frame(
        BINARY,
        encode_frame(
            Hello(client=client, incarnation=1, nonce=b"n" * 16, token=token, clock=now_us())
        ),
    )


def hello_with_token_of(size: int) -> bytes:
    """A hello that no encoder of ours makes."""
    data = encode_frame(Hello(client="c", incarnation=1, nonce=b"n" * 16, token="TOKEN", clock=1))
    assert b"\xa5TOKEN" in data
    return frame(
        BINARY, data.replace(b"\xa5TOKEN", b"\xdb" + size.to_bytes(4, "big") + b"x" * size)
    )


def bomb(megabytes: int) -> bytes:
    """Zeros, deflated: a thousandth of what comes out."""
    squeeze = zlib.compressobj(9, zlib.DEFLATED, -15)
    zeros = bytes(1 << 20)
    return b"".join(squeeze.compress(zeros) for _ in range(megabytes)) + squeeze.flush(
        zlib.Z_SYNC_FLUSH
    ).removesuffix(b"\x00\x00\xff\xff")


@dataclass
class Stranger:
    """One socket. ``close_code`` is what the server closed with, if it said one."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    port: int
    close_code: int | None = None
    answer: bytes = b""
    frames: Frames = field(default_factory=lambda: Frames(0, Way.TO_CLIENT))

    @classmethod
    async def come(cls, port: int) -> Stranger:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        return cls(reader, writer, port)

    async def upgrade(self, *headers: str) -> None:
        """The websocket handshake, which the server takes."""
        lines = [
            "GET / HTTP/1.1",
            f"Host: 127.0.0.1:{self.port}",
            "Upgrade: websocket",
            "Connection: Upgrade",
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
            "Sec-WebSocket-Version: 13",
            f"Sec-WebSocket-Protocol: {PROTOCOL}",
            *headers,
        ]
        await self.send("\r\n".join(lines).encode() + b"\r\n\r\n")
        self.answer = await self.reader.readuntil(b"\r\n\r\n")
        list(self.frames.feed(self.answer))
        assert self.answer.startswith(b"HTTP/1.1 101 ")

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def ended(self) -> None:
        """Read on until the server has closed the socket."""
        with contextlib.suppress(ConnectionError):
            while data := await self.reader.read(1 << 16):
                for item in self.frames.feed(data):
                    if isinstance(item, Message) and item.opcode == CLOSE:
                        self.close_code = int.from_bytes(item.payload[:2], "big")

    def go(self) -> None:
        self.writer.transport.abort()


Mischief = Callable[[Stranger], Awaitable[None]]


def _after_upgrade(*data: bytes) -> Mischief:
    async def act(stranger: Stranger) -> None:
        await stranger.upgrade()
        for part in data:
            await stranger.send(part)

    return act


async def _fragments(stranger: Stranger) -> None:
    await stranger.upgrade()
    await stranger.send(frame(BINARY, b"x" * 1000, final=False))
    while True:
        await stranger.send(frame(0, b"x" * 1000, final=False))


async def _empty_fragments(stranger: Stranger) -> None:
    await stranger.upgrade()
    await stranger.send(frame(BINARY, b"", final=False))
    while True:
        await stranger.send(frame(0, b"", final=False) * 100)
        await asyncio.sleep(0.01)


async def _byte_by_byte(stranger: Stranger) -> None:
    for byte in b"GET / HTTP/1.1\r\nHost: x\r\n" * 10:
        await stranger.send(bytes([byte]))
        await asyncio.sleep(0.5)


async def _slow_hello(stranger: Stranger) -> None:
    await stranger.upgrade()
    for byte in frame(BINARY, b"x" * 1000):
        await stranger.send(bytes([byte]))
        await asyncio.sleep(0.5)


async def _pings(stranger: Stranger) -> None:
    await stranger.upgrade()
    while True:
        await stranger.send(frame(PING, b"x" * 125) * 20)
        await stranger.reader.read(1 << 16)


async def _deflated(stranger: Stranger) -> None:
    await stranger.upgrade("Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits")
    assert b"permessage-deflate" not in stranger.answer
    await stranger.send(frame(BINARY, bomb(50), compressed=True))


async def _deflated_fragments(stranger: Stranger) -> None:
    await stranger.upgrade("Sec-WebSocket-Extensions: permessage-deflate")
    data = bomb(50)
    await stranger.send(frame(BINARY, data[:1000], final=False, compressed=True))
    for at in range(1000, len(data), 1000):
        await stranger.send(frame(0, data[at : at + 1000], final=False))


MANY_KEYS = (
    b"\xdf"
    + (1 << 20).to_bytes(4, "big")
    + b"".join(b"\xa4" + f"{n:04x}"[-4:].encode() + b"\x01" for n in range(10_000))
)

PROMPT: dict[str, tuple[Mischief, set[int | None]]] = {
    "a frame of 1 MB": (_after_upgrade(frame(BINARY, b"x" * (1 << 20))), {1009, None}),
    "100 of 64 KB": (_after_upgrade(*[frame(BINARY, b"x" * (64 << 10))] * 100), {1007, None}),
    "10,000 tiny ones": (_after_upgrade(frame(BINARY, b"x") * 10_000), {1007, None}),
    "endless fragments": (_fragments, {1009, None}),
    "text": (_after_upgrade(frame(TEXT, b"hello")), {1007}),
    "no map": (_after_upgrade(frame(BINARY, b"\xa5hello")), {1007}),
    "a million keys": (_after_upgrade(frame(BINARY, MANY_KEYS[: 60 << 10])), {1007}),
    "10,000 deep": (_after_upgrade(frame(BINARY, b"\x91" * 10_000 + b"\xc0")), {1007}),
    "a token of 1 MB": (_after_upgrade(hello_with_token_of(1 << 20)), {1009, None}),
    "a token of 60 KB": (_after_upgrade(hello_with_token_of(60_000)), {1007, 1008}),
    "a wrong token": (_after_upgrade(hello("wrong")), {1008}),
    "no token": (_after_upgrade(hello(None)), {1008}),
    "deflated": (_deflated, {1002, None}),
    "deflated fragments": (_deflated_fragments, {1002, None}),
}
"""Refused as soon as it is seen, and with which code (None: a reset may overtake the word)."""


async def _nothing(stranger: Stranger) -> None:
    return None


LINGERING: dict[str, Mischief] = {
    "says nothing": _nothing,
    "upgrades and says nothing": _after_upgrade(),
    "byte by byte": _byte_by_byte,
    "a slow hello": _slow_hello,
    "pings": _pings,
    "empty fragments": _empty_fragments,
}
"""Ended by the clock."""
