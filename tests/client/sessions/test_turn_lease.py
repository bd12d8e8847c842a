"""Who runs a turn: one of several processes, one of several devices, and who takes over."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.client.sessions.test_turn_crashes import Killed, dying_after
from tests.client.sessions.turning import (
    SECOND,
    Clock,
    Stage,
    Text,
    agent,
    call,
    last,
    log,
    says,
    types,
)
from tests.client.wire import Wire, state_of

from syncline.client import Replica, Session
from syncline.client.sessions import (
    Agent,
    Consumed,
    Meter,
    ModelRequest,
    Part,
    StopReason,
    TextDelta,
    ToolRegistry,
    TurnRunner,
    TurnState,
    interrupt,
    send,
    turn_state,
)
from syncline.sync.sessions import Conversation, LogItem

LEASE_US = 30 * SECOND


class Devices:
    """Some devices on a wire, with one clock."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.clock = Clock(wire.now)
        self.online = True

    def open(self, *names: str) -> list[Replica]:
        return [self.wire.open(name) for name in names]

    def runner(self, replica: Replica, runs: Agent, **options: Any) -> TurnRunner:
        options.setdefault("online", lambda: False)
        return TurnRunner(replica, runs, timing=self.clock, lease_us=LEASE_US, **options)

    def sync(self, *replicas: Replica) -> None:
        for replica in replicas:
            self.wire.sync(replica)

    def advance(self, us: int) -> None:
        self.wire.advance(us)
        self.clock.advance(us)


@pytest.fixture
def devices(wire: Wire) -> Iterator[Devices]:
    yield Devices(wire)


def fold(session: Session) -> Conversation:
    """All that follows from the log, by the public folds."""
    return Conversation().add_all(
        LogItem.read(e.seq, e.index, e.type, e.payload, e.at, e.client, f"{i}")
        for i, e in enumerate(session.events())
    )


def transcript(session: Session) -> list[str]:
    return [message.text for message in fold(session).transcript.messages]


def telling(tell: Callable[[], object]) -> Callable[[object], None]:
    """A watcher that tells the test's own loop."""
    loop = asyncio.get_running_loop()

    def watch(_: object) -> None:
        loop.call_soon_threadsafe(tell)

    return watch


# Several processes of one replica.


async def test_of_two_processes_one_runs_the_turn(stage: Stage, folder: Path) -> None:
    session = stage.session()
    started, go = asyncio.Event(), asyncio.Event()

    async def respond(request: ModelRequest) -> AsyncIterator[Part]:
        started.set()
        await go.wait()
        yield TextDelta("mine")

    send(session, "go")
    with Replica(folder / "device.db", clock=stage.clock) as second:
        other = TurnRunner(second, agent(["not me"]), timing=stage.clock, online=lambda: False)
        running = asyncio.ensure_future(stage.runner(Agent("a", respond)).run(session))
        await started.wait()
        assert await other.run(second.session(session.id)) == []
        go.set()
        (result,) = await running
    assert result.text == "mine"
    assert types(session).count("agent.message") == 1


async def test_two_processes_that_begin_at_once_run_each_message_once(
    stage: Stage, folder: Path
) -> None:
    session = stage.session()
    for n in range(6):
        send(session, str(n))
    with Replica(folder / "device.db", clock=stage.clock) as second:
        runners = [
            stage.runner(agent(["a"])).run(session),
            TurnRunner(second, agent(["b"]), timing=stage.clock, online=lambda: False).run(
                second.session(session.id)
            ),
        ]
        await asyncio.gather(*runners)
        state = turn_state(session)
        assert not state.waiting
        assert state.stale == 0
    assert types(session).count("agent.message") == 6


async def test_an_interrupt_from_another_process_is_heard(stage: Stage, folder: Path) -> None:
    session, started = stage.session(), asyncio.Event()

    async def respond(request: ModelRequest) -> AsyncIterator[Part]:
        yield Consumed(Meter(input_tokens=50))
        started.set()
        await asyncio.Event().wait()

    send(session, "go")
    runner = stage.runner(Agent("a", respond))
    serving = asyncio.ensure_future(runner.serve([session]))
    await started.wait()
    with Replica(folder / "device.db", clock=stage.clock) as second:
        assert interrupt(second.session(session.id))
    written = asyncio.Event()
    session.watch(telling(written.set))
    stage.clock.advance(1 * SECOND)  # The serving runner looks for what others wrote.
    await written.wait()
    serving.cancel()
    await asyncio.wait({serving})
    assert log(session)[-4:] == [
        "model.request.failed user-aborted",
        "session.usage",
        "session.status idle interrupted",
        # What only the runner knew: counted, and stale.
        "model.request.failed user-aborted",
    ]
    assert fold(session).usage.total.input_tokens == 50
    assert turn_state(session).stale == 1


