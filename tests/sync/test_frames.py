"""Frames: every one comes back from its bytes, and nothing from outside does harm."""

from __future__ import annotations

import json
from hashlib import sha256
from typing import Any, get_args

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, TypeAdapter, ValidationError
from tests.sync.strategies import TEXT, VALUES

from syncline.sync import (
    FRAME_BYTES_BEFORE_SIGN_IN_MAX,
    FRAME_BYTES_MAX,
    OP_BYTES_MAX,
    PAGE_BYTES,
    PAGE_ITEMS_MAX,
    POINTS_MAX,
    PROTOCOL,
    PROTOCOL_VERSION,
    Common,
    Compare,
    Entries,
    ErrorFrame,
    Forbidden,
    Frame,
    Hello,
    History,
    HistoryPage,
    ListSessions,
    MalformedFrame,
    Mark,
    Marked,
    Open,
    Opened,
    OpRefused,
    Push,
    SessionItem,
    Sessions,
    Signal,
    Snapshot,
    SnapshotPage,
    ToClient,
    ToServer,
    Welcome,
    decode_to_client,
    decode_to_server,
    encode_frame,
    error_frame,
    pack,
    unpack,
)

IDS = st.from_regex(r"\A[A-Za-z0-9][A-Za-z0-9_-]{0,8}\Z")
NUMBERS = st.integers(0, 2**63 - 1)
POSITIVE = st.integers(1, 2**63 - 1)
HASHES = st.binary(min_size=32, max_size=32)
ITEMS = st.lists(st.binary(max_size=8), max_size=3).map(tuple)
DETAIL = st.dictionaries(TEXT, VALUES, max_size=3)


