"""C052: cancelled at the wrong moment, a unit is done or not done, and never half."""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
from functools import partial
from pathlib import Path

import pytest

from syncline.client import AsyncReplica, Receipt, ReceiptState

from .proxy import Proxy, Way
from .support import SESSION, World, eventually

UNIT = 20


def _settled_or(event: threading.Event, receipt: Receipt) -> None:
    eventually(lambda: event.is_set() or not receipt.state.pending)


def _grown(world: World, entries: int) -> bool:
    return len(world.log()) > entries


def _whole_units(world: World) -> None:
    """Every op of A in the log has all its changes."""
    for entry in world.log():
        if entry.client == "a":
            assert len(entry.read()) == UNIT


def _cut_pushes(world: World, rounds: int) -> None:
    """Break A's connection after a random number of bytes of a push; B writes right after."""
    server = world.start()
    a, b = world.session("a"), world.session("b")
    rng = random.Random(52)
    with Proxy(server.port) as proxy, world.replica("b").connect(world.url) as other:
        other.wait_synced(10)
        with world.replica("a").connect(proxy.url) as connection:
            for i in range(rounds):
                eventually(lambda: connection.state.value == "online", each=connection.poke)
                way = rng.choice([Way.TO_SERVER, Way.TO_CLIENT])
                cut = proxy.cut_after(way, rng.randrange(1, 3000))
                while not cut.is_set():
                    with a.transaction() as receipt:
                        for j in range(UNIT):
                            a.put("notes", f"r{j}", {"round": i, "text": "x" * 40})
                    _settled_or(cut, receipt)
                began = time.monotonic()
                assert b.put("other", "r", {"i": i}).wait(5) is ReceiptState.APPLIED
                assert time.monotonic() - began < 1.0, "the next writer does not wait"
                record = b.get("notes", "r0")
                if record is not None:
                    assert {fields["round"] for _, fields in b.records("notes")} == {
                        record["round"]
                    }
            eventually(lambda: not a.pending(), each=connection.poke)
    _whole_units(world)
    world.settle()
    world.check()


def test_C052_a_push_that_is_cut_at_any_byte_is_whole_or_not_there(world: World) -> None:
    _cut_pushes(world, 10)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_C052_two_hundred_pushes_cut_at_any_byte_are_whole_or_not_there(world: World) -> None:
    _cut_pushes(world, 200)


def test_C052_a_server_that_stops_in_the_middle_of_pushes_keeps_whole_units(
    world: World,
) -> None:
    server = world.start()
    port = server.port
    a = world.session("a")
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            with a.transaction():
                for j in range(UNIT):
                    a.put("notes", f"r{j}", {"t": time.monotonic()})

    writer = threading.Thread(target=write)
    with world.replica("a").connect(world.url) as connection:
        connection.wait_synced(10)
        writer.start()
        for _ in range(3):
            count = len(world.log())
            eventually(partial(_grown, world, count), each=connection.poke)
            world.stop()
            _whole_units(world)
            world.start(port=port)
        stop.set()
        writer.join(10)
        eventually(lambda: not a.pending(), 20, each=connection.poke)
    _whole_units(world)
    world.check()


async def _cancel_at_random(path: Path, url: str, rounds: int) -> tuple[int, int]:
    """Writes, reads and closes under time-outs of 0 to 50 ms; how many came through, and not."""
    rng = random.Random(5)
    through = cancelled = 0
    replica = await AsyncReplica.open(path, client_id="a")
    session = await replica.session(SESSION)
    connection = await replica.connect(url)
    for i in range(rounds):
        timeout = rng.choice([0.0, rng.uniform(0.0, 0.005), rng.uniform(0.0, 0.05)])

        def unit(_: object, i: int = i) -> None:
            for j in range(UNIT):
                session.session.put("notes", f"r{j}", {"round": i})

        try:
            kind = rng.randrange(4)
            if kind < 2:
                await asyncio.wait_for(session.transact(unit), timeout)
            elif kind == 2:
                await asyncio.wait_for(connection.wait_synced(5), timeout)
            else:
                await asyncio.wait_for(session.records("notes"), timeout)
            through += 1
        except TimeoutError:
            cancelled += 1
        if i % 100 == 99:
            try:
                await asyncio.wait_for(connection.close(), rng.uniform(0.0, 0.05))
            except TimeoutError:
                cancelled += 1
            await connection.close()
            connection = await replica.connect(url)
    await connection.wait_synced(20)
    await connection.close()
    await replica.close()
    return through, cancelled


