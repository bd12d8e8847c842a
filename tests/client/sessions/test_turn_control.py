"""What people do to turns: steer, interrupt, abort, decide; and runners that are stopped."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.client.sessions.turning import (
    SECOND,
    Stage,
    Text,
    agent,
    call,
    last,
    log,
    said,
    says,
    types,
)

from syncline.client import Session
from syncline.client.sessions import (
    Agent,
    Asked,
    Consumed,
    Decision,
    DeliveryMode,
    Limits,
    Meter,
    ModelRequest,
    Part,
    ScriptedResponder,
    Subagent,
    TextDelta,
    ToolRegistry,
    abort,
    decide,
    interrupt,
    send,
    turn_state,
)
from syncline.client.sessions._driver import to_its_end
from syncline.sync import NotFound
from syncline.sync.sessions import PromptAgent, PromptUser


class Gate:
    """Where a tool or a model stands still until it is let through."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.open = asyncio.Event()
        self.cancelled = False

    async def wait(self) -> None:
        self.reached.set()
        try:
            await self.open.wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise


def gated_tools(gate: Gate) -> ToolRegistry:
    tools = ToolRegistry()

    @tools.tool()
    async def slow(given: Text) -> str:
        await gate.wait()
        return "slowly"

    return tools


def users(request: ModelRequest) -> list[str]:
    return [item.text for item in request.prompt if isinstance(item, PromptUser)]


# Delivery modes.


async def test_R3_7_a_steering_message_is_taken_in_at_the_next_step(stage: Stage) -> None:
    session, gate = stage.session(), Gate()
    responder = ScriptedResponder([says("x", call("slow")), "left", "queued"])
    runner = stage.runner(agent(responder, gated_tools(gate)))
    send(session, "go right")
    running = asyncio.ensure_future(runner.run(session))
    await gate.reached.wait()
    send(session, "later")
    send(session, "go left", mode=DeliveryMode.STEER)
    gate.open.set()
    first, second = await running
    assert [users(r) for r in responder.requests] == [
        ["go right"],
        ["go right", "go left"],
        ["go right", "go left", "later"],
    ]
    assert (first.text, second.text) == ("left", "queued")


async def test_a_steering_message_after_the_last_step_makes_another(stage: Stage) -> None:
    session, gate = stage.session(), Gate()

    async def respond(request: ModelRequest) -> AsyncIterator[Part]:
        if not said(request):
            await gate.wait()
        yield TextDelta(f"{len(said(request))}")

    send(session, "one")
    running = asyncio.ensure_future(stage.runner(Agent("a", respond)).run(session))
    await gate.reached.wait()
    send(session, "two", mode=DeliveryMode.STEER)
    gate.open.set()
    (result,) = await running
    assert (result.text, types(session).count("session.usage")) == ("1", 1)


async def test_R3_7_an_interrupting_message_cuts_the_turn_and_goes_first(stage: Stage) -> None:
    session, gate = stage.session(), Gate()
    script = [says("x", call("slow")), "now", "then"]
    responder = ScriptedResponder(script)
    running = asyncio.ensure_future(stage.runner(agent(responder, gated_tools(gate))).run(session))
    send(session, "one")
    await gate.reached.wait()
    send(session, "two")
    send(session, "stop that", mode=DeliveryMode.INTERRUPT)
    results = await running
    assert [str(r.stop_reason) for r in results] == ["interrupted", "completed", "completed"]
    assert [users(r)[-1] for r in responder.requests] == ["one", "stop that", "two"]
    assert gate.cancelled


# Interrupt and abort.


async def test_R3_6_an_interrupt_acts_at_once_and_leaves_the_call_open(stage: Stage) -> None:
    session, gate = stage.session(), Gate()
    responder = ScriptedResponder([says("x", call("slow")), "I see"])
    runner = stage.runner(agent(responder, gated_tools(gate)))
    send(session, "go")
    running = asyncio.ensure_future(runner.run(session))
    await gate.reached.wait()
    assert interrupt(session)
    assert log(session)[-3:] == [
        "tool.call.started slow",
        "session.usage",
        "session.status idle interrupted",
    ]
    (result,) = await running
    assert (result.stop_reason, gate.cancelled) == ("interrupted", True)
    assert not interrupt(session)
    # The next turn's model is shown it as interrupted.
    send(session, "and now?")
    await runner.run(session)
    (shown,) = (item for item in responder.requests[-1].prompt if isinstance(item, PromptAgent))
    assert [(c.name, str(c.outcome)) for c in shown.calls] == [("slow", "interrupted")]


