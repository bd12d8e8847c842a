"""One session played over three devices, against a real server, and the ledger of that run.

Ann is offline while she writes, bob dies in the middle of his turn, and cat takes it over. The log
is the documented one, event by event, everywhere; the ledger verifies, and no
byte of it can change.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.client.sessions.test_turn_crashes import Killed, dying_after
from tests.client.sessions.turning import SECOND, Clock, Text, agent, call, says
from tests.tools.damage import cells, flipped, write_cell

from syncline.cli.verify import _server, verify_file
from syncline.cli.verify._file import DataFile, Types
from syncline.cli.verify._ledger import Recorded, check_ledger
from syncline.cli.verify._report import Problems
from syncline.client import ReceiptState
from syncline.client.sessions import Agent, ToolRegistry, TurnRunner, send, turn_state
from syncline.server import export_ledger
from syncline.sync import Event

from .support import World, now_us

LEASE_US = 30 * SECOND
GUARDED: dict[str, tuple[str, ...]] = {
    "ledger": ("hash", "row"),
    "ledger_identities": ("salt", "identity"),
}

QUESTION = {"messageId": "m1", "text": "which tea?", "mode": "queue"}
THANKS = {"messageId": "m2", "text": "and thanks", "mode": "queue"}
COST = {"inputTokens": 1, "outputTokens": 1, "costMicros": 10}
TWICE = {name: 2 * amount for name, amount in COST.items()}

PLAYED: list[tuple[str, str, dict[str, Any]]] = [
    # Who wrote it, its type, and of its payload what tells it.
    ("ann", "user.message", QUESTION),
    ("bob", "session.status", {"status": "running", "messageIds": ["m1"]}),
    ("bob", "model.request.started", {"stageId": "step.1", "fence": 1}),
    ("bob", "agent.message", {"text": "I look"}),
    ("bob", "model.request.completed", COST | {"stageId": "step.1"}),
    ("bob", "tool.call.started", {"name": "look", "input": {"text": "shelf"}}),
    ("bob", "tool.call.started", {"name": "pay", "input": {"text": "5"}}),
    # Here bob died. Looking harms nobody and is done again, paying is not.
    ("cat", "session.resumed", {"callsRerun": 1, "callsInterrupted": 1, "requestsRetried": 0}),
    ("cat", "tool.call.completed", {"name": "pay", "outcome": "interrupted"}),
    ("cat", "tool.call.completed", {"name": "look", "outcome": "ok", "result": "green"}),
    ("cat", "model.request.started", {"stageId": "step.2", "fence": 2}),
    ("cat", "agent.message", {"text": "green tea"}),
    ("cat", "model.request.completed", COST | {"stageId": "step.2"}),
    ("cat", "session.usage", TWICE | {"outcome": "success"}),
    ("cat", "session.status", {"status": "idle", "stopReason": "completed"}),
    # What ann wrote offline, long before, arrives with her.
    ("ann", "user.message", THANKS),
    ("cat", "session.status", {"status": "running", "messageIds": ["m2"]}),
    ("cat", "model.request.started", {"stageId": "step.1", "fence": 3}),
    ("cat", "agent.message", {"text": "welcome"}),
    ("cat", "model.request.completed", COST | {"stageId": "step.1"}),
    ("cat", "session.usage", COST | {"outcome": "success"}),
    ("cat", "session.status", {"status": "idle", "stopReason": "completed"}),
]


class Play:
    """The devices of one person, an agent that all of them run, and one clock."""

    def __init__(self, world: World) -> None:
        self.world = world
        # Time goes by in here only, and stays behind the server's.
        self.clock = Clock(now_us() - 600 * SECOND)
        self.ran: list[tuple[str, str]] = []

    def agent(self, name: str, *script: Any) -> Agent:
        tools = ToolRegistry()

        @tools.tool(read_only=True)
        async def look(given: Text) -> str:
            self.ran.append((name, "look"))
            return "green"

        @tools.tool()
        async def pay(given: Text) -> str:
            self.ran.append((name, "pay"))
            return "paid"

        return agent(list(script), tools)

    def sync(self, *names: str) -> None:
        for name in names:
            self.world.replica(name, clock=self.clock)
            self.world.sync(name)

    def runner(self, name: str, *script: Any) -> TurnRunner:
        replica = self.world.replica(name)
        return TurnRunner(
            replica,
            self.agent(name, *script),
            timing=self.clock,
            lease_us=LEASE_US,
            online=lambda: True,
            settle_us=0,
        )

    def run(self, name: str, *script: Any) -> list[str]:
        """What this device answers now."""
        results = asyncio.run(self.runner(name, *script).run(self.world.session(name)))
        return [result.text for result in results]


@pytest.fixture(scope="module")
def play(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Play]:
    """The session, played once; its files are closed, verified and equal."""
    world = World(tmp_path_factory.mktemp("three"))
    try:
        world.start()
        play = Play(world)
        _play(play)
        world.check()
        yield play
    finally:
        world.close()
        world.stop()


def _play(play: Play) -> None:
    world = play.world
    for name in ("ann", "bob", "cat"):
        world.replica(name, clock=play.clock)
    send(world.session("ann"), "which tea?", message_id="m1")
    play.sync("ann", "bob", "cat")

    # Ann goes offline, and writes on.
    waiting = send(world.session("ann"), "and thanks", message_id="m2")
    assert len(world.session("ann").pending()) == 1

    # Bob begins, and is gone when the calls of his first step are recorded and before any ran.
    asked = says("I look", call("look", "shelf"), call("pay", "5"))
    with dying_after(3), pytest.raises(Killed):
        play.run("bob", asked)
    assert play.ran == []
    world.close("bob")
    # What he had stored is sent when the app is opened again. It runs nothing.
    play.sync("bob", "cat")

    # Cat takes over, not before the lease is out.
    assert play.run("cat", "green tea") == []
    play.clock.advance(LEASE_US)
    assert play.run("cat", asked, says("green tea")) == ["green tea"]
    assert play.ran == [("cat", "look")]
    play.sync("cat")

    before = waiting.state
    play.sync("ann", "cat")
    assert (before, waiting.state) == (ReceiptState.QUEUED, ReceiptState.APPLIED)
    assert play.run("cat", says("welcome")) == ["welcome"]
    play.sync("cat", "ann", "bob")
    for name in ("ann", "bob", "cat"):
        assert turn_state(world.session(name)).status == "idle"


def test_R3_4_R3_8_three_devices_play_one_session_and_its_log_is_the_documented_one(
    play: Play,
) -> None:
    world = play.world
    sent = [
        (entry.seq, entry.client, change.type, change.payload)
        for entry in world.log()
        for change in (accepted.change for accepted in entry.read())
        if isinstance(change, Event)
    ]
    told = [
        (client, type_, {key: value for key, value in payload.items() if key in fields})
        for (_, client, type_, payload), (_, _, fields) in zip(sent, PLAYED, strict=False)
    ]
    assert told == PLAYED
    assert len(sent) == len(PLAYED)
    for name in ("ann", "bob", "cat"):
        rows = world.session(name).events()
        assert [(row.seq, row.client, row.type, row.payload) for row in rows] == sent
    for turn in (sent[1:15], sent[16:]):
        # Each turn is one, and counts its own events, whoever wrote them.
        assert len({payload["turnId"] for _, _, _, payload in turn}) == 1
        numbers = [payload["seqWithinTurn"] for _, _, _, payload in turn]
        assert numbers == list(range(1, len(turn) + 1))


def test_R1_9_every_ledger_row_of_the_run_says_which_turn_and_what_it_took(play: Play) -> None:
    turns = [line.facts for line in export_ledger(play.world.data) if line.kind == "turn"]
    names = ("event", "turn", "stage", "seq_within_turn", "depth", "outcome")
    one, two = turns[0]["turn"], turns[-1]["turn"]
    assert [[facts.get(name) for name in names] for facts in turns] == [
        ["model.request.completed", one, "step.1", 4, 0, None],
        ["model.request.completed", one, "step.2", 12, 0, None],
        ["session.usage", one, "end", 13, 0, "success"],
        ["model.request.completed", two, "step.1", 4, 0, None],
        ["session.usage", two, "end", 5, 0, "success"],
    ]
    assert [facts["dot"][0] for facts in turns] == ["bob", "cat", "cat", "cat", "cat"]
    assert [facts["cost_micros"] for facts in turns] == [10, 10, 20, 10, 10]


def test_R1_8_one_changed_byte_in_any_cell_of_the_ledger_fails_the_verification(
    play: Play, tmp_path: Path
) -> None:
    path = Path(shutil.copy(play.world.data, tmp_path / "changed.db"))
    assert verify_file(path).all_problems() == []
    for at, cell in enumerate(cells(path, GUARDED)):
        write_cell(path, cell, flipped(cell.data, at, 1))
        assert not verify_file(path).ok, f"{cell.table}.{cell.column} of {cell.key}"
        write_cell(path, cell, cell.data)
    assert verify_file(path).all_problems() == []


class Changed(DataFile):
    """A file of which the rows of one table read otherwise than they are stored."""

    changed: tuple[str, list[tuple[Any, ...]]] = ("", [])
    stored: dict[str, list[tuple[Any, ...]]]

    def rows(
        self, table: str, columns: Mapping[str, Types], keys: int = 1, **where: int
    ) -> Iterator[tuple[Any, ...]]:
        name, rows = self.changed
        return iter(rows if name == table else self.stored[table])


def test_R1_8_no_single_byte_of_the_ledger_changes_unseen(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every byte of every cell, each in turn, against what the log of the run says."""
    seen: list[Recorded] = []
    monkeypatch.setattr(_server, "check_ledger", lambda *given: seen.append(given[2]))
    verify_file(play.world.data)
    (recorded,) = seen
    with Changed(play.world.data, Problems()) as file:
        columns: Mapping[str, Mapping[str, Types]] = {
            "ledger": {"n": (int,), "hash": (bytes,), "row": (bytes,)},
            "ledger_identities": {"n": (int,), "salt": (bytes,), "identity": (bytes,)},
        }
        file.stored = {
            table: list(DataFile.rows(file, table, of_table)) for table, of_table in columns.items()
        }
        assert _problems(file, recorded) == []
        tried = 0
        for table, rows in file.stored.items():
            for at, row in enumerate(rows):
                for other in _one_byte_off(row):
                    file.changed = (table, sorted([*rows[:at], other, *rows[at + 1 :]]))
                    assert _problems(file, recorded), f"{table} {row} as {other}"
                    tried += 1
        assert tried > 5 * (8 + 32 + 100)


def _problems(file: DataFile, recorded: Recorded) -> list[str]:
    problems = Problems()
    check_ledger(file, problems, recorded)
    return list(problems)


def _one_byte_off(row: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    """The row with one byte changed, for each byte of each cell."""
    for column, value in enumerate(row):
        if isinstance(value, int):
            others: list[Any] = [value ^ 1 << 8 * byte for byte in range(7)]
        else:
            others = [flipped(value, byte, 1 + byte % 255) for byte in range(len(value))]
        for other in others:
            yield (*row[:column], other, *row[column + 1 :])
