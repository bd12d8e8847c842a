"""Peers that cost a server something and give nothing, against a real server process."""

from __future__ import annotations

import base64
import os
import resource
import signal
import socket
import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from tests.faults.killing import free_port
from tests.faults.nursery import SESSION, Nursery
from tests.system.support import World, eventually

from syncline.server._gateway import WAITING_PEERS_MAX
from syncline.sync import PROTOCOL

STRANGERS = 1000
WRITES = 40
SLOWEST_S = 2.0
GROWTH_BYTES_MAX = 40 << 20

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/statm").exists(), reason="the memory of a process is read from /proc"
)


def rss(pid: int) -> int:
    """The memory of a process that is resident, in bytes."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def sockets_of(pid: int) -> int:
    links = []
    for name in os.listdir(f"/proc/{pid}/fd"):
        try:
            links.append(os.readlink(f"/proc/{pid}/fd/{name}"))
        except FileNotFoundError:
            continue  # Closed since it was listed.
    return sum(link.startswith("socket:") for link in links)


@contextmanager
def serving(world: World) -> Iterator[tuple[Nursery, int, int]]:
    """A server process on the world's file: its nursery, process id and port."""
    with Nursery() as nursery:
        port = free_port()
        pid = nursery.start("server", path=str(world.data), port=port)

        def answers() -> bool:
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", port)) == 0

        eventually(answers, 30)
        yield nursery, pid, port


def handshake(port: int) -> bytes:
    key = base64.b64encode(os.urandom(16)).decode()
    return (
        f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n"
        f"Sec-WebSocket-Protocol: {PROTOCOL}\r\n\r\n"
    ).encode()


def write_and_wait(world: World, name: str, first: int, text: str = "") -> list[float]:
    """Writes, one after another, each waited for until the log has it; how long each took."""
    took = []
    for n in range(first, first + WRITES):
        began = time.monotonic()
        world.session(name, SESSION).put("notes", f"{name}{n}", {"text": text}).wait(30)
        took.append(time.monotonic() - began)
    return took


def test_a_thousand_connections_that_never_say_hello_keep_nobody_out(world: World) -> None:
    with serving(world) as (nursery, pid, port), ExitStack() as stack:
        url = f"ws://127.0.0.1:{port}"
        stack.enter_context(world.replica("ann").connect(url))
        usual = write_and_wait(world, "ann", 0)
        before = rss(pid)
        for n in range(STRANGERS):
            stranger = stack.enter_context(socket.create_connection(("127.0.0.1", port), 10))
            # Some say nothing at all, some half a handshake, some a whole one and then nothing.
            stranger.sendall(handshake(port)[: (0, 60, None)[n % 3]])
        during = write_and_wait(world, "ann", WRITES)
        # Somebody who comes now is let in, too.
        with world.replica("bob").connect(url) as late:
            late.wait_synced(20)
            assert world.session("bob", SESSION).count("notes") == 2 * WRITES
            assert sockets_of(pid) < WAITING_PEERS_MAX + 50
        assert rss(pid) - before < GROWTH_BYTES_MAX
        assert max(during) < SLOWEST_S, statistics.median(usual)
        stack.close()
        # Nothing is left of them.
        eventually(lambda: sockets_of(pid) < 20, 20)
        nursery.end(pid)
    world.check(apart=["ann", "bob"])


def test_a_client_that_is_stopped_in_its_tracks_delays_nobody_and_catches_up(world: World) -> None:
    text = "x" * 100_000
    with serving(world) as (nursery, pid, port):
        url = f"ws://127.0.0.1:{port}"
        diary = world.folder / "diary"
        path = world.add(world.folder / "stopped.db")
        stopped = nursery.start("writer", path=str(path), diary=str(diary), life=0, url=url)
        eventually(lambda: diary.exists() and b"settled" in diary.read_bytes(), 30)
        os.kill(stopped, signal.SIGSTOP)
        with world.replica("ann").connect(url):
            usual = write_and_wait(world, "ann", 0)
            before = rss(pid)
            took = write_and_wait(world, "ann", WRITES, text) + write_and_wait(
                world, "ann", 2 * WRITES, text
            )
            assert max(took) < SLOWEST_S, statistics.median(usual)
            # Eight megabytes went out; what a peer may cost that takes none of it is one.
            assert rss(pid) - before < GROWTH_BYTES_MAX
            os.kill(stopped, signal.SIGCONT)
            nursery.end(stopped)
        world.sync(url=url)
        assert world.session("ann", SESSION).get("notes", f"ann{2 * WRITES}") == {"text": text}
        nursery.end(pid)
    world.check(apart=["ann", "stopped"])