async def test_R1_9_R1_10_an_abort_counts_what_the_open_request_consumed(stage: Stage) -> None:
    session, gate = stage.session(), Gate()

    async def respond(request: ModelRequest) -> AsyncIterator[Part]:
        yield Consumed(Meter(input_tokens=100, cost_micros=7))
        yield TextDelta("well")
        await gate.wait()

    send(session, "go")
    running = asyncio.ensure_future(stage.runner(Agent("a", respond)).run(session))
    await gate.reached.wait()
    assert abort(session)
    (result,) = await running
    assert log(session)[-3:] == [
        "model.request.failed user-aborted",
        "session.usage",
        "session.status idle interrupted",
    ]
    usage = last(session, "session.usage")
    assert (usage["outcome"], usage["inputTokens"], usage["costMicros"]) == ("user-aborted", 100, 7)
    place = ("turnId", "stageId", "seqWithinTurn", "subagentDepth")
    assert [usage[name] for name in place] == [result.turn_id, "end", 4, 0]
    assert gate.cancelled


def helpers(gate: Gate) -> Agent:
    """An agent whose subagent's subagent waits at the gate."""
    inner = agent([says("x", call("slow"))], gated_tools(gate))
    middle = Agent(
        "middle",
        ScriptedResponder([[*says("y"), *delegating("inner")]]),
        ToolRegistry(Subagent("inner", "", inner)),
    )
    return Agent(
        "outer",
        ScriptedResponder([[*says("z"), *delegating("middle")], "over"]),
        ToolRegistry(Subagent("middle", "", middle)),
    )


def delegating(name: str) -> list[Any]:
    return [Asked(name, {"task": f"do {name}"})]


def child_of(stage: Stage, session: Session) -> Session:
    return stage.replica.session(last(session, "subagent.spawned")["sessionId"], create=False)


async def test_R1_10_an_abort_cuts_every_subagent_under_the_turn(stage: Stage) -> None:
    session, gate = stage.session(), Gate()
    outer = helpers(gate)
    send(session, "go")
    running = asyncio.ensure_future(stage.runner(outer).run(session))
    await gate.reached.wait()
    middle = child_of(stage, session)
    inner = child_of(stage, middle)
    abort(session)
    await running
    for each in (session, middle, inner):
        assert log(each)[-2:] == ["session.usage", "session.status idle interrupted"]
        assert turn_state(each).unfinished is None
        assert last(each, "session.usage")["outcome"] == "user-aborted"
    assert gate.cancelled
    assert [t for t in types(session) if t.startswith("subagent.")] == [
        "subagent.spawned",
        "subagent.status",
        "subagent.message",
        "subagent.status",
        "subagent.completed",
    ]
    assert last(session, "subagent.completed")["stopReason"] == "interrupted"
    # Provenance: each names the turn that it runs under, and how deep.
    for child, parent, depth in ((middle, session, 1), (inner, middle, 2)):
        usage = last(child, "session.usage")
        assert usage["parentTurnId"] == last(parent, "session.usage")["turnId"]
        assert usage["subagentDepth"] == depth


async def test_a_subagent_reports_four_things_and_its_answer_is_the_result(stage: Stage) -> None:
    session, gate = stage.session(), Gate()
    gate.open.set()
    inner = agent(
        [says("x", call("slow"), tokens=3), says("found it", tokens=4)], gated_tools(gate)
    )
    outer = Agent(
        "outer",
        ScriptedResponder([[*says("z"), *delegating("inner")], "over"]),
        ToolRegistry(Subagent("inner", "finds things", inner)),
    )
    send(session, "go")
    (result,) = await stage.runner(outer).run(session)
    assert result.text == "over"
    assert log(session)[5:14] == [
        "tool.call.started inner",
        "subagent.spawned",
        "subagent.status running",
        "subagent.message x",
        "subagent.message found it",
        "subagent.status idle completed",
        "subagent.completed completed found it",
        "tool.call.completed inner ok found it",
        "model.request.started",
    ]
    completed = last(session, "subagent.completed")
    assert (completed["inputTokens"], completed["costMicros"]) == (7, 70)
    child = child_of(stage, session)
    header = child.get("$session", "header") or {}
    assert (header["parent"], header["agent"]) == (session.id, "agent")
    assert log(child)[:2] == ["user.message do inner", "session.status running"]


