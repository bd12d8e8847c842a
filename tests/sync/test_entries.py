"""Entries and the chain: whatever byte is changed, the hash tells."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.sync.strategies import swapped

from syncline.sync import (
    NO_HASH,
    AcceptedChange,
    Change,
    Effect,
    Entry,
    Event,
    Lost,
    MalformedFrame,
    Outcome,
    Patch,
    Put,
    Stamp,
    encode_body,
    encode_effects,
    events_in,
    genesis,
    op_digest,
    pack,
    running_hash,
    unpack,
    walk_chain,
)

SALT = bytes(range(16))
CHANGES: list[Change] = [Put("notes", "r", {}, {"f": 1}), Event("said", {"text": "hi"})]
EFFECT = Effect(
    Outcome.WON,
    {"f": 1},
    ("g",),
    True,
    None,
    {"ann": 1, "bob": 1},
    (Lost("g", 2, Stamp(1, "bob", 1), Stamp(5, "ann", 1)),),
)
ENTRY = Entry(
    1,
    7,
    "ann",
    1,
    Outcome.WON,
    9,
    SALT,
    encode_effects([5, 6], [EFFECT, None]),
    encode_body(CHANGES),
)


def chain(count: int) -> list[Entry]:
    body = encode_body([Event("said", {})])
    return [
        Entry(1, n, "ann", n, Outcome.APPLIED, n, SALT, encode_effects([n], [None]), body)
        for n in range(1, count + 1)
    ]


@given(
    st.builds(
        Entry,
        *[st.integers(1, 2**63 - 1)] * 2,
        st.sampled_from(["ann", "bob"]),
        st.integers(1, 2**63 - 1),
        st.sampled_from(Outcome),
        st.integers(0, 2**63 - 1),
        st.binary(min_size=16, max_size=16),
        st.binary(max_size=9),
        st.binary(max_size=9),
    )
)
def test_FR8_an_entry_comes_back_from_its_bytes(entry: Entry) -> None:
    assert Entry.decode(entry.encode()) == entry
    assert Entry.decode(entry.encode()).encode() == entry.encode()


GOOD: list[Any] = unpack(ENTRY.encode())


@pytest.mark.parametrize(
    "row",
    [
        None,
        GOOD[:8],
        [*GOOD, 1],
        *swapped(GOOD, 0, 0, -1, 2**63, 2**64 - 1, True, 1.0, "1", None),
        *swapped(GOOD, 1, 0, -1, 2**63, 2**64 - 1, True, 1.0, "1", None),
        *swapped(GOOD, 2, "", "a b", b"ann", 1, None),
        *swapped(GOOD, 3, 0, -1, 2**63, True, 1.0, "1", None),
        *swapped(GOOD, 4, 4, -1, True, 1.0, None),
        *swapped(GOOD, 5, -1, 2**63, True, 1.0, None),
        *swapped(GOOD, 6, b"", bytes(15), bytes(17), "x" * 16, None),
        *swapped(GOOD, 7, "", None, []),
        *swapped(GOOD, 8, "", None, []),
    ],
)
def test_FR8_an_entry_of_another_shape_is_malformed(row: Any) -> None:
    with pytest.raises(MalformedFrame):
        Entry.decode(pack(row))


def test_FR8_an_entry_reads_as_changes_with_their_stamps_and_effects() -> None:
    assert ENTRY.read() == [
        AcceptedChange(CHANGES[0], Stamp(5, "ann", 1), EFFECT),
        AcceptedChange(CHANGES[1], Stamp(6, "ann", 1), None),
    ]
    assert events_in(CHANGES) == 1
    assert ENTRY.dot == ("ann", 1)
    assert ENTRY.receipt_id == SALT.hex()


def test_FR8_the_list_of_effects_is_nil_when_every_change_simply_applied() -> None:
    assert unpack(encode_effects([5, 6], [None, None])) == [[5, 6], None]
    plain = ENTRY._replace(effects=encode_effects([5, 6], [None, None]))
    assert [accepted.effect for accepted in plain.read()] == [None, None]


@pytest.mark.parametrize(
    "effects",
    [
        b"",
        pack(None),
        pack([[5, 6]]),
        pack([[5], None]),
        pack([[5, 6, 7], None]),
        pack([[5, 6], [None]]),
        pack([[5, 6], [None, 1]]),
        pack([["5", 6], None]),
        pack([[5, True], None]),
        pack([[5, 6], [None, None], 1]),
    ],
)
def test_FR8_effects_of_another_shape_are_malformed(effects: bytes) -> None:
    with pytest.raises(MalformedFrame):
        ENTRY._replace(effects=effects).read()


def test_FR8_a_body_that_is_none_is_malformed_in_an_entry() -> None:
    with pytest.raises(MalformedFrame, match="entry 7: "):
        ENTRY._replace(body=b"\xc1").read()


@given(st.binary(max_size=60))
def test_FR3_arbitrary_bytes_are_an_entry_or_malformed(data: bytes) -> None:
    for candidate in (data, b"\x99" + data):
        try:
            Entry.decode(candidate).read()
        except MalformedFrame:
            pass
    for entry in (ENTRY._replace(effects=data), ENTRY._replace(body=data)):
        try:
            entry.read()
        except MalformedFrame:
            pass


def test_CH5_each_flipped_bit_of_an_entry_changes_its_hash_or_is_no_entry() -> None:
    data, expected = ENTRY.encode(), ENTRY.hash(NO_HASH)
    for place in range(len(data)):
        for bit in range(8):
            flipped = bytearray(data)
            flipped[place] ^= 1 << bit
            try:
                entry = Entry.decode(bytes(flipped))
            except MalformedFrame:
                continue
            assert entry.hash(NO_HASH) != expected, f"byte {place}, bit {bit}"


@given(st.data())
def test_CH5_a_change_anywhere_in_a_log_changes_every_hash_after_it(data: st.DataObject) -> None:
    entries = chain(8)
    good = [hash_ for _, hash_ in walk_chain(entries, NO_HASH)]
    at = data.draw(st.integers(0, 7))
    field = data.draw(st.sampled_from(["epoch", "client", "n", "outcome", "accepted_at", "body"]))
    other: Any = {"client": "eve", "outcome": Outcome.LOST, "body": b"x"}.get(field, 99)
    bad = entries[:at] + [entries[at]._replace(**{field: other})] + entries[at + 1 :]
    walked = [hash_ for _, hash_ in walk_chain(bad, NO_HASH)]
    assert walked[:at] == good[:at]
    assert all(a != b for a, b in zip(walked[at:], good[at:], strict=True))


def test_CH5_a_log_with_an_entry_less_more_or_elsewhere_has_another_head() -> None:
    entries = chain(4)

    def head(some: list[Entry], previous: bytes = NO_HASH) -> bytes:
        return list(walk_chain(some, previous))[-1][1]

    swapped = [entries[0], entries[2], entries[1], entries[3]]
    heads = [
        head(entries),
        head(entries[1:]),
        head(entries[:3]),
        head(swapped),
        head([entries[0], *entries]),
        head(entries, bytes(31) + b"\x01"),
    ]
    assert len(set(heads)) == len(heads)


def test_CH6_the_hash_follows_from_the_bytes_as_they_are() -> None:
    """A body that another client encoded in its own way keeps its bytes, and with them its hash."""
    odd = b"\x91\x95\xcd\x00\x01\xa1c\xa1r\x80\x80"  # the kind as a 16-bit integer
    entry = ENTRY._replace(effects=encode_effects([5], [None]), body=odd)
    decoded = Entry.decode(entry.encode())
    assert decoded.body == odd
    assert decoded.hash(NO_HASH) == entry.hash(NO_HASH)
    normal = entry._replace(body=encode_body([Put("c", "r", {}, {})]))
    assert [a.change for a in normal.read()] == [a.change for a in decoded.read()]
    assert normal.hash(NO_HASH) != entry.hash(NO_HASH)


def test_CH3_the_genesis_names_store_epoch_and_session() -> None:
    hashes = {
        genesis(*args) for args in [("s", 1, "a"), ("t", 1, "a"), ("s", 2, "a"), ("s", 1, "b")]
    }
    assert len(hashes) == 4
    assert {len(hash_) for hash_ in hashes} == {32}


def test_CH4_the_running_hash_covers_every_op_before() -> None:
    digests = [op_digest(SALT, bytes([i])) for i in range(3)]

    def run(some: list[bytes]) -> bytes:
        running = NO_HASH
        for n, digest in enumerate(some, 1):
            running = running_hash(running, n, digest)
        return running

    assert len({run(digests), run(digests[:2]), run(digests[::-1]), run(digests[1:])}) == 4
    assert running_hash(NO_HASH, 1, digests[0]) != running_hash(NO_HASH, 2, digests[0])


def test_CH2_the_op_digest_tells_salt_and_body_apart() -> None:
    assert op_digest(SALT, b"x") != op_digest(bytes(16), b"x")
    assert op_digest(SALT, b"x") != op_digest(SALT, b"y")


def test_CH1_no_hash_can_stand_for_another() -> None:
    """Each input begins with its own tag, so the same bytes never meet."""
    assert len({op_digest(SALT, b""), running_hash(SALT, 1, b""), genesis("", 1, "")}) == 3
    effects_first = Entry(1, 1, "a", 1, Outcome.APPLIED, 0, SALT, b"x", b"y").hash(NO_HASH)
    body_first = Entry(1, 1, "a", 1, Outcome.APPLIED, 0, SALT, b"y", b"x").hash(NO_HASH)
    assert effects_first != body_first


def test_a_patch_of_nothing_is_still_a_change() -> None:
    entry = ENTRY._replace(
        effects=encode_effects([5], [None]),
        body=encode_body([Patch("notes", "r", {"ann": 1}, {})]),
    )
    assert [accepted.change for accepted in entry.read()] == [Patch("notes", "r", {"ann": 1}, {})]
