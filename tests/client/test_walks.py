"""Long random walks: restored servers, copied replicas, refusals, wrong clocks, all at once.

Each walk comes from a seed. What must hold at its end is what must hold after any of them: equal
bytes everywhere, nobody's write lost without a word, nothing in the log twice.
"""

from __future__ import annotations

import copy
import os
import random
from pathlib import Path

import pytest
from tests.client.test_convergence import RANK, SESSION
from tests.client.wire import Line, Wire, restored, state_of

from syncline.client import Receipt, ReceiptState, Replica
from syncline.server import MemoryStore

LARGE = "x" * 200
STATE_BYTES_MAX = 700
SEEDS = range(int(os.environ.get("WALKS", "6")))


class Walk:
    def __init__(self, folder: Path, seed: int, *, restores: bool, copies: bool) -> None:
        self.random = random.Random(seed)
        self.restores, self.copies = restores, copies
        self.wire = Wire(
            folder=folder, bootstrap_entries_min=self.random.choice([1000, 1000, 5, 0])
        )
        self.replicas: list[Replica] = []
        self.lines: dict[Replica, Line] = {}
        self.receipts: list[tuple[Receipt, ReceiptState]] = []
        self.written: set[str] = set()
        self.backups: list[MemoryStore] = [copy.deepcopy(self.wire.store)]
        self.epoch = 1
        for name in ("ann", "bob", "cyd"):
            skew = self.random.choice([0, 0, -50, 3, 200_000_000, 10**15])
            replica = self.wire.open(name, skew=skew)
            replica.session(SESSION)
            self.replicas.append(replica)

    def step(self) -> None:
        rnd = self.random
        replica = rnd.choice(self.replicas)
        line = self.lines.get(replica)
        roll = rnd.random()
        if roll < 0.4:
            self._write(replica)
        elif roll < 0.55:
            if line is None or not line.up:
                self.lines[replica] = self.wire.connect(replica)
        elif roll < 0.60 and line is not None:
            line.cut()
        elif roll < 0.63 and line is not None and line.up:
            line.deliver()
        elif roll < 0.65:
            self.wire.advance(rnd.choice([1, 1000, 40_000_000]))
        elif roll < 0.67 and rnd.random() < 0.5:
            self.backups.append(copy.deepcopy(self.wire.store))
        elif roll < 0.68 and self.restores:
            self.epoch += 1
            self.wire.serve(restored(rnd.choice(self.backups), self.epoch))
            self.backups.append(copy.deepcopy(self.wire.store))
        elif roll < 0.685 and self.copies and len(self.replicas) < 6:
            self._copy(replica)
        elif line is not None and line.up:
            queue, move = rnd.choice(
                [(line.to_server, line.send_one), (line.to_client, line.receive_one)]
            )
            for _ in range(min(rnd.randint(1, 5), len(queue))):
                if queue:
                    move()

    def _write(self, replica: Replica) -> None:
        rnd = self.random
        session = replica.session(SESSION)
        id_ = rnd.choice("rq")
        fields = {name: rnd.choice([0, 1, LARGE + name]) for name in rnd.sample("abcde", 2)}
        what = rnd.randrange(8)
        at = rnd.choice([None, None, None, self.wire.now - 9, self.wire.now + 30_000_000])
        if what < 2:
            receipt = session.put("n", id_, fields, updated_at=at)
        elif what < 5:
            if session.get("n", id_) is None:
                return
            receipt = session.patch("n", id_, fields, updated_at=at)
        elif what == 5:
            receipt = session.delete("n", id_)
        elif what == 6:
            with session.transaction() as receipt:
                session.put("n", "r", fields)
                session.put("n", "q", fields)
                session.append("both", {"i": len(self.receipts)})
        else:
            conflicts = session.conflicts()
            if not conflicts:
                return
            choice = rnd.choice(["local", "remote", fields])
            receipt = session.resolve_conflict(conflicts[-1].id, choice)  # type: ignore[arg-type]
        self.receipts.append((receipt, receipt.state))
        self.written.add(receipt.id)

    def _copy(self, replica: Replica) -> None:
        made = self.wire.copy(replica, f"copy{len(self.replicas)}")
        made.session(SESSION)
        self.replicas.append(made)

    def end(self) -> None:
        for line in self.lines.values():
            line.cut()
        for _ in range(3):
            for replica in self.replicas:
                self.wire.sync(replica)

    def look(self) -> None:
        if self.restores:
            return
        for at, (receipt, before) in enumerate(self.receipts):
            state = receipt.state
            assert RANK[state] >= RANK[before], (before, state)
            assert RANK[before] < 2 or state is before
            self.receipts[at] = (receipt, state)

    def check(self) -> None:
        state = self.wire.state(SESSION)
        for replica in self.replicas:
            assert state_of(replica, SESSION) == state
        log = self.wire.log(SESSION)
        outcomes = {entry.receipt_id: entry.outcome for entry in log}
        assert len(outcomes) == len(log), "an op stands in the log twice"
        assert outcomes.keys() <= self.written
        for receipt, _ in self.receipts:
            if receipt.state is ReceiptState.REFUSED:
                # What one copy was refused, another may get accepted later.
                assert receipt.id not in outcomes or self.copies
            else:
                assert receipt.state is ReceiptState.of(outcomes[receipt.id])
        events = self.replicas[0].session(SESSION).events()
        for replica in self.replicas[1:]:
            assert replica.session(SESSION).events() == events

    def run(self, steps: int) -> None:
        try:
            for _ in range(steps):
                self.step()
                self.look()
            self.end()
            self.look()
            self.check()
        finally:
            self.wire.close()


@pytest.fixture(autouse=True)
def _small_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some ops are refused for good, since records are too large soon; all takes many frames."""
    monkeypatch.setattr("syncline.server._answers.PAGE_ITEMS_MAX", 2)
    monkeypatch.setattr("syncline.server._hub.PAGE_ITEMS_MAX", 3)
    monkeypatch.setattr("syncline.client._engine.PUSH_OPS_MAX", 3)
    monkeypatch.setattr("syncline.client._engine.IN_FLIGHT_OPS_MAX", 5)
    monkeypatch.setattr("syncline.client._engine.POINTS", 3)
    monkeypatch.setattr("syncline.server._settling.STATE_BYTES_MAX", STATE_BYTES_MAX)


@pytest.mark.parametrize("seed", SEEDS)
def test_any_walk_of_writes_cuts_refusals_and_clocks_ends_in_one_state(
    folder: Path, seed: int
) -> None:
    Walk(folder, seed, restores=False, copies=False).run(150)


@pytest.mark.parametrize("seed", SEEDS)
def test_any_walk_with_copied_replicas_ends_in_one_state_with_each_op_once(
    folder: Path, seed: int
) -> None:
    Walk(folder, seed, restores=False, copies=True).run(150)


@pytest.mark.parametrize("seed", SEEDS)
def test_any_walk_with_restored_servers_gives_back_every_op(folder: Path, seed: int) -> None:
    Walk(folder, seed, restores=True, copies=False).run(150)


@pytest.mark.parametrize("seed", SEEDS)
def test_any_walk_with_restored_servers_and_copied_replicas_ends_in_one_state(
    folder: Path, seed: int
) -> None:
    Walk(folder, seed, restores=True, copies=True).run(150)
