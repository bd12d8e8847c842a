"""C054: Ctrl-C, SIGTERM or a closed terminal during work: nothing hangs, nothing is lost.

The product's bounds: a client's close ends within 5 s, a server within 5 s of its signal, whatever
the peers do; a second signal waits for nobody. What is pending stands in the replica's file and
nowhere else, so that the next start needs nobody's hand.
"""

from __future__ import annotations

import asyncio
import random
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from syncline.client import Notification, Receipt, ReceiptState, Replica
from syncline.sync import PROTOCOL, Hello

from .crashing import Crasher, assert_holds
from .interrupting import Interrupting, connect
from .proxy import Proxy, Way
from .support import ROOT, SESSION, World, command, eventually

STOP_S_MAX = 5.0


# The client's own process.


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_C054_an_interrupt_at_any_statement_leaves_a_replica_that_goes_on(
    world: World, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    world.start()
    a = world.session("a", connection_factory=connect)
    monkeypatch.setattr(Interrupting, "after", after)
    told: list[Receipt] = []
    statement, interrupted = 0, True
    while interrupted:
        monkeypatch.setattr(Interrupting, "left", statement)
        try:
            with a.transaction() as receipt:
                a.put("notes", f"r{statement}", {"statement": statement})
                a.append("made", {"statement": statement})
                a.get("notes", "other")
            told.append(receipt)
            dict(a.records("notes"))
            a.pending()
            interrupted = False
        except KeyboardInterrupt:
            statement += 1
        finally:
            monkeypatch.setattr(Interrupting, "left", -1)
        told.append(a.put("notes", "next", {"statement": statement}))
        # It is durable, for everybody.
        with closing(sqlite3.connect(world.folder / "a.db")) as db:
            salt = bytes.fromhex(told[-1].id)
            row = db.execute("SELECT count(*) FROM syncline_outbox WHERE salt=?", (salt,))
            assert row.fetchone() == (1,)
        for _, fields in a.records("notes"):
            assert fields.keys() == {"statement"}
    assert statement > 8
    # All of an op, or nothing.
    ids = {id_ for id_, _ in a.records("notes")} - {"next"}
    assert {f"r{event.payload['statement']}" for event in a.events()} == ids
    world.sync("a")
    assert {receipt.state for receipt in told} == {ReceiptState.APPLIED}
    world.check()


def _survive(world: World, rounds: int) -> None:
    world.start()
    path = world.add(world.folder / "a.db")
    with Crasher() as crasher:
        life = crasher.run("survive", path, seed=54, rounds=rounds, url=world.url)
    assert life.killed_by == 0 and life.told[-1] == "synced"
    assert_holds(path, life.told[:-1])
    assert set(life.told[:-1]) <= {entry.salt.hex() for entry in world.log()}
    world.check()


def test_C054_a_process_that_goes_on_after_its_interrupts_loses_nothing(world: World) -> None:
    _survive(world, 40)


@pytest.mark.long
def test_C054_a_process_that_goes_on_after_a_thousand_interrupts_loses_nothing(
    world: World,
) -> None:
    _survive(world, 1000)


def _leave(world: World, rounds: int) -> None:
    """SIGINT at any time from opening to close; once, or twice within 100 ms."""
    world.start()
    path = world.add(world.folder / "a.db")
    rng = random.Random(54)
    told: list[str] = []
    with closing(socket.socket()) as taken, Crasher() as crasher:
        taken.bind(("127.0.0.1", 0))  # Nobody listens there: the client pauses between its tries.
        nowhere = f"ws://127.0.0.1:{taken.getsockname()[1]}"
        for _ in range(rounds):
            first_s, again_s = rng.uniform(0.001, 0.15), rng.choice([0.0, rng.uniform(0.001, 0.1)])
            began = time.monotonic()
            life = crasher.run(
                "leave",
                path,
                first_s=first_s,
                again_s=again_s,
                url=rng.choice([world.url, world.url, nowhere]),
            )
            assert time.monotonic() - began < STOP_S_MAX
            assert life.killed_by == 0 and life.told[-1] == "left"
            told += life.told[:-1]
            if path.exists() and path.stat().st_size:
                assert_holds(path, told)
        assert len(told) > rounds
        names = {file.name for file in world.folder.iterdir() if file.name.startswith("a.db")}
        assert names <= {"a.db", "a.db-wal", "a.db-shm", "a.db-lock"}
        assert crasher.run("sync", path, url=world.url).told == ["synced"]
    in_log = [entry.salt.hex() for entry in world.log()]
    assert set(told) <= set(in_log) and len(in_log) == len(set(in_log))
    world.check()


def test_C054_a_client_interrupted_at_any_time_starts_again_and_has_it_all(world: World) -> None:
    _leave(world, 10)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_C054_a_client_interrupted_two_hundred_times_starts_again_and_has_it_all(
    world: World,
) -> None:
    _leave(world, 200)


def test_C054_syncline_sync_ends_at_any_signal_while_the_server_says_nothing(
    world: World,
) -> None:
    server = world.start()
    signals = {"a": signal.SIGINT, "b": signal.SIGTERM, "c": signal.SIGHUP}
    for name in signals:
        with world.replica(name).batch():
            for i in range(500):
                world.session(name).put("notes", f"{name}{i}", {"i": i})
    world.close()
    with Proxy(server.port) as proxy:
        proxy.filter(Way.TO_CLIENT, lambda message: [])
        children = {
            name: subprocess.Popen(
                command("sync", str(world.folder / f"{name}.db"), proxy.url, "--timeout", "60"),
                cwd=ROOT,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            for name in signals
        }
        # All of them have said hello.
        eventually(lambda: sum(m.way is Way.TO_SERVER for m in proxy.seen) >= 3, 60)
        began = time.monotonic()
        for name, child in children.items():
            child.send_signal(signals[name])
        codes = [child.wait(30) for child in children.values()]
        assert time.monotonic() - began < STOP_S_MAX
    assert codes == [130, -signal.SIGTERM, -signal.SIGHUP]
    eleven_s = 11_000_000  # The leases of those who were killed have run out.
    for name in signals:
        session = world.session(name, clock=lambda: time.time_ns() // 1000 + eleven_s)
        assert len(session.pending()) == 500
    world.settle()
    assert world.session("a").count("notes") == 1500
    world.check()


_EXITS = f"""
import sys
from syncline.client import Replica
replica = Replica(sys.argv[1])
connection = replica.connect(sys.argv[2])
session = replica.session({SESSION!r})
for i in range(50):
    print(session.put("notes", f"r{{i}}", {{"i": i}}).id, flush=True)
if sys.argv[3] == "raise":
    raise SystemExit(3)
"""


def test_C054_an_interpreter_that_exits_without_close_loses_nothing(world: World) -> None:
    world.start()
    world.session("a"), world.session("b")
    world.close()
    children = [
        subprocess.Popen(
            [sys.executable, "-c", _EXITS, world.folder / f"{name}.db", world.url, how],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for name, how in (("a", "end"), ("b", "raise"))
    ]
    for child, code, name in zip(children, (0, 3), ("a", "b"), strict=True):
        out, err = child.communicate(timeout=60)
        assert (child.returncode, err) == (code, "")
        assert len(out.split()) == 50
        assert_holds(world.folder / f"{name}.db", out.split())
    clock = lambda: time.time_ns() // 1000 + 11_000_000  # noqa: E731
    world.session("a", clock=clock), world.session("b", clock=clock)
    world.settle()
    assert len(world.log()) == 100
    world.check()


# Callbacks and loops of the app.


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_C054_an_interrupt_in_a_callback_reaches_the_app_and_breaks_nothing(
    world: World, kind: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    world.start()
    a, b = world.session("a"), world.session("b")

    def interrupted(_: Notification) -> None:
        raise kind

    with world.replica("a").connect(world.url) as connection:
        connection.wait_synced(20)
        stop = a.watch(interrupted)
        with pytest.raises(kind):
            a.put("notes", "r", {"x": 1})
        assert a.get("notes", "r") == {"x": 1}, "the write is done"
        # It goes out by itself, though the call never returned.
        eventually(lambda: not a.pending(), 20)
        # In the connection's own thread nobody is there to be interrupted.
        b.put("notes", "of b", {})
        world.sync("b")
        eventually(lambda: a.get("notes", "of b") == {}, 20)
        stop()
        assert a.put("notes", "r", {"x": 2}).wait(20) is ReceiptState.APPLIED
    assert "a watcher of session case failed" in caplog.text
    world.settle()
    world.check()


def _while_waiting(wait: Callable[[], object], proxy: Proxy) -> float:
    """Interrupt the main thread while it waits; how long it took to get out."""
    sent: list[float] = []
    main, before = threading.get_ident(), len(proxy.seen)

    def interrupt() -> None:
        eventually(lambda: any(isinstance(m.frame(), Hello) for m in proxy.seen[before:]), 30)
        sent.append(time.monotonic())
        signal.pthread_kill(main, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        wait()
    ended = time.monotonic()
    thread.join(10)
    return ended - sent[0]


def test_C054_blocking_calls_end_by_ctrl_c_also_inside_a_running_loop(world: World) -> None:
    """As in a notebook: the main thread is in a callback of its event loop."""
    server = world.start()
    a = world.session("a")
    a.put("notes", "r", {})
    replica = world.replica("a")
    with Proxy(server.port) as proxy:
        proxy.filter(Way.TO_CLIENT, lambda message: [])

        async def cell() -> float:
            return _while_waiting(lambda: replica.sync_once(proxy.url), proxy)

        loop = asyncio.new_event_loop()
        with closing(loop):
            assert loop.run_until_complete(cell()) < STOP_S_MAX
            assert loop.run_until_complete(cell()) < STOP_S_MAX
            proxy.filter(Way.TO_CLIENT, None)
            assert loop.run_until_complete(asyncio.to_thread(replica.sync_once, proxy.url)).sent
    world.check()


def test_C054_a_with_block_that_is_interrupted_closes_and_the_next_one_goes_on(
    world: World,
) -> None:
    world.start()
    path = world.add(world.folder / "a.db")
    for i in range(3):
        with (
            pytest.raises(KeyboardInterrupt),
            Replica(path, client_id="a") as replica,
            replica.connect(world.url),
        ):
            session = replica.session(SESSION)
            session.put("notes", f"r{i}", {})
            with session.transaction():
                session.put("notes", "half", {})
                raise KeyboardInterrupt
    session = world.session("a")
    assert [id_ for id_, _ in session.records("notes")] == ["r0", "r1", "r2"]
    world.sync("a")
    world.check()


# The server's process.


class _Load:
    """Clients that write as fast as they are answered, and what they saw in the log."""

    def __init__(self, world: World, url: str, names: list[str]) -> None:
        self.acknowledged: set[str] = set()
        self._end = threading.Event()
        self._stack = ExitStack()
        self.connections = [
            self._stack.enter_context(world.replica(name).connect(url)) for name in names
        ]
        self._threads = [threading.Thread(target=self._write, args=(world, name)) for name in names]
        for thread in self._threads:
            thread.start()

    def _write(self, world: World, name: str) -> None:
        session = world.session(name)
        i = 0
        while not self._end.is_set():
            receipt = session.put("notes", f"{name}-{i % 50}", {"i": i, "text": "x" * 200})
            while receipt.state.pending and not self._end.is_set():
                with session._core.changed:
                    session._core.changed.wait(0.05)
            if not receipt.state.pending:
                self.acknowledged.add(receipt.id)
            i += 1

    def poke(self) -> None:
        for connection in self.connections:
            connection.poke()

    def stop(self) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join(30)

    def close(self) -> None:
        self.stop()
        self._stack.close()


def _deaf(url: str) -> socket.socket:
    """A peer that finished its handshake and neither reads nor answers anything any more."""
    host, port = url.removeprefix("ws://").split(":")
    deaf = socket.create_connection((host, int(port)), 10)
    deaf.sendall(
        f"GET / HTTP/1.1\r\nHost: {host}:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
        f"Sec-WebSocket-Protocol: {PROTOCOL}\r\n\r\n".encode()
    )
    assert deaf.recv(12) == b"HTTP/1.1 101"
    return deaf


@pytest.mark.parametrize(
    ("signals", "clients"),
    [
        ([signal.SIGTERM], 20),
        ([signal.SIGINT, signal.SIGINT], 6),
        pytest.param([signal.SIGKILL], 6, marks=pytest.mark.long),
        pytest.param([signal.SIGHUP], 6, marks=pytest.mark.long),
    ],
    ids=["SIGTERM", "SIGINT twice", "SIGKILL", "SIGHUP"],
)
def test_C054_a_server_ends_in_time_and_has_all_that_it_acknowledged(
    world: World, signals: list[signal.Signals], clients: int
) -> None:
    process = world.start_process()
    names = [f"c{i:02}" for i in range(clients)]
    for name in names:
        world.session(name)
    orderly = signals == [signal.SIGTERM]
    with Proxy(process.port) as proxy:
        load = _Load(world, proxy.url, names)
        try:
            eventually(lambda: len(load.acknowledged) > 2 * clients, 60)
            with closing(_deaf(process.url)):
                began = time.monotonic()
                for number in signals:
                    process.signal(number)
                code = process.child.wait(30)
                took = time.monotonic() - began
            assert took < STOP_S_MAX
            unclean = {signal.SIGKILL, signal.SIGHUP} & set(signals)
            assert code == (-signals[0] if unclean else 0)
            if orderly:
                eventually(lambda: proxy.close_codes.count(1001) >= clients)
            assert process.child.stdout is not None
            process.child.stdout.close()
            before = len(load.acknowledged)
            world.start_process(process.port)
            eventually(lambda: len(load.acknowledged) > before + clients, 60, each=load.poke)
            load.stop()
            for connection in load.connections:
                connection.wait_synced(60)
        finally:
            load.close()
    in_log = [entry.salt.hex() for entry in world.log()]
    assert load.acknowledged <= set(in_log)
    assert len(in_log) == len(set(in_log)) > 0
    world.settle()
    world.check()


def test_C054_a_second_signal_does_not_wait_for_those_who_do_not_answer(world: World) -> None:
    process = world.start_process()
    with closing(_deaf(process.url)):
        process.signal(signal.SIGINT)
        process.signal(signal.SIGTERM)
        assert process.child.wait(10) == 0
    world.stop()
    assert Path(world.data).exists()
    world.check()