# Several devices.


async def test_two_devices_offline_both_run_and_the_log_decides(devices: Devices) -> None:
    ann, bob = devices.open("ann", "bob")
    session = ann.create_session("shared")
    send(session, "hello", message_id="m1")
    devices.sync(ann, bob)
    there = bob.session(session.id)
    send(there, "from bob", message_id="m2")
    first = devices.runner(ann, agent(["ann answers"]))
    second = devices.runner(bob, agent(["bob answers", "bob again"]))
    assert [r.text for r in await first.run(session)] == ["ann answers"]
    assert [r.text for r in await second.run(there)] == ["bob answers", "bob again"]
    assert transcript(there) == ["hello", "from bob", "bob answers", "bob again"]
    devices.sync(ann, bob, ann)
    # Ann's claim came first: it stands, and what bob built on his does not.
    assert fold(session).transcript.messages == fold(there).transcript.messages
    assert transcript(session) == ["hello", "ann answers", "from bob"]
    assert turn_state(there).stale == 12
    assert turn_state(there).unfinished is None
    # Nothing is lost: his message waits for the next turn, what he answered is in the log,
    assert list(turn_state(session).waiting) == ["m2"]
    assert types(session).count("agent.message") == 3
    # and what it cost is counted.
    assert fold(session).usage.total.output_tokens == 2 + 2 + 2
    (result,) = await second.run(there)
    assert result.text == "bob again"
    devices.sync(bob, ann)
    assert transcript(session) == ["hello", "ann answers", "from bob", "bob again"]
    assert state_of(ann, session.id) == state_of(bob, session.id)


async def test_the_turn_of_a_device_that_was_overtaken_ends_as_orphaned(devices: Devices) -> None:
    ann, bob = devices.open("ann", "bob")
    session = ann.create_session("shared")
    send(session, "hello")
    devices.sync(ann, bob)
    there, started, go = bob.session(session.id), asyncio.Event(), asyncio.Event()

    async def respond(request: ModelRequest) -> AsyncIterator[Part]:
        yield Consumed(Meter(input_tokens=30))
        started.set()
        await go.wait()
        yield TextDelta("too late")

    running = asyncio.ensure_future(devices.runner(bob, Agent("b", respond)).run(there))
    await started.wait()
    await devices.runner(ann, agent(["ann answers"])).run(session)
    devices.sync(ann)
    await asyncio.to_thread(devices.sync, bob)  # Bob hears of it, in the middle of his turn.
    (result,) = await running
    assert result.stop_reason == StopReason.ORPHANED
    assert log(there)[-3:] == [
        "model.request.failed cancelled",
        "session.usage",
        "session.status idle orphaned",
    ]
    assert last(there, "session.usage")["outcome"] == "orphaned"
    assert transcript(there) == ["hello", "ann answers"]
    assert fold(there).usage.total.input_tokens == 2 + 30
    devices.sync(bob, ann)
    assert log(session) == log(there)
    assert turn_state(session).status == "idle"


async def test_R3_8_a_crashed_device_is_taken_over_by_another(devices: Devices) -> None:
    ann, bob = devices.open("ann", "bob")
    session = ann.create_session("shared")
    tools = ToolRegistry()

    @tools.tool(read_only=True)
    async def look(given: Text) -> str:
        return "seen"

    script = [says("looking", call("look")), says("done")]
    send(session, "hello")
    with dying_after(3), pytest.raises(Killed):
        await devices.runner(ann, agent(script, tools)).run(session)
    devices.sync(ann, bob)
    there = bob.session(session.id)
    runner = devices.runner(bob, agent(script, tools), online=lambda: True, settle_us=0)
    assert await runner.run(there) == []
    devices.advance(LEASE_US)
    (result,) = await runner.run(there)
    assert result.text == "done"
    devices.sync(bob, ann)
    assert log(session) == [
        "user.message hello",
        "session.status running",
        "model.request.started",
        "agent.message looking",
        "model.request.completed",
        "tool.call.started look",
        "session.resumed",
        "tool.call.completed look ok seen",
        "model.request.started",
        "agent.message done",
        "model.request.completed",
        "session.usage",
        "session.status idle completed",
    ]
    runners = [e.payload["runner"] for e in session.events()[1:]]
    assert {name.rpartition("-")[0] for name in runners[:5]} == {"ann"}
    assert {name.rpartition("-")[0] for name in runners[5:]} == {"bob"}


