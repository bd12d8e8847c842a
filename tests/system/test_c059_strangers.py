"""C059: peers that never sign in cost little: large frames, idle sockets, bombs, floods.

The product's bounds before sign-in: frames of 64 KiB, the first of which must be a hello that is
right, 5 s for the handshake and 5 s for the hello, 256 sockets that wait (the oldest goes first),
4 s for a goodbye. There is no compression, so that no size is anything but what travelled.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from syncline.client import ReceiptState

from .strangers import LINGERING, PROMPT, Mischief, Stranger, bomb, frame, hello
from .support import ServerProcess, World, eventually

TOKEN = "the right one"
WAITING_S_MAX = 5 + 5 + 4
"""Handshake, hello, goodbye."""
SLACK_S = 6
"""For a machine that has other things to do."""
GROWTH_KIB_MAX = 100 << 10
LOG_LINES_MAX = 40


def _kib(process: ServerProcess, name: str) -> int:
    for line in Path(f"/proc/{process.child.pid}/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1])
    raise AssertionError(name)


def _open_files(process: ServerProcess) -> int:
    return len(os.listdir(f"/proc/{process.child.pid}/fd"))


class _Bystander:
    """B, who works as always: writes and measures how long each took to be settled."""

    def __init__(self, world: World) -> None:
        self.took: list[float] = []
        self._world = world
        self._session = world.session("b")
        self._end = threading.Event()
        self._connection = world.replica("b").connect(world.url, token=TOKEN)
        self._connection.wait_synced(20)
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def _work(self) -> None:
        while not self._end.wait(0.02):
            began = time.monotonic()
            receipt = self._session.put("notes", "r", {"i": len(self.took)})
            assert receipt.wait(30) is ReceiptState.APPLIED
            self.took.append(time.monotonic() - began)

    def finish(self) -> None:
        self._end.set()
        self._thread.join(40)
        self._connection.close()


@contextlib.contextmanager
def _undisturbed(world: World) -> Iterator[ServerProcess]:
    """A server and B; afterwards B was served in time, and the server is as it was."""
    log = world.folder / "server.log"
    process = world.start_process(token=TOKEN, log=log)
    bystander = _Bystander(world)
    try:
        eventually(lambda: len(bystander.took) > 5)
        files, memory = _open_files(process), _kib(process, "VmHWM")
        yield process
        eventually(lambda: _open_files(process) <= files, WAITING_S_MAX + SLACK_S)
    finally:
        bystander.finish()
    assert _kib(process, "VmHWM") - memory < GROWTH_KIB_MAX
    took = sorted(bystander.took)
    assert took[len(took) * 95 // 100] < 1.0
    assert len(log.read_text().splitlines()) <= LOG_LINES_MAX
    assert [entry.client for entry in world.log()] == ["b"] * len(took)
    world.sync(token=TOKEN)
    world.check()


async def _try(port: int, mischief: Mischief, seconds: float) -> Stranger:
    """Do it until the server has ended it."""
    stranger = await Stranger.come(port)
    try:
        async with asyncio.timeout(seconds):
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                await mischief(stranger)
            await stranger.ended()
    finally:
        stranger.go()
    return stranger


async def _gather(port: int, mischiefs: list[Mischief], seconds: float) -> list[Stranger]:
    return await asyncio.gather(*[_try(port, one, seconds) for one in mischiefs])


def test_C059_what_no_client_says_ends_its_connection_at_once(world: World) -> None:
    with _undisturbed(world) as process:
        strangers = asyncio.run(
            _gather(process.port, [mischief for mischief, _ in PROMPT.values()], 4 + SLACK_S)
        )
    codes = {name: one.close_code for name, one in zip(PROMPT, strangers, strict=True)}
    assert [name for name, (_, allowed) in PROMPT.items() if codes[name] not in allowed] == []


def _siege(world: World, count: int) -> None:
    """Silent sockets, and log-ins that fail and do not answer the goodbye, all at once."""

    async def crowd(port: int) -> None:
        silent = [await Stranger.come(port) for _ in range(count)]
        rude = []
        for n in range(count):
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                rude.append(await Stranger.come(port))
                await rude[-1].upgrade()
                await rude[-1].send(hello("wrong", f"c{n}"))
        await _gather(port, list(LINGERING.values()), WAITING_S_MAX + SLACK_S)
        for one in silent:
            async with asyncio.timeout(WAITING_S_MAX + SLACK_S):
                await one.ended()
        # The rude never read: that the server let go of them shows in its own table.
        await asyncio.to_thread(
            eventually, lambda: _open_files(process) <= files, WAITING_S_MAX + SLACK_S
        )
        for one in silent + rude:
            one.go()

    with _undisturbed(world) as process:
        files = _open_files(process)
        asyncio.run(crowd(process.port))


def test_C059_hundreds_that_wait_and_never_sign_in_disturb_nobody(world: World) -> None:
    _siege(world, 150)


@pytest.mark.long
def test_C059_thousands_that_wait_and_never_sign_in_disturb_nobody(world: World) -> None:
    _siege(world, 1000)


def test_C059_pings_whose_answers_nobody_takes_end_the_connection(world: World) -> None:
    """Before sign-in and after it: answers do not pile up."""

    async def flood(port: int, signs_in: bool) -> None:
        stranger = await Stranger.come(port)
        await stranger.upgrade()
        if signs_in:
            await stranger.send(hello(TOKEN))
        stranger.reader._transport.pause_reading()  # type: ignore[attr-defined]
        pings = frame(9, b"x" * 125) * 500
        sent = 0
        with contextlib.suppress(ConnectionError):
            while sent < 200 << 20:
                await stranger.send(pings)
                sent += len(pings)
        stranger.go()
        assert sent < 200 << 20

    async def both(port: int) -> None:
        async with asyncio.timeout(60):
            await asyncio.gather(flood(port, False), flood(port, True))

    with _undisturbed(world) as process:
        asyncio.run(both(process.port))


@pytest.mark.parametrize("megabytes", [50, pytest.param(1000, marks=pytest.mark.long)])
def test_C059_there_is_no_compression_after_sign_in_either(world: World, megabytes: int) -> None:
    async def send(port: int) -> None:
        stranger = await Stranger.come(port)
        await stranger.upgrade("Sec-WebSocket-Extensions: permessage-deflate")
        await stranger.send(hello(TOKEN))
        await stranger.send(frame(2, bomb(megabytes), compressed=True))
        async with asyncio.timeout(10):
            await stranger.ended()
        stranger.go()
        assert stranger.close_code == 1002

    with _undisturbed(world) as process:
        asyncio.run(send(process.port))
