"""C022: no frame is ever larger than the other side takes, and large values are refused at once."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from syncline.sync import FRAME_BYTES_MAX, RECORD_BYTES_MAX, TooLarge, pack

from .hand import Hand
from .proxy import Proxy
from .support import World

MIB = 1 << 20
ENVELOPE = len(pack({"data": b""})) + 3
"""Bytes around a large value in a record with one field ``data``."""


def _ends_well(world: World, proxy: Proxy) -> None:
    """Nobody closed because of a size, or broke a connection: one connection for each sync."""
    assert set(proxy.close_codes) <= {1000, 1001}
    assert max(len(message.payload) for message in proxy.seen) <= FRAME_BYTES_MAX
    world.check()


def _large(a_put: Callable[[bytes], object], size: int) -> bool:
    try:
        a_put(bytes(size))
    except TooLarge as error:
        assert error.detail["bytes_max"] == RECORD_BYTES_MAX
        assert str(RECORD_BYTES_MAX) in str(error)
        return False
    return True


@pytest.mark.parametrize(
    ("sizes", "fits"),
    [
        ((1_048_000, MIB - ENVELOPE), True),
        ((MIB - ENVELOPE + 1, MIB + 1, 10 * MIB, 20 * MIB), False),
    ],
)
def test_C022_a_value_that_is_too_large_is_refused_at_the_put_and_its_neighbours_arrive(
    world: World, sizes: tuple[int, ...], fits: bool
) -> None:
    server = world.start()
    a, b = world.session("a"), world.session("b")

    def put(key: str, data: bytes) -> object:
        return a.put("notes", key, {"data": data})

    for i in range(5):
        put(f"m{i}", b"small")
    for size in sizes:
        assert _large(partial(put, f"large{size}"), size) is fits
    for i in range(5, 10):
        put(f"m{i}", b"small")
    there = 10 + fits * len(sizes)
    assert len(a.pending()) == there
    with Proxy(server.port) as proxy:
        for _ in range(2):
            world.sync("a", url=proxy.url)
            world.sync("b", url=proxy.url)
        assert proxy.connections == 4
        assert dict(b.records("notes")) == dict(a.records("notes"))
        assert b.count("notes") == there
        _ends_well(world, proxy)


def test_C022_many_small_ops_are_pushed_and_paged_in_frames_cut_by_bytes(world: World) -> None:
    server = world.start()
    a, b = world.session("a"), world.session("b")
    with world.replica("a").batch():
        for i in range(200):
            a.put("notes", f"r{i}", {"data": bytes(30_000), "i": i})
    with Proxy(server.port) as proxy:
        world.sync("a", url=proxy.url)
        world.sync("b", url=proxy.url)
        assert b.count("notes") == 200
        assert max(len(message.payload) for message in proxy.seen) < MIB // 2
        assert proxy.connections == 2
        _ends_well(world, proxy)


def test_C022_a_snapshot_of_five_megabytes_comes_in_pages(world: World) -> None:
    server = world.start(bootstrap_entries_min=10)
    a = world.session("a")
    with world.replica("a").batch():
        for i in range(25):
            a.put("notes", f"r{i}", {"data": bytes(200_000)})
        a.put("notes", "largest", {"data": bytes(MIB - ENVELOPE)})
    world.sync("a")
    b = world.session("b")
    with Proxy(server.port) as proxy:
        report = world.replica("b").sync_once(proxy.url)
        assert (report.bootstrapped, b.count("notes")) == (1, 26)
        assert proxy.connections == 1
        _ends_well(world, proxy)


def test_C022_text_is_measured_in_bytes_not_in_characters(world: World) -> None:
    server = world.start()
    a, b = world.session("a"), world.session("b")
    with pytest.raises(TooLarge):
        a.put("notes", "wide", {"text": "\U0001f600" * 600_000})
    text = "\U0001f600" * 150_000
    a.put("notes", "fits", {"text": text})
    with Proxy(server.port) as proxy:
        world.sync("a", url=proxy.url)
        world.sync("b", url=proxy.url)
        assert b.get("notes", "fits") == {"text": text}
        _ends_well(world, proxy)


def test_C022_one_op_of_the_largest_size_passes(world: World) -> None:
    """Four records of almost a mebibyte each, in one op."""
    server = world.start()
    a, b = world.session("a"), world.session("b")
    with a.transaction():
        for i in range(3):
            a.put("notes", f"r{i}", {"data": bytes(MIB - ENVELOPE)})
        a.put("notes", "r3", {"data": bytes(MIB - 400)})
    with pytest.raises(TooLarge), a.transaction():
        for i in range(4, 9):
            a.put("notes", f"r{i}", {"data": bytes(MIB - ENVELOPE)})
    with Proxy(server.port) as proxy:
        world.sync("a", url=proxy.url)
        world.sync("b", url=proxy.url)
        assert b.count("notes") == 4
        _ends_well(world, proxy)


def test_C022_a_frame_above_the_limit_ends_that_connection_and_nothing_else(world: World) -> None:
    world.start()
    with Hand(world.url) as hand:
        hand.open()
        hand.socket.send(bytes(FRAME_BYTES_MAX + 1))
        with pytest.raises(Exception, match="1009"):
            hand.receive()
    world.session("a").put("notes", "r", {})
    world.sync("a")
    world.check()
