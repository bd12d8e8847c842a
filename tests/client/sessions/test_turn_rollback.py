"""Turns of a session that is rolled back: the model is not shown what was taken out."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.client.sessions.test_turn_control import Gate, gated_tools
from tests.client.sessions.turning import Stage, agent, call, log, said, says

from syncline.client.sessions import Checkpoints, EventLog, send, turn_state


@pytest.fixture
def stage(folder: Path) -> Iterator[Stage]:
    made = Stage(folder)
    yield made
    made.replica.close()


async def test_a_model_is_not_shown_what_was_rolled_back(stage: Stage) -> None:
    session = stage.session()
    past, runner = (
        Checkpoints(session),
        stage.runner(agent(lambda request: says(str(said(request))))),
    )
    send(session, "one")
    await runner.run(session)
    early = past.create("early")
    send(session, "two")
    await runner.run(session)
    past.rollback(early)
    send(session, "three")
    await runner.run(session)
    texts = [message.text for message in EventLog(session).transcript().messages]
    assert texts == ["one", "[]", "three", "['[]']"]
    assert log(session).count("session.status idle completed") == 3


async def test_a_turn_that_is_rolled_back_while_it_runs_stops_and_the_next_one_runs(
    stage: Stage,
) -> None:
    session, gate = stage.session(), Gate()
    past = Checkpoints(session)
    send(session, "one")
    await stage.runner(agent([says("first")])).run(session)
    early = past.create("early")
    send(session, "two")
    waits = stage.runner(agent([says("x", call("slow"))], gated_tools(gate)))
    running = asyncio.ensure_future(waits.run(session))
    await gate.reached.wait()
    past.rollback(early)
    await asyncio.wait_for(running, 10)
    assert gate.cancelled
    assert turn_state(session).unfinished is None
    send(session, "three")
    await stage.runner(agent([says("third")])).run(session)
    texts = [message.text for message in EventLog(session).transcript().messages]
    assert texts == ["one", "first", "three", "third"]
    assert turn_state(session).unfinished is None