async def test_subagents_are_not_deeper_than_the_limit(stage: Stage) -> None:
    session = stage.session()
    inner = agent(["never"])
    outer = Agent(
        "outer",
        ScriptedResponder([[*says("z"), *delegating("inner")], "over"]),
        ToolRegistry(Subagent("inner", "", inner)),
        limits=Limits(depth_max=0),
    )
    send(session, "go")
    await stage.runner(outer).run(session)
    assert last(session, "tool.call.completed")["error"].startswith("subagents may be 0 deep")
    assert "subagent.spawned" not in types(session)


# Decisions.


def asking_tools(ran: list[str], approval_us: int | None = 60 * SECOND) -> ToolRegistry:
    tools = ToolRegistry()

    @tools.tool(needs_approval=True, approval_us=approval_us)
    async def pay(given: Text) -> str:
        ran.append(given.text)
        return f"paid {given.text}"

    @tools.tool(read_only=True)
    async def look(given: Text) -> str:
        return "looked"

    return tools


async def test_R3_4_a_call_that_needs_a_person_parks_the_turn(stage: Stage) -> None:
    session, ran = stage.session(), list[str]()
    script = [says("x", call("pay", "5"), call("look")), says("thanks")]
    runner = stage.runner(agent(script, asking_tools(ran)))
    send(session, "buy")
    (parked,) = await runner.run(session)
    assert (parked.stop_reason, ran) == ("requires_action", [])
    send(session, "and a hat")  # It waits until the turn is over.
    assert await runner.run(session) == []
    call_id = last(session, "tool.call.pending")["callId"]
    decide(session, call_id, Decision.APPROVED, by="ann")
    first, second = await runner.run(session)
    assert (first.turn_id, first.stop_reason, first.text) == (parked.turn_id, "completed", "thanks")
    assert (second.text, ran) == ("thanks", ["5"])
    assert log(session)[5:20] == [
        "tool.call.started pay",
        "tool.call.started look",
        "tool.call.pending pay",
        "tool.call.completed look ok looked",
        "session.usage",
        "session.status idle requires_action",
        "user.message and a hat",
        "tool.call.decision approved",
        "session.status running",
        "tool.call.completed pay ok paid 5",
        "model.request.started",
        "agent.message thanks",
        "model.request.completed",
        "session.usage",
        "session.status idle completed",
    ]


async def test_a_denied_call_runs_nothing_and_the_model_is_told_why(stage: Stage) -> None:
    session, ran = stage.session(), list[str]()
    script = [says("x", call("pay", "5")), says("a pity")]
    runner = stage.runner(agent(script, asking_tools(ran)))
    send(session, "buy")
    await runner.run(session)
    decide(session, last(session, "tool.call.pending")["callId"], Decision.DENIED, note="too dear")
    (result,) = await runner.run(session)
    completed = last(session, "tool.call.completed")
    assert (completed["outcome"], completed["error"], ran) == ("denied", "too dear", [])
    assert result.text == "a pity"


async def test_a_person_may_change_what_is_run(stage: Stage) -> None:
    session, ran = stage.session(), list[str]()
    runner = stage.runner(agent([says("x", call("pay", "500")), "done"], asking_tools(ran)))
    send(session, "buy")
    await runner.run(session)
    call_id = last(session, "tool.call.pending")["callId"]
    decide(session, call_id, Decision.APPROVED, input={"text": "5"})
    await runner.run(session)
    assert ran == ["5"]
    with pytest.raises(NotFound):
        decide(session, call_id, Decision.DENIED)


async def test_R3_4_nobody_decides_in_time_and_the_turn_is_over(stage: Stage) -> None:
    session, ran = stage.session(), list[str]()
    runner = stage.runner(agent([says("x", call("pay", "5")), "later"], asking_tools(ran)))
    send(session, "buy")
    await runner.run(session)
    stage.clock.advance(59 * SECOND)
    assert await runner.run(session) == []
    stage.clock.advance(1 * SECOND)
    await runner.run(session)
    assert log(session)[-4:] == [
        "tool.call.decision expired",
        "tool.call.completed pay denied",
        "session.usage",
        "session.status idle decision_expired",
    ]
    assert (ran, turn_state(session).unfinished) == ([], None)
    send(session, "hello?")
    assert [r.text for r in await runner.run(session)] == ["later"]