async def test_a_foreign_turn_is_not_taken_over_by_a_device_that_cannot_see(
    devices: Devices,
) -> None:
    ann, bob = devices.open("ann", "bob")
    session = ann.create_session("shared")
    send(session, "hello")
    with dying_after(1), pytest.raises(Killed):
        await devices.runner(ann, agent(["x"])).run(session)
    devices.sync(ann, bob)
    devices.advance(10 * LEASE_US)
    there = bob.session(session.id)
    waiting = asyncio.ensure_future(devices.runner(bob, agent(["mine"])).run(there))
    await waiting
    assert waiting.result() == []
    online = devices.runner(bob, agent(["mine"]), online=lambda: True, settle_us=0)
    assert [r.text for r in await online.run(there)] == ["mine"]


async def test_a_device_that_is_not_the_runner_leaves_the_turn_in_the_outbox(
    devices: Devices,
) -> None:
    ann, bob = devices.open("ann", "bob")
    session = ann.create_session("shared")
    send(session, "hello")
    waits = devices.runner(ann, agent(["x"]), when_offline="wait")
    assert await waits.run(session) == []
    assert types(session) == ["user.message"]
    devices.sync(ann, bob)
    there = bob.session(session.id)
    assert [r.text for r in await devices.runner(bob, agent(["hi"])).run(there)] == ["hi"]
    devices.sync(bob, ann)
    assert transcript(session) == ["hello", "hi"]


async def test_a_claim_is_judged_by_the_server_before_anything_is_spent(devices: Devices) -> None:
    ann, bob = devices.open("ann", "bob")
    session = ann.create_session("shared")
    send(session, "hello")
    devices.sync(ann, bob)
    asked: list[str] = []

    def runs(name: str) -> Agent:
        async def respond(request: ModelRequest) -> AsyncIterator[Part]:
            asked.append(name)
            yield TextDelta(name)

        return Agent(name, respond)

    there = bob.session(session.id)
    claimed = [asyncio.Event(), asyncio.Event()]
    for each, event in zip((session, there), claimed, strict=True):
        each.watch(telling(event.set))
    running = [
        asyncio.ensure_future(devices.runner(r, runs(n), online=lambda: True).run(s))
        for r, n, s in ((ann, "ann", session), (bob, "bob", there))
    ]
    for event in claimed:
        await event.wait()
    assert asked == []
    await asyncio.to_thread(devices.sync, bob, ann, bob)
    devices.clock.now = devices.wire.now
    results = []
    while not all(task.done() for task in running):
        devices.clock.advance(SECOND // 10)
        await asyncio.wait(running, timeout=0.01)
    results = [task.result() for task in running]
    assert asked == ["bob"]
    assert [str(r.stop_reason) for r in results[0] + results[1]] == ["orphaned", "completed"]


async def test_an_interrupt_from_another_device_cuts_the_turn_when_it_arrives(
    devices: Devices,
) -> None:
    ann, bob = devices.open("ann", "bob")
    session = ann.create_session("shared")
    started = asyncio.Event()

    async def respond(request: ModelRequest) -> AsyncIterator[Part]:
        started.set()
        await asyncio.Event().wait()
        yield TextDelta("never")

    send(session, "hello")
    running = asyncio.ensure_future(devices.runner(ann, Agent("a", respond)).run(session))
    await started.wait()
    await asyncio.to_thread(devices.sync, ann, bob)
    there = bob.session(session.id)
    assert turn_state(there).status == "running"
    assert interrupt(there)
    assert turn_state(there).status == "idle"
    await asyncio.to_thread(devices.sync, bob, ann)
    (result,) = await running
    assert result.stop_reason == "interrupted"
    assert log(session)[-1] == "session.status idle interrupted"


async def test_who_is_silent_but_alive_keeps_the_lease_by_beating(devices: Devices) -> None:
    (ann,) = devices.open("ann")
    session, started, go = ann.create_session("x"), asyncio.Event(), asyncio.Event()

    async def respond(request: ModelRequest) -> AsyncIterator[Part]:
        started.set()
        await go.wait()
        yield TextDelta("at last")

    send(session, "think hard")
    beats = asyncio.Queue[None]()
    session.watch(telling(lambda: beats.put_nowait(None)))
    running = asyncio.ensure_future(devices.runner(ann, Agent("a", respond)).run(session))
    await started.wait()
    while not beats.empty():
        beats.get_nowait()
    for _ in range(6):
        devices.clock.advance(LEASE_US // 3)
        devices.wire.now = devices.clock.now
        await asyncio.wait_for(beats.get(), 5)
        assert turn_state(session).expires_at == devices.clock.now + LEASE_US
    go.set()
    (result,) = await running
    assert result.text == "at last"
    assert types(session).count("turn.lease") == 6


def test_a_copy_of_a_fold_goes_its_own_way(devices: Devices) -> None:
    (ann,) = devices.open("ann")
    session = ann.create_session("x")
    send(session, "one")
    before = turn_state(session)
    send(session, "two")
    assert (len(before.waiting), len(turn_state(session).waiting)) == (1, 2)
    assert isinstance(before, TurnState)
