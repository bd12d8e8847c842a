"""A turn: the order of its log, its deltas, its limits, and idle on every way out."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.client.sessions.turning import (
    SECOND,
    Clock,
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

from syncline.client.sessions import (
    Agent,
    Asked,
    Degraded,
    Limits,
    Meter,
    ModelRequest,
    NoHooks,
    Part,
    ReasoningDelta,
    StopReason,
    TextDelta,
    ToolContext,
    ToolRegistry,
    send,
    turn_state,
)
from syncline.sync import unpack
from syncline.sync.sessions import Call, SessionArtifact, read_signal


def tools_of(ran: list[str]) -> ToolRegistry:
    tools = ToolRegistry()

    @tools.tool(read_only=True)
    async def look(given: Text) -> str:
        ran.append(f"look {given.text}")
        return f"saw {given.text}"

    @tools.tool()
    async def write(given: Text) -> dict[str, Any]:
        ran.append(f"write {given.text}")
        return {"wrote": given.text}

    @tools.tool()
    async def crash(given: Text) -> None:
        raise RuntimeError("the disk is on fire")

    return tools


async def test_R3_4_a_turn_of_two_steps_is_in_the_log_as_documented(stage: Stage) -> None:
    session, ran = stage.session(), list[str]()
    send(session, "hello")
    script = [says("looking", call("look", "a"), call("write", "b")), says("done")]
    (result,) = await stage.runner(agent(script, tools_of(ran))).run(session)
    assert log(session) == [
        "user.message hello",
        "session.status running",
        "model.request.started",
        "agent.message looking",
        "model.request.completed",
        "tool.call.started look",
        "tool.call.started write",
        "tool.call.completed look ok saw a",
        "tool.call.completed write ok {'wrote': 'b'}",
        "model.request.started",
        "agent.message done",
        "model.request.completed",
        "session.usage",
        "session.status idle completed",
    ]
    assert (result.stop_reason, result.text) == (StopReason.COMPLETED, "done")
    assert ran == ["look a", "write b"]
    events = session.events()[1:]
    assert [e.payload["seqWithinTurn"] for e in events] == list(range(1, 14))
    assert {(e.payload["turnId"], e.payload["subagentDepth"]) for e in events} == {
        (result.turn_id, 0)
    }
    assert [e.payload["stageId"] for e in events] == (
        ["start"] + ["step.1"] * 5 + ["tools"] * 2 + ["step.2"] * 3 + ["end"] * 2
    )
    usage = last(session, "session.usage")
    assert (usage["requests"], usage["calls"], usage["steps"]) == (2, 2, 2)
    assert (usage["inputTokens"], usage["costMicros"], usage["outcome"]) == (2, 20, "success")


async def test_R3_4_every_call_of_a_step_is_durable_before_any_runs(stage: Stage) -> None:
    session, seen = stage.session(), list[list[str]]()
    tools = ToolRegistry()

    @tools.tool(read_only=True)
    async def look(given: Text) -> None:
        seen.append([t for t in types(session) if t.startswith("tool.")])

    send(session, "go")
    script = [says("x", call("look"), call("look"), call("look")), says("done")]
    await stage.runner(agent(script, tools)).run(session)
    assert seen[0] == ["tool.call.started"] * 3


async def test_R3_3_deltas_are_signals_and_leave_no_trace(stage: Stage) -> None:
    session, signals = stage.session(), list[Any]()

    def signal(id_: str, kind: str, payload: bytes) -> None:
        signals.append((id_, read_signal(kind, unpack(payload))))

    async def respond(request: ModelRequest) -> AsyncIterator[Part]:
        yield ReasoningDelta("hm")
        yield TextDelta("he")
        yield TextDelta("llo")

    send(session, "hi")
    await stage.runner(Agent("a", respond), signal=signal).run(session)
    assert [(s.kind, s.text, s.index) for _, s in signals] == [
        ("agent.reasoning_delta", "hm", 0),
        ("agent.text_delta", "he", 1),
        ("agent.text_delta", "llo", 2),
    ]
    assert {id_ for id_, _ in signals} == {session.id}
    message = last(session, "agent.message")
    assert (message["text"], message["reasoning"]) == ("hello", "hm")
    assert not any("delta" in type_ for type_ in types(session))


async def test_signals_that_cannot_be_sent_degrade_the_turn_once(stage: Stage) -> None:
    session = stage.session()

    def signal(id_: str, kind: str, payload: bytes) -> None:
        raise OSError("no way out")

    send(session, "hi")
    (result,) = await stage.runner(agent(["a b c"]), signal=signal).run(session)
    assert result.stop_reason == "completed"
    assert types(session).count("session.error") == 1
    assert last(session, "session.error")["error"] == "deltas are not sent: no way out"


async def test_R3_9_what_degrades_is_noted_and_the_answer_goes_on(stage: Stage) -> None:
    session = stage.session()
    send(session, "hi")
    script = [[Degraded("the summary is old", "memory"), *says("yes")]]
    await stage.runner(agent(script)).run(session)
    assert log(session)[2:5] == ["model.request.started", "session.error", "agent.message yes"]


# Tools.


@pytest.mark.parametrize(
    ("asked", "error"),
    [
        (call("crash"), "the disk is on fire"),
        (call("nowhere"), "there is no tool 'nowhere'"),
    ],
)
async def test_a_call_that_fails_is_an_answer_to_the_model(
    stage: Stage, asked: Any, error: str
) -> None:
    session = stage.session()
    send(session, "go")
    script = [says("x", asked), says("I see")]
    (result,) = await stage.runner(agent(script, tools_of([]))).run(session)
    completed = last(session, "tool.call.completed")
    assert (completed["outcome"], completed["error"]) == ("error", error)
    assert (result.stop_reason, result.text) == ("completed", "I see")


async def test_input_that_does_not_fit_its_schema_runs_nothing(stage: Stage) -> None:
    session, ran = stage.session(), list[str]()
    send(session, "go")
    script = [says("x", Asked("look", {"text": 5})), says("sorry")]
    await stage.runner(agent(script, tools_of(ran))).run(session)
    assert ran == []
    assert last(session, "tool.call.completed")["error"].startswith("the input of look")


async def test_a_tool_may_be_a_plain_function_and_record_events(stage: Stage) -> None:
    session, tools = stage.session(), ToolRegistry()

    @tools.tool(read_only=True)
    def plain(given: Text) -> int:
        return 7

    @tools.tool()
    async def publish(given: Text, context: ToolContext) -> str:
        await context.record(SessionArtifact(artifact_id="a1", title=given.text))
        return context.call_id

    send(session, "go")
    script = [says("x", call("plain"), call("publish", "page")), says("done")]
    await stage.runner(agent(script, tools)).run(session)
    assert last(session, "session.artifact")["title"] == "page"
    results = [e.payload["result"] for e in session.events() if e.type == "tool.call.completed"]
    assert 7 in results


# Limits.


@pytest.mark.parametrize(
    ("limits", "reason", "limit", "steps"),
    [
        (Limits(steps_max=3), "max_turns", None, 3),
        (Limits(tokens_max=4), "budget_reached", "tokens", 2),
        (Limits(cost_micros_max=10), "budget_reached", "cost", 1),
    ],
)
async def test_R3_4_a_limit_ends_the_turn_between_steps(
    stage: Stage, limits: Limits, reason: str, limit: str | None, steps: int
) -> None:
    session = stage.session()
    send(session, "go")
    forever = agent(lambda _: says("more", call("look")), tools_of([]), limits)
    (result,) = await stage.runner(forever).run(session)
    usage = last(session, "session.usage")
    assert (result.stop_reason, usage["limit"] if limit else None) == (reason, limit)
    assert usage["steps"] == types(session).count("agent.message") == steps
    assert (types(session)[-2:], usage["outcome"]) == (
        ["session.usage", "session.status"],
        "limited",
    )


async def test_the_time_limit_cuts_in_on_the_way(stage: Stage) -> None:
    session = stage.session()
    asked = asyncio.Event()

    async def respond(request: ModelRequest) -> AsyncIterator[Part]:
        yield TextDelta("thinking")
        asked.set()
        await asyncio.Event().wait()

    send(session, "go")
    slow = Agent("slow", respond, limits=Limits(time_us_max=5 * SECOND))
    running = asyncio.ensure_future(stage.runner(slow).run(session))
    await asked.wait()
    stage.clock.advance(5 * SECOND)
    (result,) = await running
    assert result.stop_reason == "budget_reached"
    assert log(session)[-3:] == [
        "model.request.failed cancelled",
        "session.usage",
        "session.status idle budget_reached",
    ]
    assert last(session, "session.usage")["limit"] == "time"


# Failures.


async def test_R3_4_a_provider_that_fails_ends_the_turn_with_error(stage: Stage) -> None:
    session = stage.session()
    send(session, "go")
    (result,) = await stage.runner(agent([ConnectionError("no route")])).run(session)
    assert log(session)[-3:] == [
        "model.request.failed provider-error",
        "session.usage",
        "session.status idle error",
    ]
    assert result.stop_reason == "error"
    assert last(session, "session.usage")["outcome"] == "provider-error"


async def test_when_a_responder_fails_the_next_one_is_asked(stage: Stage) -> None:
    session = stage.session()

    async def broken(request: ModelRequest) -> AsyncIterator[Part]:
        yield TextDelta("half an ans")
        raise ConnectionError("cut")

    async def works(request: ModelRequest) -> AsyncIterator[Part]:
        yield TextDelta("whole")

    send(session, "go")
    (result,) = await stage.runner(Agent("a", [broken, works])).run(session)
    assert log(session)[2:] == [
        "model.request.started",
        "model.request.failed provider-error",
        "session.error",
        "model.request.started",
        "agent.message whole",
        "model.request.completed",
        "session.usage",
        "session.status idle completed",
    ]
    assert result.text == "whole"
    assert last(session, "model.request.started")["rung"] == 1


class Broken(NoHooks):
    """Hooks of which one raises."""

    def __init__(self, which: str) -> None:
        self.which = which

    async def before_turn(self, session_id: str, turn_id: str) -> None:
        if self.which == "turn":
            raise ValueError("not today")

    async def before_request(self, request: ModelRequest) -> ModelRequest:
        if self.which == "request":
            raise ValueError("not today")
        return request

    async def before_tool(self, session_id: str, call: Call) -> None:
        if self.which == "tool":
            raise ValueError("not today")


@pytest.mark.parametrize("which", ["turn", "request", "tool"])
async def test_a_hook_that_raises_ends_the_turn_with_idle(stage: Stage, which: str) -> None:
    session = stage.session()
    send(session, "go")
    script = [says("x", call("look")), says("done")]
    broken = agent(script, tools_of([]), hooks=Broken(which))
    (result,) = await stage.runner(broken).run(session)
    assert (result.stop_reason, result.error) == ("error", "not today")
    assert log(session)[-2:] == ["session.usage", "session.status idle error"]
    status = last(session, "session.status")
    assert (status["error"], status["errorType"]) == ("not today", "ValueError")
    assert turn_state(session).unfinished is None


async def test_a_hook_sees_and_changes_the_request(stage: Stage) -> None:
    class Polite(NoHooks):
        async def before_request(self, request: ModelRequest) -> ModelRequest:
            return dataclasses.replace(request, instructions="be kind")

    session = stage.session()
    send(session, "go")
    polite = agent(lambda request: request.instructions, hooks=Polite())
    (result,) = await stage.runner(polite).run(session)
    assert result.text == "be kind"


# Several turns.


async def test_R3_7_each_queued_message_is_a_turn_and_the_prompt_is_the_log(stage: Stage) -> None:
    session = stage.session()
    for text in ("one", "two", "three"):
        send(session, text)
    answers = agent(lambda request: f"answer {len(said(request)) + 1}")
    results = await stage.runner(answers).run(session)
    assert [result.text for result in results] == ["answer 1", "answer 2", "answer 3"]
    assert len({result.turn_id for result in results}) == 3
    assert results[0].meter == Meter(2, 2)


async def test_a_message_that_is_sent_twice_under_one_id_counts_once(stage: Stage) -> None:
    session = stage.session()
    send(session, "hello", message_id="m1")
    send(session, "hello", message_id="m1")
    assert len(await stage.runner(agent(["hi"])).run(session)) == 1


async def test_nothing_waits_and_nothing_is_written(stage: Stage) -> None:
    session = stage.session()
    assert await stage.runner(agent(["hi"])).run(session) == []
    assert types(session) == []


def test_virtual_time_wakes_who_waited_long_enough() -> None:
    clock = Clock()

    async def main() -> None:
        waiting = asyncio.ensure_future(clock.wait(asyncio.Event(), SECOND))
        await asyncio.wait({waiting}, timeout=0)
        clock.advance(SECOND)
        await waiting

    asyncio.run(main())