async def test_an_interrupt_ends_a_turn_that_waits_for_a_person(stage: Stage) -> None:
    session, ran = stage.session(), list[str]()
    runner = stage.runner(agent([says("x", call("pay", "5")), "fine"], asking_tools(ran)))
    send(session, "buy")
    await runner.run(session)
    assert interrupt(session)
    with pytest.raises(NotFound):
        decide(session, last(session, "tool.call.pending")["callId"], Decision.APPROVED)
    send(session, "never mind")
    assert [r.text for r in await runner.run(session)] == ["fine"]
    assert ran == []


# Runners that are stopped.


async def test_R3_4_a_runner_stopped_in_order_rests_the_turn_and_another_goes_on(
    stage: Stage,
) -> None:
    session, gate = stage.session(), Gate()

    async def respond(request: ModelRequest) -> AsyncIterator[Part]:
        await gate.wait()
        yield TextDelta("at last")

    send(session, "go")
    running = asyncio.ensure_future(stage.runner(Agent("a", respond)).run(session))
    await gate.reached.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert log(session)[-2:] == ["session.usage", "session.status idle server_restart"]
    gate.open.set()
    (result,) = await stage.runner(Agent("a", respond)).run(session)
    assert result.text == "at last"
    assert log(session)[-7:] == [
        "session.status running",
        "session.resumed",
        "model.request.retried",
        "agent.message at last",
        "model.request.completed",
        "session.usage",
        "session.status idle completed",
    ]
    ids = {e.payload["requestId"] for e in session.events() if "requestId" in e.payload}
    assert len(ids) == 1


async def test_R3_4_a_turn_that_kills_its_runners_is_given_up_as_orphaned(stage: Stage) -> None:
    session, gate = stage.session(), Gate()

    async def respond(request: ModelRequest) -> AsyncIterator[Part]:
        await gate.wait()
        yield TextDelta("never")

    poison = Agent("a", respond, limits=Limits(resumptions_max=2))
    send(session, "go")
    for _ in range(3):
        gate.reached.clear()
        running = asyncio.ensure_future(stage.runner(poison).run(session))
        await gate.reached.wait()
        running.cancel()
        await asyncio.wait({running})
    await stage.runner(poison).run(session)
    assert log(session)[-3:] == [
        "model.request.failed cancelled",
        "session.usage",
        "session.status idle orphaned",
    ]


async def test_a_serving_runner_takes_turns_as_they_come(stage: Stage) -> None:
    session, answered = stage.session(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def watch(_: object) -> None:
        if answers(session) == 2:
            loop.call_soon_threadsafe(answered.set)

    session.watch(watch)
    serving = asyncio.ensure_future(stage.runner(agent(["hi", "ho"])).serve([session]))
    send(session, "one")
    send(session, "two")
    await answered.wait()
    serving.cancel()
    await asyncio.wait({serving})
    assert types(session).count("agent.message") == 2


def answers(session: Session) -> int:
    return sum(e.type == "session.status" and "stopReason" in e.payload for e in session.events())


def test_a_runner_in_a_thread_serves_and_closes(stage: Stage) -> None:
    session, done = stage.session(), threading.Event()
    session.watch(lambda _: done.set() if answers(session) == 1 else None)
    with stage.runner(agent(["hi"])):
        send(session, "one")
        assert done.wait(10)
    assert log(session)[-1] == "session.status idle completed"


async def test_who_is_cut_twice_hears_of_it_when_the_work_has_ended() -> None:
    go, ended = asyncio.Event(), []

    async def work() -> None:
        await go.wait()
        ended.append("work")

    async def caller() -> None:
        try:
            await to_its_end(work())
        finally:
            ended.append("caller")

    calling = asyncio.ensure_future(caller())
    for _ in range(2):
        await asyncio.sleep(0)
        calling.cancel()
    await asyncio.sleep(0)
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await calling
    assert ended == ["work", "caller"]
