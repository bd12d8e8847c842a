"""C066: the audit ledger is one line, says what happened and only that, and verifies everywhere."""

from __future__ import annotations

import contextlib
import math
import os
import random
import sqlite3
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import closing
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgpack
import pytest
from websockets.exceptions import WebSocketException

from syncline.cli.verify import verify_file
from syncline.client import ReceiptState
from syncline.server import SqliteStore, backup, restore
from syncline.server._store import LedgerRow
from syncline.sync import (
    NO_HASH,
    DiskFull,
    Entries,
    Entry,
    FileInUse,
    Mark,
    Marked,
    Op,
    OpRefused,
    Push,
    encode_op,
    unpack,
)

from .hand import Hand, codes, make_op, put
from .support import ROOT, SESSION, World, command, eventually, now_us, query

UNKNOWN_KIND = b"\x91\x94\x09\xa1a\xa1b\x80"
"""The body ``[[9, "a", "b", {}]]``: refused for good, with 3001."""


def _ledger(path: Path) -> list[Any]:
    """The rows but for those of sign-ins, which every sync makes."""
    rows = [unpack(row) for (row,) in query(path, "SELECT row FROM ledger ORDER BY n")]
    return [row for row in rows if row[2] != "sign_in"]


def _kinds(path: Path) -> Counter[str]:
    return Counter(row[2] for row in _ledger(path))


def _assert_one_line(path: Path) -> None:
    """Each row has exactly one predecessor, and is the successor of it alone."""
    rows = query(path, "SELECT n, hash, row FROM ledger ORDER BY n")
    by_hash = {NO_HASH: 0} | {hash_: n for n, hash_, _ in rows}
    assert len(by_hash) == len(rows) + 1
    predecessors: Counter[int] = Counter()
    previous = NO_HASH
    for _, hash_, row in rows:
        assert sha256(b"le" + previous + row).digest() == hash_
        predecessors[by_hash[previous]] += 1
        previous = hash_
    assert predecessors == Counter(range(len(rows)))


class _Author:
    """A client that goes on where it was, however often its connection is cut.

    It writes to few records without having seen any, so that values lose, and what nobody takes.
    """

    def __init__(self, name: str, sessions: Iterable[str]) -> None:
        self.name = name
        self.rng = random.Random(name)
        self.next = dict.fromkeys(sessions, 1)
        self.waiting: dict[str, list[Op]] = {session: [] for session in self.next}
        self.refused: set[tuple[str, int]] = set()
        self.accepted: set[tuple[str, int]] = set()
        self.incarnation = self.marks = 0

    def _write(self, session: str) -> list[Op]:
        ops = []
        for _ in range(self.rng.randrange(1, 6)):
            n = self.next[session]
            at = now_us()
            if self.rng.random() < 0.2:
                salt = sha256(f"{self.name} {session} {n}".encode()).digest()[:16]
                ops.append(Op(n, salt, (at,), UNKNOWN_KIND))
            else:
                change = put(f"r{self.rng.randrange(4)}", by=self.name, n=n)
                ops.append(make_op(n, change, at=at, salt=f"{self.name} {session} {n}"))
            self.next[session] += 1
        return ops

    def live(self, url: str, is_over: Callable[[], bool]) -> None:
        """Push until it is over, or the connection is."""
        self.incarnation += 1
        with (
            contextlib.suppress(OSError, WebSocketException, TimeoutError),
            Hand(url, self.name, incarnation=self.incarnation) as hand,
        ):
            for session in self.next:
                opened = hand.open(session)
                if opened.stand == "bootstrap":  # The log is long by now: go on at its end.
                    hand.open(session, opened.head, opened.hash)
            while not is_over():
                session = self.rng.choice(list(self.next))
                self._push(hand, session)

    def _push(self, hand: Hand, session: str) -> None:
        waiting = self.waiting[session] = self.waiting[session] or self._write(session)
        self.marks += 1
        hand.send(Push(session=session, ops=tuple(map(encode_op, waiting))), Mark(id=self.marks))
        while not isinstance(frame := hand.receive(), Marked):
            # Of another session as well: it may still be catching up with that.
            if isinstance(frame, OpRefused) and frame.final:
                told = self.refused if frame.entry is None else self.accepted
                told.add((frame.session, frame.n))
            elif isinstance(frame, Entries):
                entries = map(Entry.decode, frame.entries)
                mine = {(frame.session, one.n) for one in entries if one.client == self.name}
                self.accepted |= mine
        answered = {n for where, n in self.refused | self.accepted if where == session}
        self.waiting[session] = [op for op in waiting if op.n not in answered]


