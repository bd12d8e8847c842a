"""Values: what goes in comes out equal and of the same type, and nothing else goes in."""

from __future__ import annotations

import enum
import math
import struct
import tracemalloc
from datetime import UTC, datetime
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.sync.strategies import FIELDS, VALUES

from syncline.sync import (
    INT_MAX,
    INT_MIN,
    KEY_BYTES_MAX,
    VALUE_DEPTH_MAX,
    InvalidValue,
    MalformedFrame,
    Value,
    canonical,
    check_fields,
    check_value,
    copy_fields,
    pack,
    same,
    unpack,
)


def nested(depth: int) -> Value:
    value: Value = 1
    for _ in range(depth - 1):
        value = [value]
    return value


def alike(a: Value, b: Value) -> bool:
    """Equal and of the same types, said without the core."""
    if type(a) is not type(b):
        return False
    if type(a) is float:
        return struct.pack("d", a) == struct.pack("d", b)
    if type(a) is list:
        return len(a) == len(b) and all(alike(x, y) for x, y in zip(a, b, strict=True))
    if type(a) is dict:
        return a.keys() == b.keys() and all(alike(a[key], b[key]) for key in a)
    return bool(a == b)


@given(VALUES)
def test_VA1_what_goes_in_comes_out_equal_and_of_the_same_type(value: Value) -> None:
    check_value(value)
    assert alike(unpack(pack(value)), value)
    assert alike(unpack(canonical(value)), value)


@given(VALUES, VALUES)
def test_VA1_same_means_equal_and_of_the_same_types(a: Value, b: Value) -> None:
    assert same(a, a)
    assert same(a, b) is alike(a, b)


@pytest.mark.parametrize(("a", "b"), [(1, True), (0, False), (1, 1.0), ("a", b"a"), (0.0, -0.0)])
def test_VA1_values_that_python_calls_equal_are_told_apart(a: Value, b: Value) -> None:
    assert not same(a, b)
    assert not same([a], [b])
    assert not same({"k": a}, {"k": b})


@pytest.mark.parametrize(
    "value",
    [INT_MIN, INT_MAX, "x" * 100_000, b"\xff" * 100_000, 5e-324, 1.7976931348623157e308, -0.0],
)
def test_VA1_the_extremes_are_taken(value: Value) -> None:
    check_value(value)
    assert alike(unpack(pack(value)), value)


def test_VA1_values_nest_to_the_limit_and_no_deeper() -> None:
    check_value(nested(VALUE_DEPTH_MAX))
    assert check_fields({"f": nested(VALUE_DEPTH_MAX)}) == {"f": nested(VALUE_DEPTH_MAX)}
    with pytest.raises(InvalidValue, match="nested more than 64 deep"):
        check_value(nested(VALUE_DEPTH_MAX + 1))


def test_VA1_large_lists_and_maps_within_the_size_of_a_record_come_back() -> None:
    for value in ([0] * 1_000_000, {str(i): 0 for i in range(100_000)}):
        check_value(value)
        assert unpack(pack(value)) == value


class Number(enum.IntEnum):
    ONE = 1


class Text(str):
    pass


LOOP: list[Any] = []
LOOP.append(LOOP)


@pytest.mark.parametrize(
    ("value", "path", "problem"),
    [
        (math.nan, "f", "floats must be finite"),
        (math.inf, "f", "floats must be finite"),
        ([-math.inf], "f[0]", "floats must be finite"),
        (INT_MAX + 1, "f", "an integer beyond 64 signed bits"),
        (INT_MIN - 1, "f", "an integer beyond 64 signed bits"),
        ({"a": [1, {"b": 2**64}]}, "f.a[1].b", "an integer beyond 64 signed bits"),
        ("\ud800", "f", "text that is not valid Unicode"),
        (["ok", "a\udfff"], "f[1]", "text that is not valid Unicode"),
        ({"\ud800": 1}, r"f.\ud800", "a key that is not valid Unicode"),
        ((1, 2), "f", "of type tuple"),
        ([{1, 2}], "f[0]", "of type set"),
        ({"a": bytearray(b"x")}, "f.a", "of type bytearray"),
        (datetime(2020, 1, 1, tzinfo=UTC), "f", "of type datetime"),
        (msgpack.Timestamp(1), "f", "of type Timestamp"),
        (1j, "f", "of type complex"),
        (Number.ONE, "f", "of type Number"),
        (Text("a"), "f", "of type Text"),
        (object(), "f", "of type object"),
        ({1: 2}, "f", "a key of type int"),
        ({"a": {b"k": 2}}, "f.a", "a key of type bytes"),
        ({None: 2}, "f", "a key of type NoneType"),
        ({"k" * (KEY_BYTES_MAX + 1): 1}, "f", "a key of more than 1024 bytes"),
        ({"é" * 513: 1}, "f", "a key of more than 1024 bytes"),
        (LOOP, "f" + "[0]" * 63, "nested more than 64 deep"),
    ],
)
def test_VA2_a_forbidden_value_is_refused_with_its_path(
    value: object, path: str, problem: str
) -> None:
    with pytest.raises(InvalidValue) as caught:
        check_fields({"fine": 1, "f": value})
    shown = path if len(path) <= 120 else path[:60] + "..." + path[-57:]
    assert caught.value.detail["path"] == shown
    assert problem in caught.value.reason
    assert caught.value.code == 3019