def _cancelled_clients(world: World, rounds: int) -> None:
    world.start()
    path = world.add(world.folder / "a.db")
    before = {thread.name for thread in threading.enumerate()}
    through, cancelled = asyncio.run(_cancel_at_random(path, world.url, rounds))
    assert through > rounds // 10 and cancelled > rounds // 10
    assert {thread.name for thread in threading.enumerate()} <= before
    assert not _open_files(path), "no connection to the file is left"
    _whole_units(world)
    world.session("b")
    world.sync("b")
    rounds_shown = {fields["round"] for _, fields in world.session("b").records("notes")}
    assert len(rounds_shown) == 1
    world.check()


def _open_files(path: Path) -> list[str]:
    held = []
    for number in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{number}")
        except FileNotFoundError:
            continue  # The descriptor of this very listing.
        if target.startswith(str(path)):
            held.append(target)
    return held


def test_C052_calls_cancelled_at_random_are_done_or_not_done(world: World) -> None:
    _cancelled_clients(world, 250)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_C052_a_thousand_calls_cancelled_at_random_are_done_or_not_done(world: World) -> None:
    _cancelled_clients(world, 1000)


def test_C052_cancellation_is_raised_and_the_write_is_whole(world: World) -> None:
    """The task ends cancelled, not successful; what it had begun is there in full."""
    world.start()
    path = world.add(world.folder / "a.db")
    begun = threading.Event()
    go_on = threading.Event()

    async def cancel() -> None:
        async with await AsyncReplica.open(path, client_id="a") as replica:
            session = await replica.session(SESSION)

            def unit(_: object) -> None:
                for j in range(UNIT):
                    session.session.put("notes", f"r{j}", {})
                    if j == UNIT // 2:
                        begun.set()
                        assert go_on.wait(10)

            task = asyncio.create_task(session.transact(unit))
            await asyncio.to_thread(begun.wait, 10)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert task.cancelled()
            go_on.set()
            await session.put("notes", "next", {})
            assert len(await session.records("notes")) == UNIT + 1
            await replica.sync_once(world.url)

    asyncio.run(cancel())
    world.check()


def _write_while_receiving(world: World, entries: int, own: int) -> None:
    """A local write wakes the receiving loop; no frame may be lost by that, or taken twice."""
    server = world.start()
    a, b = world.session("a"), world.session("b")
    with Proxy(server.port) as proxy, world.replica("b").connect(proxy.url) as reading:
        reading.wait_synced(10)

        def send() -> None:
            with world.replica("a").connect(world.url) as writing:
                for i in range(entries // 100):
                    with world.replica("a").batch():
                        for j in range(100):
                            a.append("counted", {"i": 100 * i + j})
                writing.wait_synced(60)

        sender = threading.Thread(target=send)
        sender.start()
        for i in range(own):
            b.put("notes", "own", {"i": i})
        sender.join(120)
        reading.wait_synced(60)
        assert proxy.connections == 1
    assert [event.payload["i"] for event in b.events()] == list(range(entries))
    world.settle()
    world.check()


def test_C052_local_writes_while_receiving_lose_no_frame(world: World) -> None:
    _write_while_receiving(world, 1000, 100)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_C052_local_writes_while_receiving_ten_thousand_lose_no_frame(world: World) -> None:
    _write_while_receiving(world, 10_000, 1000)
