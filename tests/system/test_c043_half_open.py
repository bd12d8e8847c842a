"""C043: a half-open socket, on which both ends believe that they are connected.

The product's bounds: with something under way a client notices after 15 s without progress;
with nothing under way both ends notice by their pings, 20 s apart, each waited for 20 s, so within
40 s. An opening that nobody answers ends after 10 s, a close within 5 s. The fast tests shorten the
clocks and keep the proportions; the long one has the real figures.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterable

import pytest

from syncline.client import Connection, ReceiptState, State
from syncline.client._link import STOP_S_MAX, Link
from syncline.server import SyncServer
from syncline.sync import Entries, Hello, Push

from .proxy import Message, Proxy, Way
from .support import ROOT, SESSION, World, eventually

WAYS = [(Way.TO_SERVER, Way.TO_CLIENT), (Way.TO_SERVER,), (Way.TO_CLIENT,)]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """All waits in a fortieth of their time."""
    monkeypatch.setattr("syncline.client._engine.PROGRESS_US_MAX", 400_000)
    monkeypatch.setattr("syncline.client._link.PING_S", 0.5)
    monkeypatch.setattr("syncline.client._link.OPEN_S_MAX", 1.0)
    monkeypatch.setattr("syncline.server._gateway.PING_S", 0.5)


def _peers(server: SyncServer) -> int:
    return len(server._engine._peers)


def _watch_state(connection: Connection, world: World) -> None:
    eventually(lambda: connection.state is not State.ONLINE, 10)
    assert world.replica("a").status().connection != "online"


@pytest.mark.parametrize("ways", WAYS)
@pytest.mark.usefixtures("quick")
def test_C043_a_write_into_a_black_hole_is_noticed_and_delivered_once_when_healed(
    world: World, ways: tuple[Way, ...]
) -> None:
    server = world.start()
    a, b = world.session("a"), world.session("b")
    with (
        Proxy(server.port) as proxy,
        world.replica("a").connect(proxy.url) as connection,
        world.replica("b").connect(world.url) as other,
    ):
        for one in (connection, other):
            one.wait_synced(10)
        proxy.black_hole(*ways)
        began = time.monotonic()
        of_a = a.put("notes", "of a", {"n": 1})
        of_b = b.put("notes", "of b", {"n": 2})
        assert of_b.wait(5) is ReceiptState.APPLIED
        assert of_a.state.pending and world.replica("a").status().pending == 1
        _watch_state(connection, world)
        assert time.monotonic() - began < 2
        proxy.heal()
        eventually(lambda: not of_a.state.pending, each=connection.poke)
        connection.wait_synced(10)
        assert a.get("notes", "of b") == {"n": 2}
    assert sorted(entry.client for entry in world.log()) == ["a", "b"]
    world.settle()
    world.check()


@pytest.mark.usefixtures("quick")
def test_C043_both_ends_notice_an_idle_connection_that_is_dead(world: World) -> None:
    server = world.start()
    world.session("a")
    with Proxy(server.port) as proxy, world.replica("a").connect(proxy.url) as connection:
        connection.wait_synced(10)
        assert _peers(server) == 1
        proxy.black_hole()
        eventually(lambda: _peers(server) == 0, 5)
        _watch_state(connection, world)
        proxy.heal()
        eventually(lambda: connection.state is State.ONLINE, each=connection.poke)
    world.check()


@pytest.mark.usefixtures("quick")
def test_C043_news_of_others_does_not_hide_that_own_writes_vanish(world: World) -> None:
    """Only the way to the server is dead, and entries keep coming from it."""
    server = world.start()
    a, b = world.session("a"), world.session("b")
    with (
        Proxy(server.port) as proxy,
        world.replica("a").connect(proxy.url) as connection,
        world.replica("b").connect(world.url),
    ):
        connection.wait_synced(10)
        proxy.black_hole(Way.TO_SERVER)
        began = time.monotonic()
        vanishing = a.put("notes", "of a", {})

        def news() -> None:
            b.put("notes", "of b", {"t": time.monotonic()}).wait(5)

        eventually(lambda: connection.state is not State.ONLINE, 10, each=news)
        assert time.monotonic() - began < 4
        proxy.heal()
        eventually(lambda: not vanishing.state.pending, each=connection.poke)
    world.settle()
    world.check()


@pytest.mark.parametrize("moment", [Hello, Push, Entries])
@pytest.mark.usefixtures("quick")
def test_C043_a_black_hole_at_any_moment_is_left_again(world: World, moment: type) -> None:
    """During the sign-in, during a push, during catch-up."""
    server = world.start()
    b = world.session("b")
    for i in range(20):
        b.put("notes", f"b{i}", {"i": i})
    world.sync("b")
    a = world.session("a")
    receipts = [a.put("notes", f"a{i}", {"i": i}) for i in range(20)]
    fell: list[Message] = []
    with Proxy(server.port) as proxy:

        def fall(message: Message) -> Iterable[bytes]:
            if isinstance(message.frame(), moment) and not fell:
                fell.append(message)
                proxy.black_hole()
                return []
            return [message.raw]

        for way in Way:
            proxy.filter(way, fall)
        with world.replica("a").connect(proxy.url) as connection:
            eventually(lambda: fell)
            _watch_state(connection, world)
            assert receipts[-1].state.pending
            proxy.heal()
            eventually(lambda: not receipts[-1].state.pending, 20, each=connection.poke)
            connection.wait_synced(10)
    assert [entry.n for entry in world.log() if entry.client == "a"] == list(range(1, 21))
    world.sync("b")
    world.check()


@pytest.mark.parametrize("when", ["online", "opening"])
def test_C043_close_returns_in_time_on_a_dead_path_and_leaves_the_lease(
    world: World, when: str
) -> None:
    server = world.start()
    a = world.session("a")
    with Proxy(server.port) as proxy:
        if when == "opening":
            proxy.black_hole()
        connection = world.replica("a").connect(proxy.url)
        if when == "online":
            connection.wait_synced(10)
            proxy.black_hole()
            a.put("notes", "r", {})
        else:
            proxy.wait_connections(1)
        began = time.monotonic()
        connection.close()
        assert time.monotonic() - began < STOP_S_MAX
        assert not connection._link._thread.is_alive()
    world.close("a")
    # Another process could sync at once: the lease was given back.
    report = world.replica("a").sync_once(world.url, timeout=5)
    assert report.pending == 0
    world.check()


def test_C043_pauses_between_attempts_grow_also_after_it_was_online(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("syncline.client._link.random.uniform", lambda low, high: high)

    async def pause(self: Link, seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 8:
            self._stopping = True

    server = world.start()
    world.session("a")
    with Proxy(server.port) as proxy:
        connection = world.replica("a").connect(proxy.url)
        connection.wait_synced(10)
        monkeypatch.setattr(Link, "_pause", pause)
        world.stop()
        connection._link._thread.join(20)
    assert pauses == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    connection.close()
    world.check()


_CLIENT = f"""
import sys
from syncline.client import Replica
with Replica(sys.argv[1], client_id="a") as replica, replica.connect(sys.argv[2]) as connection:
    session = replica.session({SESSION!r})
    connection.wait_synced(10)
    print("ready", flush=True)
    for line in sys.stdin:
        session.put("notes", line.strip(), {{}}).wait(20)
        connection.wait_synced(20)
        print(session.count("notes"), flush=True)