def rows(*parts: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(st.tuples(*parts), max_size=3).map(tuple)


TO_SERVER: dict[type[Frame], st.SearchStrategy[Any]] = {
    Hello: st.builds(
        Hello,
        version=NUMBERS,
        client=IDS,
        incarnation=POSITIVE,
        nonce=st.binary(min_size=16, max_size=16),
        token=st.none() | TEXT,
        clock=NUMBERS,
    ),
    ListSessions: st.builds(ListSessions, after=TEXT),
    Open: st.builds(
        Open,
        session=IDS,
        epoch=NUMBERS,
        seq=NUMBERS,
        hash=st.none() | HASHES,
        pending_from=POSITIVE,
        snapshot=st.booleans(),
    ),
    Push: st.builds(Push, session=IDS, ops=ITEMS),
    Compare: st.builds(Compare, session=IDS, points=rows(NUMBERS, HASHES)),
    Snapshot: st.builds(Snapshot, session=IDS, after=st.binary(max_size=9), pending_from=POSITIVE),
    History: st.builds(History, session=IDS, seq=POSITIVE, through=POSITIVE),
    Mark: st.builds(Mark, id=NUMBERS),
    Signal: st.builds(
        Signal, session=IDS, kind=TEXT, payload=st.binary(max_size=9), client=st.just("") | IDS
    ),
}

TO_CLIENT: dict[type[Frame], st.SearchStrategy[Any]] = {
    Welcome: st.builds(
        Welcome,
        version=NUMBERS,
        nonce=st.binary(max_size=16),
        store=IDS,
        epoch=POSITIVE,
        clock=NUMBERS,
        op_bytes_max=POSITIVE,
        ahead_us_max=NUMBERS,
    ),
    Sessions: st.builds(
        Sessions,
        items=st.lists(st.builds(SessionItem, IDS, TEXT, POSITIVE, NUMBERS), max_size=3).map(tuple),
        page=st.booleans(),
        more=st.booleans(),
    ),
    Opened: st.builds(
        Opened,
        session=IDS,
        stand=st.sampled_from(["catch_up", "bootstrap", "diverged"]),
        genesis=HASHES,
        epoch=POSITIVE,
        head=NUMBERS,
        hash=HASHES,
        floor=NUMBERS,
        last=NUMBERS,
        running=HASHES,
    ),
    Entries: st.builds(Entries, session=IDS, seq=POSITIVE, previous=HASHES, entries=ITEMS),
    Common: st.builds(Common, session=IDS, seq=NUMBERS),
    SnapshotPage: st.builds(
        SnapshotPage,
        session=IDS,
        epoch=POSITIVE,
        seq=NUMBERS,
        hash=HASHES,
        rows=rows(TEXT, TEXT, NUMBERS, st.binary(max_size=9)),
        conflicts=ITEMS,
        entries=rows(HASHES, st.binary(max_size=9)),
        after=st.none() | st.binary(max_size=9),
        vector=st.none() | st.dictionaries(IDS, NUMBERS, max_size=3),
    ),
    HistoryPage: st.builds(HistoryPage, session=IDS, seq=POSITIVE, previous=HASHES, entries=ITEMS),
    OpRefused: st.builds(
        OpRefused,
        session=IDS,
        n=POSITIVE,
        code=NUMBERS,
        reason=TEXT,
        detail=DETAIL,
        final=st.booleans(),
        entry=st.none() | st.binary(max_size=9),
        hash=st.none() | HASHES,
    ),
    Marked: st.builds(Marked, id=NUMBERS, heads=rows(IDS, NUMBERS, NUMBERS)),
    Signal: TO_SERVER[Signal],
    ErrorFrame: st.builds(
        ErrorFrame,
        session=st.none() | TEXT,
        code=NUMBERS,
        reason=TEXT,
        detail=DETAIL,
        retry_after_ms=st.none() | NUMBERS,
    ),
}


def simplest(strategies: dict[type[Frame], st.SearchStrategy[Any]]) -> list[Any]:
    """One frame of each type, by hand: what the hostile tests start from."""
    zero = bytes(32)
    made: dict[type[Frame], Frame] = {
        Hello: Hello(client="ann", incarnation=1, nonce=bytes(16), clock=0),
        ListSessions: ListSessions(),
        Open: Open(session="s", epoch=1, seq=0, hash=None),
        Push: Push(session="s", ops=(b"op",)),
        Compare: Compare(session="s", points=((1, zero),)),
        Snapshot: Snapshot(session="s"),
        History: History(session="s", seq=1, through=2),
        Mark: Mark(id=1),
        Signal: Signal(session="s", kind="typing", payload=b""),
        Welcome: Welcome(nonce=bytes(16), store="st", epoch=1, clock=0, ahead_us_max=0),
        Sessions: Sessions(items=(SessionItem("s", "label", 1, 0),)),
        Opened: Opened(
            session="s",
            stand="catch_up",
            genesis=zero,
            epoch=1,
            head=0,
            hash=zero,
            floor=0,
            last=0,
            running=zero,
        ),
        Entries: Entries(session="s", seq=1, previous=zero, entries=(b"e",)),
        Common: Common(session="s", seq=0),
        SnapshotPage: SnapshotPage(
            session="s",
            epoch=1,
            seq=0,
            hash=zero,
            rows=(("c", "r", 1, b"state"),),
            conflicts=(b"c",),
            entries=((zero, b"e"),),
            after=None,
            vector={"ann": 1},
        ),
        HistoryPage: HistoryPage(session="s", seq=1, previous=zero, entries=(b"e",)),
        OpRefused: OpRefused(session="s", n=1, code=3005, detail={"expected": 1}),
        Marked: Marked(id=1, heads=(("s", 1, 0),)),
        ErrorFrame: ErrorFrame(code=3008, reason="no"),
    }
    return [made[cls] for cls in strategies]


SIDES = [(decode_to_server, TO_SERVER), (decode_to_client, TO_CLIENT)]
EACH = [(decode, frame) for decode, made in SIDES for frame in simplest(made)]
each_frame = pytest.mark.parametrize(
    ("decode", "frame"), EACH, ids=[f"{d.__name__}-{f.type}" for d, f in EACH]
)


def test_FR1_the_tests_know_every_frame() -> None:
    assert set(TO_SERVER) == set(get_args(ToServer))
    assert set(TO_CLIENT) == set(get_args(ToClient))


@given(st.one_of(list(TO_SERVER.values())))
def test_FR1_every_frame_to_the_server_comes_back_from_its_bytes(frame: Frame) -> None:
    assert decode_to_server(encode_frame(frame)) == frame


@given(st.one_of(list(TO_CLIENT.values())))
def test_FR1_every_frame_to_the_client_comes_back_from_its_bytes(frame: Frame) -> None:
    assert decode_to_client(encode_frame(frame)) == frame


@each_frame
def test_FR1_frames_are_binary(decode: Any, frame: Any) -> None:
    with pytest.raises(MalformedFrame, match="frames are binary, not text"):
        decode(encode_frame(frame).decode("latin-1"))


@each_frame
def test_FR1_a_frame_is_valid_once_built_and_cannot_be_changed(decode: Any, frame: Any) -> None:
    with pytest.raises(ValidationError):
        frame.type = "other"


@pytest.mark.parametrize("decode", [decode_to_server, decode_to_client])
@pytest.mark.parametrize("raw", [None, [], 1, "hello", {}, {"type": 1}, {"type": b"hello"}])
def test_FR1_what_is_no_map_with_a_type_is_malformed(decode: Any, raw: Any) -> None:
    with pytest.raises(MalformedFrame, match="a frame must be a map with a type"):
        decode(pack(raw))


@each_frame
def test_FR2_unknown_keys_are_skipped(decode: Any, frame: Any) -> None:
    raw = {**unpack(encode_frame(frame)), "unheard_of": [1, {"x": None}]}
    assert decode(pack(raw)) == frame


@pytest.mark.parametrize("decode", [decode_to_server, decode_to_client])
def test_FR2_unknown_types_are_skipped_whatever_they_hold(decode: Any) -> None:
    assert decode(pack({"type": "unheard_of"})) is None
    assert decode(pack({"type": "unheard_of", "session": 5, "ops": {"a": [1]}})) is None


def test_FR2_frames_for_the_other_side_are_skipped() -> None:
    for frame in simplest(TO_CLIENT):
        if not isinstance(frame, Signal):
            assert decode_to_server(encode_frame(frame)) is None
    for frame in simplest(TO_SERVER):
        if not isinstance(frame, Signal):
            assert decode_to_client(encode_frame(frame)) is None


HOSTILE: list[Any] = [
    *(None, True, -1, 2**63, 2**64 - 1, 1.5, float("nan"), msgpack.Timestamp(1)),
    *("", "a\n", "x" * 5000, b"", b"x", {}, {"a": []}),
    *([], [None], [[]], [[1, 2, 3, 4, 5]], [b"x"] * 1025),
]


@each_frame
def test_FR3_a_key_of_a_wrong_type_is_malformed_or_harmless(decode: Any, frame: Any) -> None:
    good = unpack(encode_frame(frame))
    for key in good:
        for value in HOSTILE:
            try:
                decoded = decode(msgpack.packb({**good, key: value}))
            except MalformedFrame as error:
                assert len(str(error)) < 1000
            else:
                assert decoded is None or decode(encode_frame(decoded)) == decoded


@each_frame
def test_FR3_a_required_key_that_is_missing_is_malformed_and_named(decode: Any, frame: Any) -> None:
    good = unpack(encode_frame(frame))
    for key, field in type(frame).model_fields.items():
        if key != "type" and field.is_required():
            with pytest.raises(MalformedFrame, match=rf"of type {frame.type}: .*{key}"):
                decode(pack({k: v for k, v in good.items() if k != key}))


@each_frame
def test_FR3_a_frame_cut_anywhere_or_with_bytes_behind_it_is_malformed(
    decode: Any, frame: Any
) -> None:
    data = encode_frame(frame)
    for size in range(len(data)):
        with pytest.raises(MalformedFrame):
            decode(data[:size])
    with pytest.raises(MalformedFrame):
        decode(data + b"\xc0")


@each_frame
def test_FR3_a_frame_with_any_byte_changed_is_a_frame_or_malformed(decode: Any, frame: Any) -> None:
    data = encode_frame(frame)
    for place in range(len(data)):
        for byte in (0x00, 0xC1, 0xCA, 0xD4, 0xDD, 0xFF, data[place] ^ 1, data[place] ^ 0x80):
            try:
                decode(data[:place] + bytes([byte]) + data[place + 1 :])
            except MalformedFrame:
                pass


@given(st.binary(max_size=80), st.sampled_from(["", "hello", "push", "entries", "error"]))
def test_FR3_arbitrary_bytes_are_a_frame_or_malformed(data: bytes, type_: str) -> None:
    head = b"\x83\xa4type" + pack(type_) if type_ else b""
    for decode in (decode_to_server, decode_to_client):
        try:
            decode(head + data)
        except MalformedFrame:
            pass


@given(st.dictionaries(TEXT, VALUES, max_size=4), st.sampled_from([f.type for _, f in EACH]))
def test_FR3_arbitrary_maps_are_a_frame_or_malformed(raw: dict[str, Any], type_: str) -> None:
    for decode in (decode_to_server, decode_to_client):
        try:
            decode(pack({**raw, "type": type_}))
        except MalformedFrame:
            pass


@pytest.mark.parametrize("value", [msgpack.Timestamp(1), float("nan"), 2**63, {b"k": 1}])
def test_RE4_a_detail_holds_plain_values_only(value: Any) -> None:
    deep: Any = 1
    for _ in range(70):
        deep = [deep]
    frames = simplest({OpRefused: st.nothing(), ErrorFrame: st.nothing()})
    for bad in (value, deep):
        for frame in frames:
            raw = {**unpack(encode_frame(frame)), "detail": {"k": bad}}
            with pytest.raises(MalformedFrame, match="detail"):
                decode_to_client(msgpack.packb(raw))


def test_RE4_an_error_is_about_a_session_or_about_the_connection() -> None:
    error = Forbidden("no access to session s", session="s")
    about = error_frame(error, "s")
    assert (about.session, about.code, about.detail) == ("s", 3008, {"session": "s"})
    assert about.reason == "no access to session s"
    assert error_frame(error).session is None
    assert len(error_frame(Forbidden("x" * 9000)).reason) == 4096


def test_FR4_the_limits_are_those_of_the_protocol() -> None:
    assert FRAME_BYTES_BEFORE_SIGN_IN_MAX == 64 * 1024
    assert FRAME_BYTES_MAX == OP_BYTES_MAX + 64 * 1024 == 4 * 1024 * 1024 + 64 * 1024
    assert (PAGE_BYTES, PAGE_ITEMS_MAX, POINTS_MAX) == (256 * 1024, 1024, 64)


def test_FR4_a_page_of_1024_items_is_taken_and_one_more_is_not() -> None:
    page = Push(session="s", ops=(b"x",) * PAGE_ITEMS_MAX)
    assert decode_to_server(encode_frame(page)) == page
    raw = {"type": "push", "session": "s", "ops": [b"x"] * (PAGE_ITEMS_MAX + 1)}
    with pytest.raises(MalformedFrame):
        decode_to_server(pack(raw))
    points = {"type": "compare", "session": "s", "points": [[1, bytes(32)]] * (POINTS_MAX + 1)}
    with pytest.raises(MalformedFrame):
        decode_to_server(pack(points))


SCHEMAS = {1: "d80da6b65d7ca217d039304162728a8a1d59ced42e73254f7ac644660775cd95"}
"""The digest of the frames' form, by protocol version. Add a line with a new version (and one to
the history in ``_frames``); change one only while that version has not been released."""


def test_FR5_the_form_of_frames_is_pinned_to_the_version() -> None:
    unions: list[Any] = [ToServer, ToClient]
    schema = [TypeAdapter(union).json_schema() for union in unions]
    form = json.dumps(_without_prose(schema), sort_keys=True)
    assert (PROTOCOL, PROTOCOL_VERSION) == ("syncline.v1", 1)
    assert {PROTOCOL_VERSION: sha256(form.encode()).hexdigest()} == SCHEMAS


def _without_prose(schema: Any) -> Any:
    if isinstance(schema, dict):
        return {
            key: _without_prose(value)
            for key, value in schema.items()
            if not (key in ("title", "description") and isinstance(value, str))
        }
    return [_without_prose(item) for item in schema] if isinstance(schema, list) else schema


def test_FR5_every_frame_is_a_frozen_model_that_ignores_what_it_does_not_know() -> None:
    for cls in (*get_args(ToServer), *get_args(ToClient)):
        assert issubclass(cls, BaseModel)
        assert cls.model_config == {"frozen": True, "extra": "ignore", "strict": True}
