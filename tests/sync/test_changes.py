"""Changes and ops: their bytes, their limits, and what is refused as one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.sync.strategies import FIELDS, NAMES, VECTORS, swapped

from syncline.sync import (
    OP_BYTES_MAX,
    OP_CHANGES_MAX,
    RECORD_BYTES_MAX,
    STAMP_BYTES,
    Change,
    Delete,
    Dot,
    Erase,
    Event,
    InvalidValue,
    Malformed,
    MalformedFrame,
    Op,
    Patch,
    Put,
    Refused,
    Resolve,
    TooLarge,
    VoidOp,
    decode_body,
    decode_op,
    encode_body,
    encode_op,
    op_digest,
    pack,
    same_content,
)

SALT = bytes(range(16))

IDS = st.lists(st.sampled_from(["ann", "b-1"]), min_size=1, max_size=2).map(tuple)
REWRITTEN = st.lists(
    st.tuples(st.integers(1, 2**63 - 1), st.binary(min_size=32, max_size=32)), max_size=2
).map(tuple)

CHANGES: st.SearchStrategy[Change] = st.one_of(
    st.builds(Put, NAMES, NAMES, VECTORS, FIELDS),
    st.builds(Patch, NAMES, NAMES, VECTORS, FIELDS),
    st.builds(Delete, NAMES, NAMES, VECTORS),
    st.builds(Event, NAMES, FIELDS),
    st.builds(Resolve, NAMES),
    st.builds(Erase, IDS, REWRITTEN),
)


def touched(change: Change) -> object:
    return (
        id(change)
        if isinstance(change, Event | Resolve | Erase)
        else (change.collection, change.id)
    )


BODIES = st.lists(CHANGES, min_size=1, max_size=5, unique_by=touched)


@given(BODIES)
def test_FR7_a_body_comes_back_from_its_bytes(changes: list[Change]) -> None:
    body = encode_body(changes)
    assert decode_body(body) == changes
    assert encode_body(decode_body(body)) == body


@pytest.mark.parametrize(
    "rows",
    [
        None,
        {},
        [],
        [None],
        [[]],
        [[0, "c", "r", {}, {}]],
        [[6, "x"]],
        [[1, "c", "r", {}]],
        [[1, "c", "r", {}, {}, 0]],
        [[3, "c", "r", {}, {}]],
        [[4, "t"]],
        [[5]],
        [[True, "c", "r", {}, {}]],
        [[1.0, "c", "r", {}, {}]],
        [["1", "c", "r", {}, {}]],
        [{"1": 2}],
    ],
)
def test_FR7_a_body_of_another_shape_is_refused(rows: Any) -> None:
    with pytest.raises(Malformed) as caught:
        decode_body(pack(rows))
    assert (caught.value.code, caught.value.final) == (3001, True)


@pytest.mark.parametrize("body", [b"", b"\xc1", b"\x91", b"\x91\xc0\xc0", b"\xdd\xff\xff\xff\xff"])
def test_FR7_a_body_that_is_no_messagepack_is_refused(body: bytes) -> None:
    with pytest.raises(Malformed, match="the op's body is not one MessagePack value"):
        decode_body(body)


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ([1, "", "r", {}, {}], "collection must not be empty"),
        ([1, 5, "r", {}, {}], "collection must be text"),
        ([1, "$other", "r", {}, {}], "is reserved"),
        ([2, "c", "", {}, {}], "record id must not be empty"),
        ([2, "c", None, {}, {}], "record id must be text"),
        ([2, "c", "r", {"a b": 1}, {}], "is not an id"),
        ([2, "c", "r", {"a": 0}, {}], "must be 1 to 2"),
        ([2, "c", "r", [], {}], "a version vector must be a map"),
        ([1, "c", "r", {}, []], "fields must be a dict"),
        ([1, "c", "r", {}, {"$f": 1}], "is reserved"),
        ([1, "c", "r", {}, {"f": [1, {"x": float("nan")}]}], "'f[1].x' is nan"),
        ([3, "c", "r", None], "a version vector must be a map"),
        ([4, "", {}], "event type must not be empty"),
        ([4, "t", {"f": float("inf")}], "floats must be finite"),
        ([4, "t", 1], "fields must be a dict"),
        ([5, ""], "conflict id must not be empty"),
    ],
)
def test_VA2_a_body_is_checked_to_the_last_value(row: Any, problem: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        decode_body(pack([[4, "fine", {}], row]))
    assert problem in caught.value.reason


def test_VA2_deep_nesting_in_a_body_is_refused() -> None:
    value: Any = 1
    for _ in range(300):
        value = [value]
    with pytest.raises(InvalidValue, match="nested more than 64 deep"):
        decode_body(pack([[1, "c", "r", {}, {"f": value}]]))


def test_VA7_the_header_takes_patches_only() -> None:
    patch = Patch("$session", "header", {}, {"label": "x"})
    assert decode_body(encode_body([patch])) == [patch]
    for change in (Put("$session", "header", {}, {}), Delete("$session", "header", {})):
        with pytest.raises(Malformed, match="the session's header takes patches only"):
            decode_body(encode_body([change]))


def test_WR4_an_op_that_changes_a_record_twice_is_refused() -> None:
    twice: list[Change] = [Put("c", "r", {}, {}), Event("t", {}), Delete("c", "r", {})]
    with pytest.raises(Malformed, match="an op changes one record twice"):
        decode_body(encode_body(twice))
    apart = [Put("c", "r", {}, {}), Put("d", "r", {}, {}), Put("c", "s", {}, {})]
    assert decode_body(encode_body(apart)) == apart


@pytest.mark.parametrize("make", [lambda f: Put("c", "r", {}, f), lambda f: Event("t", f)])
def test_VA6_fields_of_1_mib_are_taken_and_one_byte_more_is_refused(make: Any) -> None:
    room = RECORD_BYTES_MAX - len(pack({"f": b"x" * 100_000})) + 100_000
    fits = [make({"f": bytes(room)})]
    assert decode_body(encode_body(fits)) == fits
    with pytest.raises(TooLarge) as caught:
        encode_body([make({"f": bytes(room + 1)})])
    assert caught.value.detail == {"bytes": RECORD_BYTES_MAX + 1, "bytes_max": RECORD_BYTES_MAX}
    raw = pack([[1, "c", "r", {}, {"f": bytes(room + 1)}]])
    with pytest.raises(TooLarge, match="the fields of c/r have 1048577 bytes"):
        decode_body(raw)


def test_VA6_an_op_of_4_mib_is_taken_and_one_byte_more_is_refused() -> None:
    def op(last: int) -> list[Change]:
        sizes = [1_000_000, 1_000_000, 1_000_000, 1_000_000, last]
        return [Put("c", str(i), {}, {"f": bytes(size)}) for i, size in enumerate(sizes)]

    stamps = 5 * STAMP_BYTES
    room = 100_000 + OP_BYTES_MAX - stamps - len(encode_body(op(100_000)))
    assert len(encode_body(op(room))) == OP_BYTES_MAX - stamps
    assert decode_body(encode_body(op(room))) == op(room)
    with pytest.raises(TooLarge, match="the op has 4194305 bytes, the most is 4194304"):
        encode_body(op(room + 1))
    with pytest.raises(TooLarge, match="the op has 4194305 bytes"):
        decode_body(bytes(OP_BYTES_MAX + 1))


def test_VA6_an_op_of_many_small_changes_is_as_large_as_it_travels() -> None:
    """Its stamps count: once they did not, and such an op fitted no frame and was never sent."""
    changes: list[Change] = [Put("n", f"n{i:05}", {}, {"t": "x" * 80}) for i in range(40_000)]
    with pytest.raises(TooLarge):
        encode_body(changes)
    fits = changes[:38_000]
    op = Op(1, b"s" * 16, (2**62,) * len(fits), encode_body(fits))
    assert len(encode_op(op)) <= OP_BYTES_MAX + 100


def test_two_bodies_say_the_same_whatever_their_contexts() -> None:
    one = encode_body([Put("c", "r", {"a": 1}, {"x": 1}), Event("e", {})])
    moved = encode_body([Put("c", "r", {"b": 7}, {"x": 1}), Event("e", {})])
    other = encode_body([Put("c", "r", {"a": 1}, {"x": True}), Event("e", {})])
    assert same_content(one, one) and same_content(one, moved)
    assert not same_content(one, other)
    assert not same_content(one, encode_body([Put("c", "r", {"a": 1}, {"x": 1})]))


def test_VA6_an_op_of_more_than_100000_changes_is_refused() -> None:
    rows = [[5, "x"]] * OP_CHANGES_MAX
    assert len(decode_body(pack(rows))) == OP_CHANGES_MAX
    with pytest.raises(Malformed):
        decode_body(pack([*rows, [5, "x"]]))


def test_VA1_a_map_of_100000_keys_within_a_record_travels() -> None:
    change = Put("c", "r", {}, {"m": {str(i): 0 for i in range(100_000)}})
    assert decode_body(encode_body([change])) == [change]


@given(st.binary(max_size=48))
def test_FR3_arbitrary_bytes_are_a_body_or_refused(data: bytes) -> None:
    for candidate in (data, b"\x91" + data, b"\x91\x95" + data):
        try:
            decode_body(candidate)
        except Refused as refused:
            assert refused.final


# Envelopes.

STAMPS = st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=3).map(tuple)
DOTS = st.builds(Dot, st.sampled_from(["ann", "bob"]), st.integers(1, 2**63 - 1))
OPS = st.one_of(
    st.builds(
        Op,
        st.integers(1, 2**63 - 1),
        st.binary(min_size=16, max_size=16),
        STAMPS,
        st.binary(max_size=20),
        st.none() | DOTS,
    ),
    st.builds(VoidOp, st.integers(1, 2**63 - 1), st.binary(min_size=32, max_size=32)),
)


@given(OPS)
def test_FR6_an_op_comes_back_from_its_bytes(op: Op | VoidOp) -> None:
    assert decode_op(encode_op(op)) == op
    assert encode_op(decode_op(encode_op(op))) == encode_op(op)


GOOD: list[Any] = [1, SALT, [5], b"", None]


@pytest.mark.parametrize(
    "row",
    [
        None,
        [],
        [1],
        [0, bytes(32)],
        [True, bytes(32)],
        [1, bytes(31)],
        [1, "x" * 32],
        [*GOOD, None],
        [SALT, 1, [5], b"", None],
        *swapped(GOOD, 0, -1, 2**64 - 1, True, 1.0, "1", None),
        *swapped(GOOD, 1, b"", bytes(15), bytes(17), "x" * 16),
        *swapped(GOOD, 2, [], 5, [-1], [2**63], [True], [1.0], [None]),
        *swapped(GOOD, 3, "", None, []),
        *swapped(GOOD, 4, [], ["a"], ["a", 0], ["a b", 1], [1, 1], "a", ["a", True]),
    ],
)
def test_FR6_an_envelope_of_another_shape_is_malformed(row: Any) -> None:
    assert decode_op(pack(GOOD)) == Op(1, SALT, (5,), b"")
    with pytest.raises(MalformedFrame):
        decode_op(pack(row))


@pytest.mark.parametrize("n", [0, -1, 2**63, 2**64 - 1])
def test_WR3_a_number_runs_from_1_to_the_largest_of_63_bits(n: int) -> None:
    assert decode_op(pack([2**63 - 1, *GOOD[1:]])).n == 2**63 - 1
    assert decode_op(pack(GOOD)).n == 1
    with pytest.raises(MalformedFrame):
        decode_op(pack([n, *GOOD[1:]]))


@given(st.binary(max_size=48))
def test_FR3_arbitrary_bytes_are_an_envelope_or_malformed(data: bytes) -> None:
    for candidate in (data, b"\x95" + data, b"\x92" + data):
        try:
            decode_op(candidate)
        except MalformedFrame:
            pass


def test_WR5_the_digest_of_an_op_covers_salt_and_body_and_not_its_stamps() -> None:
    """It takes no stamps, so stamping again leaves it: what is left is that it takes the rest."""
    bodies = [encode_body([Put("c", "r", context, {"f": 1})]) for context in ({}, {"ann": 1})]
    digests = {op_digest(salt, b) for salt in (SALT, bytes(16)) for b in bodies}
    assert len(digests) == 4
    first, again = (Op(1, SALT, (at,), bodies[0]) for at in (5, 6))
    assert encode_op(first) != encode_op(again)
    assert op_digest(first.salt, first.body) == op_digest(again.salt, again.body)
