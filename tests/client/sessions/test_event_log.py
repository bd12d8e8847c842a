"""The event log of a replica: appended, read, followed and folded, offline and on."""

from __future__ import annotations

import asyncio
import random
import threading
from pathlib import Path

import pytest
from tests.client.wire import Wire, restored

from syncline.client import Replica, Session
from syncline.client.sessions import Checkpoints, EventLog, EventStream
from syncline.sync import InvalidValue
from syncline.sync.sessions import (
    EPHEMERAL_KINDS,
    LogItem,
    ModelRequestCompleted,
    UnknownEvent,
    UserMessage,
)


def said(text: str) -> UserMessage:
    return UserMessage(message_id=text, text=text)


def texts(items: list[LogItem]) -> list[object]:
    return [item.payload.get("text") for item in items]


def drained(stream: EventStream) -> list[LogItem]:
    """All that the stream has now."""
    return list(iter(lambda: stream.get(timeout=0), None))


def opened(wire: Wire, name: str = "ann") -> tuple[Replica, Session, EventLog]:
    replica = wire.open(name)
    session = replica.session("s")
    return replica, session, EventLog(session)


def test_R3_1_what_waits_has_no_seq_and_the_log_gives_it_one(wire: Wire) -> None:
    ann, _, log = opened(wire)
    receipt = log.append(said("a"), said("b"))
    before = log.events()
    wire.sync(ann)
    after = log.events()
    assert [(item.seq, item.index) for item in before] == [(None, 0), (None, 1)]
    assert [(item.seq, item.index) for item in after] == [(1, 0), (1, 1)]
    assert [item.key for item in before] == [item.key for item in after]
    assert {item.receipt_id for item in after} == {receipt.id}


def test_R3_2_after_is_strictly_greater_and_a_page_never_splits_an_op(wire: Wire) -> None:
    ann, _, log = opened(wire)
    for text in "abc":
        log.append(said(text), said(text + text))
        wire.sync(ann)
    log.append(said("d"))
    assert texts(log.events(after=1)) == ["b", "bb", "c", "cc", "d"]
    assert texts(log.events(after=1, limit=1)) == ["b", "bb"]
    assert texts(log.events(after=3)) == ["d"]


def test_R3_5_an_unknown_type_is_kept_and_a_known_one_that_does_not_fit_is_refused(
    wire: Wire,
) -> None:
    _, _, log = opened(wire)
    log.append_raw("weather.rain", {"mm": 3})
    with pytest.raises(InvalidValue, match=r"user\.message"):
        log.append_raw("user.message", {"text": 7})
    with pytest.raises(InvalidValue, match="no event"):
        log.append()
    (item,) = log.events()
    assert (item.type, item.payload) == ("weather.rain", {"mm": 3})
    assert isinstance(item.event, UnknownEvent)


@pytest.mark.parametrize("kind", sorted(EPHEMERAL_KINDS))
def test_R3_3_what_is_live_only_never_gets_into_the_log(wire: Wire, kind: str) -> None:
    _, _, log = opened(wire)
    with pytest.raises(InvalidValue, match="live only"):
        log.append_raw(kind, {"turnId": "t", "text": "x"})
    assert log.events() == []


def test_R3_2_a_stream_replays_and_goes_on_and_tells_each_event_once(wire: Wire) -> None:
    ann, _, log = opened(wire)
    log.append(said("a"))
    wire.sync(ann)
    log.append(said("b"))
    with log.stream() as stream:
        assert texts(drained(stream)) == ["a", "b"]
        assert stream.seq == 1
        wire.sync(ann)
        assert drained(stream) == []
        assert stream.seq == 2
        log.append(said("c"))
        assert texts(drained(stream)) == ["c"]
    with log.stream(after=1) as again:
        assert texts(drained(again)) == ["b", "c"]