def _at_once(authors: list[_Author], url: str, is_over: Callable[[], bool]) -> None:
    threads = [threading.Thread(target=one.live, args=(url, is_over)) for one in authors]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


def _authors(count: int, sessions: int) -> list[_Author]:
    return [
        _Author(f"c{i:02}", {f"s{i % sessions}", f"s{(i + 1) % sessions}"}) for i in range(count)
    ]


def _assert_told_of(world: World, authors: list[_Author]) -> None:
    """Every refusal that somebody heard of has its row, and no row speaks of what was accepted."""
    rows = [row for row in _ledger(world.data) if row[2] == "refusal"]
    told = {(row[3], *row[4]["dot"]) for row in rows}
    assert len(told) == len(rows)
    heard = {(session, one.name, n) for one in authors for session, n in one.refused}
    accepted = {(session, one.name, n) for one in authors for session, n in one.accepted}
    assert heard <= told and not accepted & told


def _parallel(world: World, seconds: float) -> None:
    process = world.start_process()
    authors = _authors(20, 10)
    end = time.monotonic() + seconds
    _at_once(authors, process.url, lambda: time.monotonic() > end)
    second = subprocess.run(
        command("serve", "--data", str(world.data), "--port", "0"),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert second.returncode == 1 and "is in use" in second.stderr
    with pytest.raises(FileInUse):
        SqliteStore(world.data)
    world.check()
    kinds = _kinds(world.data)
    assert kinds["lost"] > 20 and kinds["refusal"] > 20
    _assert_one_line(world.data)
    _assert_told_of(world, authors)


def test_C066_twenty_clients_in_ten_sessions_append_one_line(world: World) -> None:
    _parallel(world, 1.5)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_C066_twenty_clients_in_ten_sessions_append_one_line_for_a_minute(world: World) -> None:
    _parallel(world, 60.0)


def _answered(authors: list[_Author]) -> int:
    return sum(len(one.refused) + len(one.accepted) for one in authors)


def _kill_at(child: subprocess.Popen[str], authors: list[_Author], answers: int) -> bool:
    """Whether the server is dead; it dies while most of its clients wait for an answer."""
    if _answered(authors) >= answers:
        child.kill()
    return child.poll() is not None


def _kills(world: World, rounds: int) -> None:
    rng = random.Random(66)
    authors = _authors(6, 3)
    rows = 0
    for _ in range(rounds):
        process = world.start_process(log=world.folder / "server.log")
        goal = _answered(authors) + rng.randrange(1, 120)
        _at_once(authors, process.url, partial(_kill_at, process.child, authors, goal))
        process.kill()
        world.process = None
        assert verify_file(world.data).all_problems() == []
        _assert_one_line(world.data)
        _assert_told_of(world, authors)
        rows, before = len(_ledger(world.data)), rows
        assert rows >= before
    assert rows > rounds
    world.check()


def test_C066_a_server_killed_while_it_appends_has_a_whole_ledger(world: World) -> None:
    _kills(world, 4)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_C066_a_server_killed_a_hundred_times_while_it_appends_has_a_whole_ledger(
    world: World,
) -> None:
    _kills(world, 100)


def test_C066_a_change_that_is_rolled_back_behind_its_row_takes_the_row_along(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    from syncline.server import _sqlite_transaction

    insert = _sqlite_transaction.insert_ledger
    failed: list[int] = []

    def full(db: sqlite3.Connection, rows: Iterable[LedgerRow]) -> None:
        rows = list(rows)
        (before,) = db.execute("SELECT count(*) FROM ledger").fetchone()
        insert(db, rows)
        if [row.kind for row in rows] != ["lost"]:
            return
        (count,) = db.execute("SELECT count(*) FROM ledger").fetchone()
        failed.append(count - before)
        raise DiskFull("no room is left")

    world.start()
    a, b = world.session("a"), world.session("b")
    a.put("notes", "r", {"x": 1})
    loses = b.put("notes", "r", {"x": 2}, updated_at=1)
    world.sync("a")
    with world.replica("b").connect(world.url):
        with monkeypatch.context() as patched:
            patched.setattr(_sqlite_transaction, "insert_ledger", full)
            eventually(lambda: failed, 30, each=lambda: b.put("other", "r", {}))
            assert failed[0] == 1, "its row was there, inside the transaction"
            assert _kinds(world.data) == {}
            assert all(entry.client == "a" for entry in world.log())
        assert loses.wait(30) is ReceiptState.LOST
    world.settle()
    world.check()
    assert _kinds(world.data) == {"lost": 1}
    _assert_one_line(world.data)


def test_C066_restores_refusals_and_conflicts_stand_in_one_line(world: World) -> None:
    world.start()
    names = ("a", "b")
    for round_ in range(3):
        for name in names:
            world.session(name).put("notes", "r", {"by": name, "round": round_})
        world.settle()
        with Hand(world.url, f"hand{round_}") as hand:
            at = now_us()
            hand.open(hash_=None)
            assert codes(hand.push(Op(1, b"s" * 16, (at,), UNKNOWN_KIND))) == [3001]
        copy = world.folder / f"backup{round_}.db"
        backup(world.data, copy)
        world.session("a").put("notes", "later", {"round": round_})
        world.settle()
        world.stop()
        restore(world.data, copy)
        world.start()
        for _ in range(3):
            world.sync()
    world.check()
    kinds = _kinds(world.data)
    assert kinds["restore"] == 3 and kinds["refusal"] >= 1 and kinds["lost"] >= 3
    _assert_one_line(world.data)


# What encoders disagree about.

ODD_NAMES = (
    "a\u2028b",
    "e\u0301",
    "\u00e9",
    "\U0001f600",
    "\u202eabc",
    "İi̇",
    " ",
    "'\";--",
)
ODD_VALUES: tuple[Any, ...] = (
    0.1,
    1e22,
    -0.0,
    1.0,
    1,
    5e-324,
    2**53 + 1,
    2**63 - 1,
    -(2**63),
    None,
    "a\x00b",
    "\u2028",
    "e\u0301",
    b"\xff\x00",
    [1, 1.0, True],
    {"b": 1, "a": 2},
    {"a": 2, "b": 1},
)


def test_C066_odd_names_and_values_lose_and_the_ledger_verifies(world: World) -> None:
    world.start()
    a, b = world.session("a"), world.session("b")
    for i, name in enumerate(ODD_NAMES):
        a.put("notes", name, {name: "a", "same": 1})
        b.put("notes", name, {name: "b", "same": 1}, updated_at=i)
    for i, value in enumerate(ODD_VALUES):
        a.put("values", f"v{i}", {"x": value})
        b.put("values", f"v{i}", {"x": "another"}, updated_at=i)
        b.put("values", f"w{i}", {"x": value}, updated_at=1_700_000_000_123_457 + i)
        a.put("values", f"w{i}", {"x": "another"})
    world.settle()
    world.check()
    lost = [row[4] for row in _ledger(world.data) if row[2] == "lost"]
    assert {fact["field"] for fact in lost if fact["collection"] == "notes"} == set(ODD_NAMES)
    assert len(lost) == len(ODD_NAMES) + 2 * len(ODD_VALUES)
    losers = {fact["id"]: fact["loser"][0] for fact in lost if fact["id"].startswith("w")}
    assert losers == {f"w{i}": 1_700_000_000_123_457 + i for i in range(len(ODD_VALUES))}
    _assert_one_line(world.data)


def _body(fields: bytes) -> bytes:
    """A put of record ``notes/r``, without context, with fields encoded by hand."""
    return b"\x91\x95\x01\xa5notes\xa1r\x80" + fields


@pytest.mark.parametrize(
    "fields",
    [
        b"\x81\xa1x\xcb" + msgpack.packb(math.nan)[1:],
        b"\x81\xa1x\xcb" + msgpack.packb(math.inf)[1:],
        b"\x81\xa1x\xcf" + b"\xff" * 8,
        b"\x82\xa1x\x01\xa1x\x02",
        b"\x81\xa1x\xa3\xed\xa0\x80",
        b"\x81\xa1x" + b"\x91" * 1000 + b"\xc0",
        b"\x81\xa1x\xd6\xff\x00\x00\x00\x00",
        b"\x81\xc4\x01x\x01",
    ],
    ids=["NaN", "infinity", "64 bits", "a key twice", "surrogate", "deep", "timestamp", "key"],
)
def test_C066_what_encoders_disagree_about_is_refused_and_the_refusal_verifies(
    world: World, fields: bytes
) -> None:
    world.start()
    with Hand(world.url) as hand:
        hand.open()
        refused = codes(hand.push(Op(1, b"s" * 16, (now_us(),), _body(fields))))
        assert refused in ([3001], [3019])
        assert codes(hand.push(make_op(2, put("r", x=1), at=now_us()))) == []
    world.check()
    (row,) = _ledger(world.data)
    assert (row[2], row[3], row[4]["dot"], row[4]["code"]) == (
        "refusal",
        SESSION,
        ["hand", 1],
        refused[0],
    )


# Elsewhere.


@pytest.fixture
def busy(world: World) -> Path:
    """A server's file with conflicts, refusals and a restore."""
    world.start()
    for name in ("a", "b"):
        for i, odd in enumerate(ODD_NAMES):
            world.session(name).put("notes", odd, {odd: name, "at": i / 7})
    world.settle()
    with Hand(world.url) as hand:
        hand.open()
        assert codes(hand.push(Op(1, b"s" * 16, (now_us(),), UNKNOWN_KIND))) == [3001]
    world.close()
    world.stop()
    restore(world.data)
    return world.data


def test_C066_a_ledger_verifies_after_dump_and_reload_in_other_zones_and_locales(
    busy: Path, tmp_path: Path
) -> None:
    loaded = tmp_path / "loaded.db"
    with closing(sqlite3.connect(busy)) as db, closing(sqlite3.connect(loaded)) as copy:
        copy.executescript("\n".join(db.iterdump()))
        for pragma in ("application_id", "user_version"):
            (value,) = db.execute(f"PRAGMA {pragma}").fetchone()
            copy.execute(f"PRAGMA {pragma} = {value}")
        copy.commit()
    places = [
        {"TZ": "Pacific/Kiritimati", "LC_ALL": "tr_TR.UTF-8", "PYTHONHASHSEED": "1"},
        {"TZ": "America/St_Johns", "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONHASHSEED": "2"},
    ]
    runs = [
        subprocess.Popen(
            command("verify", str(file)),
            cwd=ROOT,
            env=os.environ | place,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        for place, file in zip(places, (busy, loaded), strict=True)
    ]
    for run in runs:
        _, errors = run.communicate(timeout=60)
        assert run.returncode == 0, errors.decode()
    assert _ledger(loaded) == _ledger(busy)
    _assert_one_line(loaded)
    store = SqliteStore(loaded)
    store.close()


@pytest.mark.parametrize(
    "row", [b"", b"\xc1", b"\x90", b"\x96\x05\x01\xa1x\xa1y\x80", 7, "text", b"\x91" * 2000]
)
def test_C066_a_malformed_row_is_named_first_and_nothing_is_raised(busy: Path, row: object) -> None:
    with closing(sqlite3.connect(busy)) as db, db:
        db.execute("DROP TRIGGER ledger_stands")
        db.execute("UPDATE ledger SET row = ? WHERE n = 5", (row,))
    problems = verify_file(busy).all_problems()
    named = [problem for problem in problems if "ledger" in problem and "row" in problem]
    assert "row 5" in named[0]


def test_C066_an_op_that_is_sent_again_has_one_row(world: World) -> None:
    """The same refusal is told as often as somebody asks, and stands once."""
    world.start()
    bad = Op(1, b"s" * 16, (now_us(),), UNKNOWN_KIND)
    for incarnation in (1, 2, 3):
        with Hand(world.url, incarnation=incarnation) as hand:
            hand.open()
            assert codes(hand.push(bad)) == [3001]
    world.check()
    assert _kinds(world.data) == {"refusal": 1}