"""


def _suspended(world: World, *, whom: str) -> None:
    b = world.session("b")
    path = world.add(world.folder / "a.db")
    child = subprocess.Popen(
        [sys.executable, "-c", _CLIENT, str(path), world.url],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdin is not None and child.stdout is not None
    try:
        assert child.stdout.readline() == "ready\n"
        if whom == "client":
            child.send_signal(signal.SIGSTOP)
            assert world.server is not None
            server = world.server
            eventually(lambda: _peers(server) == 0, 60)
            b.put("notes", "meanwhile", {})
            world.sync("b")
            child.stdin.write("after\n")
            child.stdin.flush()
            child.send_signal(signal.SIGCONT)
            assert child.stdout.readline() == "2\n"
        else:
            assert world.process is not None
            with world.replica("b").connect(world.url) as connection:
                connection.wait_synced(10)
                world.process.signal(signal.SIGSTOP)
                receipt = b.put("notes", "meanwhile", {})
                eventually(lambda: connection.state is not State.ONLINE, 60)
                assert receipt.state.pending
                world.process.signal(signal.SIGCONT)
                eventually(lambda: not receipt.state.pending, 30, each=connection.poke)
            child.stdin.write("after\n")
            child.stdin.flush()
            assert child.stdout.readline() == "2\n"
        child.stdin.close()
        assert child.wait(20) == 0
    finally:
        child.kill()
        child.wait(10)
        child.stdin.close()
        child.stdout.close()
    world.settle()
    assert len(world.log()) == 2
    world.check()


@pytest.mark.usefixtures("quick")
def test_C043_a_client_that_was_suspended_goes_on_where_it_was(world: World) -> None:
    world.start()
    _suspended(world, whom="client")


@pytest.mark.usefixtures("quick")
def test_C043_a_server_that_was_suspended_is_left_and_found_again(world: World) -> None:
    world.start_process()
    _suspended(world, whom="server")


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("idle", [False, True])
def test_C043_the_real_bounds_hold(world: World, idle: bool) -> None:
    server = world.start()
    a = world.session("a")
    with Proxy(server.port) as proxy, world.replica("a").connect(proxy.url) as connection:
        connection.wait_synced(10)
        proxy.black_hole()
        began = time.monotonic()
        if not idle:
            a.put("notes", "r", {})
        eventually(lambda: connection.state is not State.ONLINE, 60)
        assert time.monotonic() - began < (45 if idle else 20)
        eventually(lambda: _peers(server) == 0, 60)
        assert time.monotonic() - began < 45
        proxy.heal()
        eventually(lambda: connection.state is State.ONLINE, 30, each=connection.poke)
        connection.wait_synced(10)
    world.check()
