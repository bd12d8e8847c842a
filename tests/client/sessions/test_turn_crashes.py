"""A runner dies after every single append, and again while another makes up for it.

The turn has two steps, tools of every kind and a subagent with a tool of its own. Whatever dies
where, the log is in the end that of a turn that nobody disturbed, but for the marks of recovery and
for calls that may have had their effect and must not run twice.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from tests.client.sessions.turning import SECOND, Stage, Text, agent, call, log, said, says

from syncline.client import Notification, Session
from syncline.client._local import LocalCore
from syncline.client.sessions import (
    Agent,
    Asked,
    Decision,
    ModelRequest,
    ScriptedResponder,
    Subagent,
    ToolRegistry,
    decide,
    send,
    turn_state,
)
from syncline.sync.sessions import TurnState, read_event

RECOVERY = ("session.resumed", "model.request.retried")
LEASE_US = 30 * SECOND


class Killed(BaseException):
    """The process is no more: nothing that it would still do is done."""


@contextlib.contextmanager
def dying_after(commits: int) -> Iterator[list[int]]:
    """Of the runner in here this many commits are stored, and then it is gone."""
    stored = [0]
    tell, op = LocalCore._tell, LocalCore.op

    def told(self: LocalCore, notifications: list[Notification]) -> None:
        stored[0] += bool(notifications)
        if stored[0] >= commits:
            raise Killed
        tell(self, notifications)

    def writing(self: LocalCore, session: str) -> Any:
        if stored[0] >= commits:
            raise Killed
        return op(self, session)

    LocalCore._tell = told  # type: ignore[method-assign]
    LocalCore.op = writing  # type: ignore[method-assign]
    try:
        yield stored
    finally:
        LocalCore._tell = tell  # type: ignore[method-assign]
        LocalCore.op = op  # type: ignore[method-assign]


class Play:
    """One session with one message, and whoever runs it."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.ran: Counter[str] = Counter()
        self.session = stage.session()
        send(self.session, "go", message_id="m1")

    def agent(self) -> Agent:
        tools = ToolRegistry()

        @tools.tool(read_only=True)
        async def look(given: Text) -> str:
            self.ran["look"] += 1
            return "seen"

        @tools.tool(idempotent=True)
        async def put(given: Text) -> str:
            self.ran["put"] += 1
            return "put"

        @tools.tool()
        async def pay(given: Text) -> str:
            self.ran["pay"] += 1
            return "paid"

        inner = agent([says("asking", call("look")), "found"], tools)
        tools_of_outer = ToolRegistry(*tools, Subagent("helper", "", inner))

        def script(request: ModelRequest) -> Sequence[Any] | str:
            asked = [call("look"), call("put"), call("pay"), Asked("helper", {"task": "find"})]
            return says("working", *asked) if not said(request) else "done"

        return Agent("outer", ScriptedResponder(script), tools_of_outer)

    async def until_dead(self, appends: int) -> int:
        """Run, and die; how many appends there were, fewer when it came to its end before."""
        runner = self.stage.runner(self.agent(), lease_us=LEASE_US)
        with dying_after(appends) as stored:
            with contextlib.suppress(Killed):
                await runner.run(self.session)
        return stored[0]

    async def to_the_end(self) -> None:
        """Whoever takes over when the lease is out."""
        self.stage.clock.advance(LEASE_US)
        await self.stage.runner(self.agent(), lease_us=LEASE_US).run(self.session)

    def check(self, undisturbed: list[str]) -> None:
        """The log is whole: every rule of the log, whatever happened."""
        check_log(self.session)
        told = [line for line in log(self.session) if line.split()[0] not in RECOVERY]
        # Calls of a step end in any order; a payment may have been made and must not be made twice.
        expected = [line.replace("pay interrupted", "pay ok paid") for line in told]
        assert sorted(expected) == sorted(undisturbed)
        assert in_order(expected) == in_order(undisturbed)
        assert self.ran["pay"] <= 1
        children = [s for s in self.stage.replica.sessions() if parent(s) == self.session.id]
        (child,) = children
        check_log(child)
        inner = [line for line in log(child) if line.split()[0] not in RECOVERY]
        assert inner[0] == "user.message find"
        assert inner[-1] == "session.status idle completed"
        assert [line for line in inner if line.startswith("agent.")] == [
            "agent.message asking",
            "agent.message found",
        ]


def parent(session: Session) -> Any:
    return (session.get("$session", "header") or {}).get("parent")


def in_order(lines: list[str]) -> list[str]:
    """Without what workers of one step write side by side."""
    aside = ("tool.call.completed", "subagent.")
    return [line for line in lines if not line.startswith(aside)]


def check_log(session: Session) -> None:
    """What is true of every log in which all turns are over."""
    state, rows = TurnState(), session.events()
    for row in rows:
        assert state.take(read_event(row.type, row.payload), row.at), "nobody wrote out of turn"
    assert state.unfinished is None and not state.waiting
    count = Counter(row.type for row in rows)
    assert rows[-1].payload["stopReason"] == "completed"
    assert rows[-2].type == "session.usage"
    numbered = [row.payload["seqWithinTurn"] for row in rows if "seqWithinTurn" in row.payload]
    assert numbered == list(range(1, len(numbered) + 1))
    for type_, key in (
        ("agent.message", "requestId"),
        ("model.request.started", "requestId"),
        ("model.request.completed", "requestId"),
        ("tool.call.started", "callId"),
        ("tool.call.completed", "callId"),
        ("subagent.spawned", "sessionId"),
        ("subagent.message", "messageId"),
        ("subagent.completed", "sessionId"),
    ):
        ids = [row.payload[key] for row in rows if row.type == type_]
        assert len(ids) == len(set(ids)), f"{type_} comes once for each"
    assert count["model.request.started"] == count["model.request.completed"]
    assert count["tool.call.started"] == count["tool.call.completed"]
    started = [i for i, row in enumerate(rows) if row.type == "tool.call.started"]
    assert started == list(range(started[0], started[0] + len(started)))
    taken = [id_ for row in rows for id_ in row.payload.get("messageIds", [])]
    assert len(taken) == 1


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], int]:
    """The log of a turn in which nobody dies, and how many appends it takes."""
    stage = Stage(tmp_path_factory.mktemp("undisturbed"))
    with stage.replica:
        play = Play(stage)
        appends = asyncio.run(play.until_dead(10**6))
        return log(play.session), appends