def test_VA2_a_path_in_a_message_is_short_and_printable() -> None:
    with pytest.raises(InvalidValue) as caught:
        check_fields({"f": {"a\n\u202e" * 300: math.nan}})
    path = caught.value.detail["path"]
    assert len(path) <= 120 and path.isprintable()


@pytest.mark.parametrize("fields", [None, [], "text", [("a", 1)]])
def test_VA2_fields_that_are_no_dict_are_refused(fields: object) -> None:
    with pytest.raises(InvalidValue, match="fields must be a dict, not"):
        check_fields(fields)


@given(FIELDS, st.randoms(use_true_random=False))
def test_VA3_canonical_bytes_do_not_depend_on_the_order_of_keys(fields: Value, random: Any) -> None:
    def shuffled(value: Value) -> Value:
        if type(value) is dict:
            items = list(value.items())
            random.shuffle(items)
            return {key: shuffled(item) for key, item in items}
        return [shuffled(item) for item in value] if type(value) is list else value

    assert canonical(shuffled(fields)) == canonical(fields)


def test_VA3_canonical_bytes_are_pinned() -> None:
    value = {"é": [1, -1, 300], "b": {"z": None, "a": True}, "a": 1.5, "A": b"\x00"}
    assert canonical(value).hex() == (
        "84a141c40100a161cb3ff8000000000000a16282a161c3a17ac0a2c3a99301ffcd012c"
    )


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_VA4_a_float_of_32_bits_is_read_exactly(value: float) -> None:
    read = unpack(b"\xca" + struct.pack(">f", value))
    assert alike(read, value)
    assert canonical(read) == b"\xcb" + struct.pack(">d", value)


BAD = {
    "no bytes": b"",
    "a duplicate key": b"\x82\xa1a\x01\xa1a\x02",
    "a duplicate key deep down": b"\x91\x81\xa1x\x82\xa1a\x01\xa1a\x02",
    "an extension": b"\xd4\x05\x00",
    "an extension of 2**32-1 bytes": b"\xc9\xff\xff\xff\xff\x05",
    "a key that is a number": b"\x81\x01\x01",
    "a key that is nil": b"\x81\xc0\x01",
    "a key that is a list": b"\x81\x90\x01",
    "trailing bytes": b"\x01\x01",
    "missing bytes": b"\x92\x01",
    "text that is not UTF-8": b"\xa1\xff",
    "text with a surrogate": b"\xa3\xed\xa0\x80",
    "a byte that means nothing": b"\xc1",
    "a list that claims 2**32-1 items": b"\xdd\xff\xff\xff\xff",
    "a map that claims 2**32-1 items": b"\xdf\xff\xff\xff\xff",
    "bytes that claim 2**32-1": b"\xc6\xff\xff\xff\xff",
    "text that claims 2**32-1": b"\xdb\xff\xff\xff\xff",
    "a list in a list, 100,000 deep": b"\x91" * 100_000 + b"\x01",
    "a map in a map, 100,000 deep": b"\x81\xa1a" * 100_000 + b"\x01",
}


@pytest.mark.parametrize("data", BAD.values(), ids=BAD.keys())
def test_FR3_the_decoder_refuses(data: bytes) -> None:
    with pytest.raises(MalformedFrame) as caught:
        unpack(data)
    assert len(caught.value.reason) < 300


@pytest.mark.parametrize(
    "data",
    [
        b"\xd6\xff\x00\x00\x00\x01",  # a timestamp
        b"\xcb" + struct.pack(">d", math.nan),
        b"\xca" + struct.pack(">f", math.inf),
        b"\xcf\xff\xff\xff\xff\xff\xff\xff\xff",  # 64 unsigned bits
        b"\x81\xc4\x01a\x01",  # a key of bytes
        b"\x91" * 64 + b"\x01",
    ],
)
def test_VA2_what_the_decoder_lets_through_is_refused_as_a_value(data: bytes) -> None:
    with pytest.raises(InvalidValue):
        check_value(unpack(data))


@given(st.binary(max_size=64))
def test_FR3_arbitrary_bytes_are_a_value_or_malformed(data: bytes) -> None:
    try:
        unpack(data)
    except MalformedFrame:
        pass


@pytest.mark.parametrize("header", [b"\xdd\x00\x10\x00\x00", b"\xdf\x00\x10\x00\x00"])
@pytest.mark.parametrize("times", [1, 60, 1000, 4000])
def test_FR3_false_lengths_take_no_memory(header: bytes, times: int) -> None:
    bomb = header * times
    tracemalloc.start()
    try:
        with pytest.raises(MalformedFrame):
            unpack(bomb)
        with pytest.raises(MalformedFrame):
            unpack(bomb + bytes((1 << 20) - 1))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 128 << 20


@given(FIELDS)
def test_a_copy_of_fields_is_equal_and_shares_nothing_that_can_change(fields: Any) -> None:
    def containers(value: Value) -> set[int]:
        inner = value.values() if type(value) is dict else value if type(value) is list else ()
        own = {id(value)} if type(value) in (dict, list) else set()
        return own.union(*(containers(item) for item in inner))

    copied = copy_fields(fields)
    assert alike(copied, fields)
    assert not containers(copied) & containers(fields)