@pytest.mark.parametrize("seed", range(12))
def test_R3_2_however_reading_writing_and_syncing_alternate_nothing_is_missed_or_repeated(
    wire: Wire, seed: int
) -> None:
    draw = random.Random(seed)
    ann, _, hers = opened(wire, "ann")
    bob, _, his = opened(wire, "bob")
    told: dict[str, list[LogItem]] = {"ann": [], "bob": []}
    streams = {"ann": hers.stream(), "bob": his.stream()}
    for step in range(40):
        who = draw.choice(["ann", "bob"])
        match draw.randrange(3):
            case 0:
                (hers if who == "ann" else his).append(said(f"{who} {step}"))
            case 1:
                wire.sync(ann if who == "ann" else bob)
            case _:
                told[who] += drained(streams[who])
    for replica in (ann, bob, ann):
        wire.sync(replica)
    for who, stream in streams.items():
        told[who] += drained(stream)
        keys = [item.key for item in told[who]]
        assert len(keys) == len(set(keys))
        assert set(keys) == {item.key for item in hers.events()}
        own = [item.payload["text"] for item in told[who] if item.client == who]
        assert own == sorted(own, key=lambda text: int(str(text).split()[1]))
        stream.close()


def test_R3_2_a_stream_hears_of_another_process(wire: Wire, folder: Path) -> None:
    ann, _, log = opened(wire)
    with Replica(ann.path) as other, log.stream(poll_s=0.01) as stream:
        EventLog(other.session("s")).append(said("from over there"))
        item = stream.get(timeout=10)
    assert item is not None
    assert texts([item]) == ["from over there"]


def test_closing_a_stream_wakes_who_waits_on_it(wire: Wire) -> None:
    _, _, log = opened(wire)
    stream = log.stream(poll_s=60)
    got: list[LogItem] = []
    reader = threading.Thread(target=lambda: got.extend(stream))
    reader.start()
    log.append(said("a"))
    while not got:
        reader.join(0.001)
    stream.close()
    reader.join(10)
    assert not reader.is_alive()
    assert texts(got) == ["a"]
    assert stream.get() is None


async def test_a_stream_can_be_followed_from_a_loop(wire: Wire) -> None:
    _, _, log = opened(wire)
    log.append(said("a"))
    got: list[LogItem] = []
    async with log.stream(poll_s=60) as stream:

        async def follow() -> None:
            async for item in stream:
                got.append(item)
                if len(got) < 3:
                    await asyncio.to_thread(log.append, said("a" * (len(got) + 1)))
                else:
                    stream.close()

        await asyncio.wait_for(follow(), 10)
    assert texts(got) == ["a", "aa", "aaa"]


def test_folds_are_those_of_the_whole_log_after_each_step(wire: Wire) -> None:
    ann, _, log = opened(wire)
    bob, _, his = opened(wire, "bob")
    for step in range(6):
        log.append(said(f"a{step}"))
        his.append(said(f"b{step}"))
        if step % 2:
            wire.sync(bob)
            wire.sync(ann)
        fresh = EventLog(log.session)
        assert log.transcript().messages == fresh.transcript().messages
        assert log.prompt().items() == fresh.prompt().items()
        assert log.open_items() == fresh.open_items()
    assert len(log.transcript().messages) == 12


def test_what_was_rolled_back_is_out_of_the_conversation_and_was_spent_all_the_same(
    wire: Wire,
) -> None:
    _, session, log = opened(wire)
    past = Checkpoints(session)
    log.append(said("a"))
    early = past.create("early")
    log.append(said("b"))
    log.append(ModelRequestCompleted(turn_id="t", request_id="r", step=0, input_tokens=5))
    assert [message.text for message in log.transcript().messages] == ["a", "b"]
    past.rollback(early)
    log.append(said("c"))
    assert [message.text for message in log.transcript().messages] == ["a", "c"]
    assert [m.message_id for m in log.open_items().queued] == ["a", "c"]
    assert log.usage().own.input_tokens == 5
    assert [item.type for item in log.events()].count("user.message") == 3


def test_R3_2_after_a_healing_a_stream_tells_what_is_new_and_repeats_nothing(wire: Wire) -> None:
    ann, _, log = opened(wire)
    bob, _, his = opened(wire, "bob")
    log.append(said("a"))
    wire.sync(ann)
    backup = restored(wire.store, 2)
    log.append(said("b"))
    wire.sync(ann)
    with log.stream() as stream:
        assert texts(drained(stream)) == ["a", "b"]
        log.append(said("c"))
        wire.serve(backup)
        wire.sync(bob)
        his.append(said("from bob"))
        for replica in (bob, ann, bob):
            wire.sync(replica)
        assert sorted(str(text) for text in texts(drained(stream))) == ["c", "from bob"]
        assert stream.seq == len(log.events()) == 4
    assert texts(log.events()) == texts(his.events())