def test_the_turn_is_one_of_two_steps_with_every_kind_of_tool(
    undisturbed: tuple[list[str], int],
) -> None:
    lines, appends = undisturbed
    assert lines == [
        "user.message go",
        "session.status running",
        "model.request.started",
        "agent.message working",
        "model.request.completed",
        "tool.call.started look",
        "tool.call.started put",
        "tool.call.started pay",
        "tool.call.started helper",
        "tool.call.completed look ok seen",
        "tool.call.completed put ok put",
        "tool.call.completed pay ok paid",
        "subagent.spawned",
        "subagent.status running",
        "subagent.message asking",
        "subagent.message found",
        "subagent.status idle completed",
        "subagent.completed completed found",
        "tool.call.completed helper ok found",
        "model.request.started",
        "agent.message done",
        "model.request.completed",
        "session.usage",
        "session.status idle completed",
    ]
    assert appends == APPENDS


APPENDS = 23
"""Of the parent and of the child, each an op."""


@pytest.mark.parametrize("appends", range(1, APPENDS))
async def test_R3_8_a_crash_after_any_append_loses_and_doubles_nothing(
    stage: Stage, undisturbed: tuple[list[str], int], appends: int
) -> None:
    play = Play(stage)
    assert await play.until_dead(appends) == appends
    await play.to_the_end()
    play.check(undisturbed[0])


@pytest.mark.parametrize("first", [9])
async def test_R3_8_a_crash_after_any_append_of_the_recovery_is_one_more_crash(
    stage: Stage, undisturbed: tuple[list[str], int], first: int
) -> None:
    await die_twice(stage, undisturbed[0], first)


@pytest.mark.long
@pytest.mark.parametrize("first", range(1, APPENDS))
async def test_a_crash_in_any_recovery_from_any_crash(
    stage: Stage, undisturbed: tuple[list[str], int], first: int
) -> None:
    await die_twice(stage, undisturbed[0], first)


async def die_twice(stage: Stage, undisturbed: list[str], first: int) -> None:
    second = 0
    while True:
        second += 1
        play = Play(stage)
        await play.until_dead(first)
        stage.clock.advance(LEASE_US)
        finished = await play.until_dead(second) < second
        if not finished:
            await play.to_the_end()
        play.check(undisturbed)
        if finished:
            break
    assert second > 1


async def test_a_crash_after_every_append_still_comes_to_the_end(
    stage: Stage, undisturbed: tuple[list[str], int]
) -> None:
    """Nobody lives for more than four commits: two takeovers, and little else."""
    play = Play(stage)
    for _ in range(4 * APPENDS):
        if turn_state(play.session).ended:
            break
        await play.until_dead(4)
        stage.clock.advance(LEASE_US)
    play.check(undisturbed[0])


async def test_nobody_takes_over_before_the_lease_is_out(stage: Stage) -> None:
    play = Play(stage)
    await play.until_dead(3)
    stage.clock.advance(LEASE_US - 1)
    assert await stage.runner(play.agent()).run(play.session) == []
    stage.clock.advance(1)
    assert len(await stage.runner(play.agent()).run(play.session)) == 1


async def test_R3_8_what_a_takeover_found_is_counted(stage: Stage) -> None:
    """Three calls are open, of which two may run again."""
    play = Play(stage)
    await play.until_dead(3)
    await play.to_the_end()
    (resumed,) = [e.payload for e in play.session.events() if e.type == "session.resumed"]
    names = ("requestsRetried", "callsRerun", "callsInterrupted", "callsParked")
    assert [resumed[name] for name in names] == [0, 3, 1, 0]


async def test_R3_8_a_parked_call_is_left_alone_by_a_takeover(stage: Stage) -> None:
    session, ran = stage.session(), list[str]()
    tools = ToolRegistry()

    @tools.tool(needs_approval=True)
    async def pay(given: Text) -> str:
        ran.append(given.text)
        return "paid"

    @tools.tool()
    async def once(given: Text) -> str:
        return "once"

    payer = agent([says("x", call("pay", "5"), call("once")), "done"], tools)
    send(session, "buy")
    with dying_after(3), pytest.raises(Killed):
        await stage.runner(payer, lease_us=LEASE_US).run(session)
    stage.clock.advance(LEASE_US)
    (parked,) = await stage.runner(payer).run(session)
    assert parked.stop_reason == "requires_action"
    assert log(session)[-4:] == [
        "session.resumed",
        "tool.call.completed once interrupted",
        "session.usage",
        "session.status idle requires_action",
    ]
    call_id = next(e.payload["callId"] for e in session.events() if e.type == "tool.call.pending")
    decide(session, call_id, Decision.APPROVED)
    (result,) = await stage.runner(payer).run(session)
    assert (result.text, ran) == ("done", ["5"])
