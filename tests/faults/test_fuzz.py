"""A sample of what ``python -m benchmarks.fuzz`` runs a million frames of, and what it found."""

from __future__ import annotations

import json
import random
import tracemalloc
from pathlib import Path

import msgpack
import pytest
from benchmarks.fuzz import main
from tests.client.wire import Wire
from tests.faults import fuzzing, hostile
from tests.faults.fuzzing import Finding, Tally, play, schedule
from tests.server.hand_client import HandServer

from syncline.client import ReceiptState
from syncline.sync import (
    FRAME_BYTES_BEFORE_SIGN_IN_MAX,
    FRAME_BYTES_MAX,
    NUMBER_MAX,
    Common,
    Compare,
    Effect,
    InvalidValue,
    MalformedFrame,
    Put,
    Record,
    SessionItem,
    Sessions,
    SnapshotPage,
    Stamp,
    SyncError,
    decode_conflict,
    decode_to_client,
    encode_body,
    encode_frame,
)

FRAMES = 20_000
ENGINE_ROUNDS = 6


def test_twenty_thousand_hostile_frames_end_no_engine_and_lose_nothing() -> None:
    """Decoders take most of them; both engines get theirs before and after the sign-in."""
    tally = Tally()
    for seed in range(ENGINE_ROUNDS):
        for target in ("server", "client"):
            play(target, seed, tally)
    play("decoders", 0, tally, FRAMES - tally.frames)
    assert tally.frames == FRAMES
    reached = tally.reached
    # Before sign-in, after it, for a broken protocol, and by a decoder: all ways out were taken.
    assert {"server: closed 1007", "server: closed 1002", "server: welcome"} <= reached.keys()
    assert {"server: opened", "server: refused 3001", "server: refused 3006"} <= reached.keys()
    assert {"client: BadPeer", "client: Reconnect", "client: broken"} <= reached.keys()
    assert {"client: entries", "client: refused", "client: snapshot_page"} <= reached.keys()
    for name in ("to server", "to client", "op", "body", "entry", "record", "conflict", "effect"):
        assert reached[f"{name}: decoded"] > 10 and reached[f"{name}: 3001"] > 10


def test_a_seed_names_a_run() -> None:
    first, again, other = Tally(), Tally(), Tally()
    play("server", 3, first, 60)
    play("server", 3, again, 60)
    play("server", 4, other, 60)
    assert first.reached == again.reached != other.reached
    assert sum(frames for _, _, frames in schedule(1, 1234)) == 1234


def test_a_finding_is_told_with_the_line_that_plays_it_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(data: bytes) -> object:
        raise ZeroDivisionError("a planted bug")

    monkeypatch.setattr(fuzzing, "_DECODERS", (("op", broken),))
    again = "--target decoders --seed 5 --frames 20"
    with pytest.raises(Finding, match=f"ZeroDivisionError: a planted bug .again: .*{again}"):
        play("decoders", 5, Tally(), 20)
    assert main([*again.split(), "--processes", "1"]) == 1
    assert again in capsys.readouterr().err


def test_the_command_prints_one_json_object(capsys: pytest.CaptureFixture[str]) -> None:
    assert main("--frames 400 --seed 3 --processes 1 --json".split()) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["frames"], told["rounds"], told["findings"]) == (400, 2, [])
    assert told["frames_per_second"] > 0 and told["rss_mib"] > 0


