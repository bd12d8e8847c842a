"""Property: whatever three replicas write, and wherever their connections break, they converge."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.client.wire import IN_MEMORY, Line, Wire, state_of

from syncline.client import Receipt, ReceiptState

SESSION = "s"
NAMES = ("ann", "bob", "cyd")
RANK = {
    ReceiptState.QUEUED: 0,
    ReceiptState.SENT: 1,
    ReceiptState.APPLIED: 2,
    ReceiptState.MERGED: 2,
    ReceiptState.WON: 2,
    ReceiptState.LOST: 2,
    ReceiptState.REFUSED: 2,
}

WHO = st.integers(0, 2)
ID = st.sampled_from(["r", "q"])
FIELDS = st.dictionaries(st.sampled_from(["a", "b"]), st.integers(0, 2), max_size=2)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), WHO, ID, FIELDS),
        st.tuples(st.just("patch"), WHO, ID, FIELDS),
        st.tuples(st.just("delete"), WHO, ID, st.none()),
        st.tuples(st.just("append"), WHO, ID, FIELDS),
        st.tuples(st.just("resolve"), WHO, st.sampled_from(["local", "remote"]), st.none()),
        st.tuples(st.just("both"), WHO, FIELDS, FIELDS),
        st.tuples(st.just("connect"), WHO, st.none(), st.none()),
        st.tuples(st.just("up"), WHO, st.integers(1, 6), st.none()),
        st.tuples(st.just("down"), WHO, st.integers(1, 6), st.none()),
        st.tuples(st.just("all"), WHO, st.none(), st.none()),
        st.tuples(st.just("cut"), WHO, st.none(), st.none()),
        st.tuples(st.just("later"), WHO, st.integers(0, 3), st.none()),
    ),
    max_size=40,
)


class History:
    """Three replicas on one wire, and what they were told of each write."""

    def __init__(self, folder: Path, skews: tuple[int, int, int], bootstrap: int) -> None:
        self.wire = Wire(folder=folder, bootstrap_entries_min=bootstrap)
        self.replicas = [
            self.wire.open(name, skew=skew) for name, skew in zip(NAMES, skews, strict=True)
        ]
        self.lines: list[Line | None] = [None, None, None]
        self.receipts: list[tuple[Receipt, ReceiptState]] = []
        for replica in self.replicas:
            replica.session(SESSION)

    def run(self, step: tuple[str, int, Any, Any]) -> None:
        kind, who, what, fields = step
        session, line = self.replicas[who].session(SESSION), self.lines[who]
        match kind:
            case "put":
                self._keep(session.put("n", what, fields))
            case "patch":
                if session.get("n", what) is not None:
                    self._keep(session.patch("n", what, fields))
            case "delete":
                self._keep(session.delete("n", what))
            case "append":
                self._keep(session.append("e", fields))
            case "both":
                with session.transaction() as receipt:
                    session.put("n", "r", what)
                    session.put("n", "q", fields)
                    session.append("both", {})
                self._keep(receipt)
            case "resolve":
                for conflict in session.conflicts()[:1]:
                    self._keep(session.resolve_conflict(conflict.id, what))
            case "connect":
                if line is None or not line.up:
                    self.lines[who] = self.wire.connect(self.replicas[who])
            case "later":
                self.wire.now += what
            case _ if line is None or not line.up:
                return
            case "up":
                for _ in range(min(what, len(line.to_server))):
                    line.send_one()
            case "down":
                for _ in range(min(what, len(line.to_client))):
                    line.receive_one()
            case "all":
                line.deliver()
            case "cut":
                line.cut()

    def _keep(self, receipt: Receipt) -> None:
        self.receipts.append((receipt, receipt.state))

    def look(self, *, healed: bool = False) -> None:
        """No receipt has gone back."""
        for at, (receipt, before) in enumerate(self.receipts):
            state = receipt.state
            assert healed or RANK[state] >= RANK[before], (before, state)
            if RANK[before] == 2 and not healed:
                assert state is before
            self.receipts[at] = (receipt, state)

    def end(self) -> None:
        """Everybody syncs until nothing is new; then all must hold the same."""
        for line in self.lines:
            if line is not None:
                line.cut()
        for _ in range(2):
            for replica in self.replicas:
                self.wire.sync(replica)
        # Somebody may have been refused or renumbered in the second round: once more.
        for replica in self.replicas:
            self.wire.sync(replica)

    def check(self) -> None:
        state = self.wire.state(SESSION)
        for replica in self.replicas:
            assert state_of(replica, SESSION) == state
        log = self.wire.log(SESSION)
        assert [entry.seq for entry in log] == list(range(1, len(log) + 1))
        outcomes = {entry.receipt_id: entry.outcome for entry in log}
        assert len(outcomes) == len(log), "an op stands in the log twice"
        for receipt, _ in self.receipts:
            if receipt.state is ReceiptState.REFUSED:
                assert receipt.id not in outcomes
            else:
                assert receipt.state is ReceiptState.of(outcomes.pop(receipt.id))
        assert not outcomes, "the log has what nobody wrote"
        seen = [replica.session(SESSION).events() for replica in self.replicas]
        assert seen[0] == seen[1] == seen[2]


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    STEPS,
    st.tuples(*[st.sampled_from([0, -5, 7, 90_000_000])] * 3),
    st.sampled_from([1000, 0]),
)
def test_replicas_converge_byte_for_byte_wherever_connections_break(
    steps: list[tuple[str, int, Any, Any]], skews: tuple[int, int, int], bootstrap: int
) -> None:
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as folder:
        history = History(Path(folder), skews, bootstrap)
        try:
            for step in steps:
                history.run(step)
                history.look()
            history.end()
            history.look()
            history.check()
        finally:
            history.wire.close()
