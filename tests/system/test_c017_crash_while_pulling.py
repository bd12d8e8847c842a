"""C017: the cursor never runs ahead of the rows that it covers."""

from __future__ import annotations

import signal
import sqlite3
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from syncline.cli.verify import verify_file
from syncline.client import Replica, State
from syncline.client._core import Core
from syncline.sync import Entries

from .crashing import Crasher
from .proxy import Message, Proxy, Way
from .support import SESSION, World, eventually, now_us, query

ROWS = 100
PAGE = 40
BYTES = (256 << 10) // PAGE - 150
"""Of one record, so that about forty entries fill a page."""


def _fill(world: World, name: str = "b") -> None:
    session = world.session(name)
    with world.replica(name).batch():
        for i in range(ROWS):
            session.put("notes", f"r{i:03}", {"text": "x" * BYTES})
    world.sync(name)


def _cursor(path: Path) -> int:
    """The stored cursor, which must be the highest row, with every row below it."""
    ((seq,),) = query(path, "SELECT seq FROM syncline_sessions")
    seqs = [n for (n,) in query(path, "SELECT seq FROM syncline_entries ORDER BY seq")]
    assert seqs == list(range(1, seq + 1))
    assert verify_file(path).all_problems() == []
    return int(seq)


def _kill_at(world: World, every: int, started: int) -> None:
    """Kill a pull, with own ops that wait to be pushed, at each so-many-th statement."""
    world.start()
    _fill(world)
    with Crasher() as crasher:
        cursors = set()
        statement, life = started, None
        while life is None or life.killed_by:
            path = world.folder / f"a{statement}.db"
            assert crasher.run("write", path, seed=1, ops=2).killed_by == 0
            life = crasher.run("sync", path, url=world.url, at_statement=statement)
            cursors.add(_cursor(path))
            assert life.killed_by in (0, signal.SIGKILL)
            again = crasher.run("sync", path, url=world.url)
            assert again.told == ["synced"]
            assert _cursor(path) >= ROWS + 2
            world.add(path)
            statement += every
        assert len(cursors) > 1, "it was killed between the pages"
        for path in world.files:
            if path.stem != "b":
                crasher.run("sync", path, url=world.url)
    world.sync("b")
    world.check()


def test_C017_a_kill_in_the_middle_of_a_pull_keeps_cursor_and_rows_together(world: World) -> None:
    _kill_at(world, every=53, started=30)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_C017_a_kill_at_every_statement_of_a_pull_keeps_cursor_and_rows_together(
    world: World,
) -> None:
    _kill_at(world, every=1, started=0)


class _Failing(sqlite3.Connection):
    """Cannot store entry 57 while ``broken``."""

    broken = True

    def executemany(self, sql: str, rows: Any) -> sqlite3.Cursor:
        rows = list(rows)
        if self.broken and "syncline_entries" in sql and any(row[1] == 57 for row in rows):
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorname = "SQLITE_IOERR_WRITE"
            raise error
        return super().executemany(sql, rows)


def test_C017_a_row_that_cannot_be_stored_holds_the_cursor_until_it_can(world: World) -> None:
    world.start()
    _fill(world)
    opened: list[_Failing] = []

    def factory(path: Path) -> sqlite3.Connection:
        made = sqlite3.connect(
            path, isolation_level=None, check_same_thread=False, factory=_Failing
        )
        opened.append(made)
        return made

    a = world.session("a", connection_factory=factory)
    path = world.folder / "a.db"
    with world.replica("a").connect(world.url) as connection:
        eventually(lambda: "cannot be written" in connection.reason)
        assert 0 < _cursor(path) <= 56
        for connected in opened:
            connected.broken = False
        eventually(lambda: a.count("notes") == ROWS, each=connection.poke)
        connection.wait_synced(10)
    assert _cursor(path) == ROWS
    world.check()


def test_C017_applying_that_meets_a_bug_is_tried_again_from_the_same_cursor(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is raised, the connection says so and comes back; it does not die in silence."""
    world.start()
    _fill(world)
    a = world.session("a")
    path = world.folder / "a.db"
    failures: list[int] = []
    apply = Core.apply_entries

    def failing(self: Core, id_: str, seq: int, *rest: Any) -> Any:
        if self is world.replica("a")._core and seq > PAGE // 2 and len(failures) < 3:
            failures.append(seq)
            raise RuntimeError("a bug")
        return apply(self, id_, seq, *rest)

    monkeypatch.setattr(Core, "apply_entries", failing)
    with world.replica("a").connect(world.url) as connection:
        eventually(lambda: "a bug" in connection.reason)
        assert connection.state is State.OFFLINE
        assert 0 < _cursor(path) < ROWS
        eventually(lambda: a.count("notes") == ROWS, each=connection.poke)
    assert len(failures) == 3
    assert _cursor(path) == ROWS
    world.check()


@pytest.mark.parametrize("page", [1, 2, 3])
def test_C017_closing_between_receive_and_apply_loses_no_row(world: World, page: int) -> None:
    server = world.start()
    _fill(world)
    path = world.folder / "a.db"
    passed: list[Message] = []
    reached = threading.Event()

    def watch(message: Message) -> Iterable[bytes]:
        if isinstance(message.frame(), Entries):
            passed.append(message)
            if len(passed) == page:
                reached.set()
        return [message.raw]

    with Proxy(server.port) as proxy:
        proxy.filter(Way.TO_CLIENT, watch)
        world.session("a")
        connection = world.replica("a").connect(proxy.url)
        assert reached.wait(10)
        connection.close()
        assert _cursor(path) <= ROWS
    world.sync("a")
    assert _cursor(path) == ROWS
    world.check()


def test_C017_an_op_written_during_the_pull_gets_its_reply_into_the_same_transaction(
    world: World,
) -> None:
    """Entries that come as the reply to a push move the cursor and the outbox together."""
    world.start()
    _fill(world)
    path = world.add(world.folder / "a.db")
    with Crasher() as crasher:
        for statement in range(8, 60, 13):
            life = crasher.run(
                "both", path, seed=statement, ops=3, url=world.url, at_statement=statement
            )
            cursor = _cursor(path)
            ((settled,),) = query(path, "SELECT settled_n FROM syncline_sessions")
            own = query(path, "SELECT count(*) FROM syncline_entries WHERE n IS NOT NULL")
            assert own == [(settled,)] and cursor >= settled
            assert life.killed_by in (0, signal.SIGKILL)
        later = crasher.later()
        with Replica(path, clock=lambda: now_us() + later) as replica:
            replica.sync_once(world.url)
            assert replica.session(SESSION).pending() == []
    world.sync("b")
    world.check()