@pytest.mark.parametrize("raw", hostile.RAW, ids=lambda raw: f"{raw[:4].hex()}-{len(raw)}")
def test_a_stranger_s_frame_costs_little_memory_and_changes_nothing(raw: bytes) -> None:
    server = HandServer()
    fill = raw * (FRAME_BYTES_BEFORE_SIGN_IN_MAX // len(raw))
    for data in (raw, fill, raw[:1] * FRAME_BYTES_BEFORE_SIGN_IN_MAX):
        stranger = server.connect()
        tracemalloc.start()
        stranger.send_raw(data)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 10 << 20
        assert stranger.closed is not None and stranger.closed.code == 1007
    assert server.store.sessions("", 10) == [] and server.store.ledger(0, 10) == []


@pytest.mark.parametrize("filler", [b"\x91", b"\x81", b"\xc0", b"\xdc\x07\xff", b"\x93\xc0\xc0"])
def test_the_largest_frame_of_a_signed_in_peer_costs_a_bounded_amount(filler: bytes) -> None:
    server = HandServer()
    bob = server.sign_in("bob")
    ann = server.sign_in("ann")
    data = (b"\x81\xa4type" + filler * FRAME_BYTES_MAX)[:FRAME_BYTES_MAX]
    tracemalloc.start()
    ann.send_raw(data)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 16 * FRAME_BYTES_MAX
    assert ann.closed is not None and bob.closed is None


# What the fuzzer found, each as the smallest story.


def test_a_listing_with_an_id_that_is_none_is_no_frame() -> None:
    item = SessionItem.__new__(SessionItem, "../s1", "label", 1, 1)
    tree = {"type": "sessions", "items": [list(item)], "page": True, "more": False}
    with pytest.raises(SyncError, match="items"):
        decode_to_client(hostile.pack(tree))
    good = Sessions(items=(SessionItem("s1", "label", 1, 1),), page=True)
    assert decode_to_client(encode_frame(good)) == good


@pytest.mark.parametrize("stamp", [[2**63, "ann", 1], [-1, "ann", 1], [1, "ann", 0]])
def test_a_stamp_of_more_than_63_bits_is_in_no_record(stamp: list[object]) -> None:
    state = hostile.pack([{"ann": 1}, True, stamp, True, {"a": 1}, {}])
    with pytest.raises(SyncError, match="shape"):
        Record.decode(state)


DEEP: list[object] = []
for _ in range(300):
    DEEP = [DEEP]


@pytest.mark.parametrize(
    "value", [DEEP, float("nan"), msgpack.Timestamp(1)], ids=["deep", "nan", "timestamp"]
)
def test_a_value_that_nobody_may_write_is_in_no_record_conflict_or_effect(value: object) -> None:
    stamp = [1, "ann", 1]
    state = hostile.pack([{"ann": 1}, True, stamp, True, {"a": value}, {}])
    conflict = hostile.pack(["c1", "notes", "r1", "a", value, stamp, stamp])
    for decode, data in ((Record.decode, state), (decode_conflict, conflict)):
        with pytest.raises(MalformedFrame, match="shape"):
            decode(data)
    for sets, lost in (({"a": value}, []), ({}, [["a", value, stamp, stamp]])):
        with pytest.raises(MalformedFrame, match="shape"):
            Effect.decode([0, sets, [], False, True, {"ann": 1}, lost])


@pytest.mark.parametrize(
    "row",
    [
        [0, {b"a": 1}, [], False, True, {"ann": 1}, []],
        [0, {}, [["a"]], False, True, {"ann": 1}, []],
        [0, {}, [], False, True, {b"ann": 1}, []],
        [0, {}, [], False, True, {"ann": None}, []],
        [0, {}, [], False, True, {}, [[]]],
        [0, {}, [], False, True, {}, [[1, 1, [1, "ann", 1], [1, "ann", 1]]]],
    ],
)
def test_names_that_are_no_text_and_vectors_that_are_none_are_in_no_effect(row: object) -> None:
    with pytest.raises(MalformedFrame, match="shape"):
        Effect.decode(row)


def test_a_row_of_a_bootstrap_is_not_newer_than_its_head(tmp_path: Path) -> None:
    wire = Wire(folder=tmp_path, bootstrap_entries_min=1)
    ann, bob = wire.open("ann"), wire.open("bob")
    for n in range(4):
        ann.session("s1").put("notes", "r1", {"n": n})
    wire.sync(ann)
    line = wire.connect(bob)
    while not any(isinstance(frame, SnapshotPage) for frame in line.waiting()):
        if line.to_server:
            line.send_one()
        else:
            line.receive_one()
    (page,) = (frame for frame in line.waiting() if isinstance(frame, SnapshotPage))
    ((collection, id_, seq, state),) = page.rows
    assert seq == page.seq == 4
    line.receive(page.model_copy(update={"rows": ((collection, id_, 5, state),)}))
    assert "a bootstrap's row has seq 5, its head is 4" in str(line.engine.broken)
    line.cut()
    wire.sync(bob)
    assert bob.session("s1").get("notes", "r1") == {"n": 3}
    wire.close()


def test_a_record_stamped_at_the_end_of_time_is_a_clear_error_to_whoever_edits_it(
    tmp_path: Path,
) -> None:
    wire = Wire(folder=tmp_path)
    session = wire.open("ann").session("s1")
    session.put("notes", "r1", {"a": 1}, updated_at=NUMBER_MAX - 1)
    session.put("notes", "r1", {"a": 2})
    with pytest.raises(InvalidValue, match="notes/r1 is stamped at the end of time"):
        session.put("notes", "r1", {"a": 3})
    session.put("notes", "r2", {"a": 4})
    assert session.get("notes", "r1") == {"a": 2} and session.get("notes", "r2") == {"a": 4}
    wire.close()


def test_a_bootstrap_whose_cursor_the_server_cannot_read_begins_anew(tmp_path: Path) -> None:
    wire = Wire(folder=tmp_path, bootstrap_entries_min=2)
    ann, bob = wire.open("ann"), wire.open("bob")
    for n in range(9):
        ann.session("s1").put("notes", f"r{n}", {"text": "x" * 60_000})
    wire.sync(ann)
    line = wire.connect(bob)
    while "s1" not in bob._core.session_ids() or not bob._core.boot_after("s1"):
        if line.to_server:
            line.send_one()
        else:
            line.receive_one()
    line.cut()
    with bob._core.database.transaction() as db:
        (boot,) = db.execute("SELECT boot FROM syncline_sessions").fetchone()
        tree = hostile.unpack(boot)
        tree[1] = b"a cursor of another version"
        db.execute("UPDATE syncline_sessions SET boot=?", (hostile.pack(tree),))
    receipt = bob.session("s1").put("notes", "own", {"a": 1})
    wire.sync(bob)
    assert receipt.state is ReceiptState.APPLIED
    assert bob.session("s1").count("notes") == 10
    wire.close()


def test_a_common_point_that_nobody_asked_about_is_no_answer(tmp_path: Path) -> None:
    wire = Wire(folder=tmp_path)
    ann = wire.open("ann")
    for n in range(5):
        ann.session("s1").put("notes", f"r{n}", {"n": n})
    wire.sync(ann)
    wire.serve(Wire(folder=tmp_path).store)  # Another server, which knows nothing.
    line = wire.connect(ann)
    while not any(isinstance(frame, Compare) for frame in line.sent):
        if line.to_server:
            line.send_one()
        else:
            line.receive_one()
    line.receive(Common(session="s1", seq=99))
    assert "none of the points" in str(line.engine.broken)
    line.cut()
    wire.sync(ann)
    assert len(wire.log("s1")) == 5
    wire.close()


def test_hostile_bytes_are_made_of_a_seed_and_mostly_differ_from_what_was_good() -> None:
    stamp = Stamp(5, "ann", 1)
    good = Record({"a": 1}, {"a": stamp}, stamp, True, stamp, {"ann": 1}).encode()
    body = encode_body([Put("notes", "r1", {}, {"a": 1})])
    for data in (good, body):
        first = [hostile.spoil(random.Random(seed), data) for seed in range(300)]
        assert first == [hostile.spoil(random.Random(seed), data) for seed in range(300)]
        assert sum(one != data for one in first) > 280
