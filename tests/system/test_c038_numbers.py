"""C038: numbers that survive the trip unchanged, and those that are refused before it begins."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from functools import partial
from typing import Any

import msgpack
import pytest

from syncline.sync import Entry, ErrorFrame, InvalidValue, OpRefused, Put, unpack

from .hand import NONCE, Hand, codes, make_op, put
from .support import SESSION, World, now_us, query

TAKEN = [2**53 + 1, 2**63 - 1, -(2**63), -0.0, 0.0, 1e-320, 0.1, 5e-324, 1.7976931348623157e308, 1]
REFUSED = [
    2**63,
    2**64 - 1,
    2**64,
    -(2**63) - 1,
    45234928034723904723906,
    math.nan,
    math.inf,
    -math.inf,
]


def _bits(value: object) -> object:
    """A value with its type and bit pattern, at every depth."""
    if isinstance(value, float):
        return ("float", struct.pack(">d", value))
    if isinstance(value, dict):
        return {key: _bits(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_bits(item) for item in value]
    return (type(value).__name__, value)


def test_C038_accepted_numbers_are_the_same_in_type_and_bits_everywhere(world: World) -> None:
    world.start()
    a, b = world.session("a"), world.session("b")
    written = {}
    for i, number in enumerate(TAKEN):
        a.put("notes", f"before{i}", {"i": i})
        written[f"r{i}"] = {"top": number, "list": [number, [number]], "map": {"in": number}}
        a.put("notes", f"r{i}", written[f"r{i}"])
    world.settle()
    logged = {}
    for entry in world.log():
        for accepted in entry.read():
            assert isinstance(accepted.change, Put)
            logged[accepted.change.id] = accepted.change.fields
    for key, fields in written.items():
        for shown in (a.get("notes", key), b.get("notes", key), logged[key]):
            assert _bits(shown) == _bits(fields)
    world.check()


def test_C038_other_numbers_are_refused_at_the_put_with_their_path(world: World) -> None:
    world.start()
    a = world.session("a")
    a.put("notes", "first", {"n": 1})
    attempts: list[tuple[dict[str, Any], str]] = []
    for number in REFUSED:
        attempts.append(({"n": number}, "n"))
        attempts.append(({"tags": [0, {"label": number}]}, "tags[1].label"))
    for fields, where in attempts:
        for _ in range(2):
            with pytest.raises(InvalidValue) as raised:
                a.put("notes", "r", fields)
            assert raised.value.detail["path"] == where
    with pytest.raises(InvalidValue), a.transaction():
        a.put("notes", "half", {"n": 1})
        a.append("event", {"n": math.nan})
    a.put("notes", "last", {"n": 2})
    assert len(a.pending()) == 2
    world.session("b")
    world.settle()
    assert [id_ for id_, _ in world.session("b").records("notes")] == ["first", "last"]
    world.check()


def _pack(number: object, packer: msgpack.Packer) -> bytes:
    data: bytes = packer.pack(number)
    return data


def _body(number: Callable[[msgpack.Packer], bytes]) -> bytes:
    """A put of one field, whose value is made by hand."""
    packer = msgpack.Packer()
    return b"\x91\x95\x01\xa5notes\xa1x\x80\x81\xa1n" + number(packer)


def test_C038_the_server_refuses_them_too(world: World) -> None:
    world.start()
    at = now_us()
    with Hand(world.url) as hand:
        hand.open()
        for n, number in enumerate((2**63, 2**64 - 1, math.nan, math.inf, -math.inf)):
            body = _body(partial(_pack, number))
            bad = make_op(2 * n + 1, put("x"), at=at)._replace(body=body)
            said = hand.push(bad, make_op(2 * n + 2, put(f"good{n}"), at=at))
            (refused,) = [item for item in said if isinstance(item, OpRefused)]
            assert refused.code in (3001, 3019) and refused.final
            assert [item.n for item in said if isinstance(item, Entry)] == [2 * n + 2]
    world.session("b")
    world.settle()
    world.check()


def test_C038_a_float_of_32_bits_is_read_as_its_exact_value(world: World) -> None:
    world.start()
    op = make_op(1, put("x"), at=now_us())
    op = op._replace(body=_body(lambda _: bytes.fromhex("ca3dcccccd")))
    with Hand(world.url) as hand:
        hand.open()
        assert codes(hand.push(op)) == []
    world.session("b")
    world.settle()
    expected = struct.unpack(">f", bytes.fromhex("3dcccccd"))[0]
    assert _bits(world.session("b").get("notes", "x")) == _bits({"n": expected})
    world.check()


def test_C038_what_waits_for_a_while_is_not_found_to_have_changed(world: World) -> None:
    """Writing and syncing the same numbers over and over makes one entry for each write."""
    world.start()
    a = world.session("a")
    a.put("notes", "r", {"n": -0.0, "tiny": 1e-320})
    for _ in range(10):
        world.sync("a")
    assert len(world.log()) == 1
    world.check()


@pytest.mark.parametrize("place", ["stamp", "n", "hello", "open"])
def test_C038_a_protocol_field_takes_an_integer_in_range_and_nothing_else(
    world: World, place: str
) -> None:
    world.start()
    for incarnation, number in enumerate((2**63, 2**64 - 1, -1, 1.0, math.nan, True, None, "1"), 1):
        _sends(world, place, number, incarnation)
    world.session("a").put("notes", "after", {})
    world.sync("a")
    assert [entry.client for entry in world.log()] == ["a"]
    world.check()


def _sends(world: World, place: str, number: Any, incarnation: int) -> None:
    op: list[Any] = [1, b"s" * 16, [now_us()], _body(lambda _: b"\x01"), None]
    frame: dict[str, Any] = {"type": "push", "session": SESSION}
    if place == "stamp":
        op[2] = [number]
    elif place == "n":
        op[0] = number
    elif place == "hello":
        frame = {"type": "hello", "client": "x", "incarnation": number, "nonce": NONCE, "clock": 1}
    else:
        frame = {"type": "open", "session": SESSION, "epoch": 1, "seq": number, "hash": None}
    if place in ("stamp", "n"):
        frame["ops"] = [msgpack.packb(op)]
    name = "" if place == "hello" else "hand"
    with Hand(world.url, name, incarnation=incarnation) as hand:
        if place != "hello":
            hand.open()
        hand.socket.send(msgpack.packb(frame))
        said = hand.receive()
        assert isinstance(said, ErrorFrame | OpRefused) and said.code == 3001


def test_C038_the_ledger_holds_the_same_numbers(world: World) -> None:
    """A refusal's row can be read back to the bit; ``n`` at the edge of its range."""
    world.start()
    a, b = world.session("a"), world.session("b")
    a.put("notes", "r", {"n": 2**63 - 1}, updated_at=2**50)
    b.put("notes", "r", {"n": -(2**63)}, updated_at=2**50)
    world.settle()
    (conflict,) = a.conflicts()
    assert conflict.value == 2**63 - 1
    world.check()
    rows = [unpack(row) for (row,) in query(world.data, "SELECT row FROM ledger")]
    (lost,) = [row for row in rows if row[2] == "lost"]
    assert lost[4]["loser"][0] == 2**50
