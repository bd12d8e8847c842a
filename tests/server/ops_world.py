"""A coordinator over a store, and what it made of the ops pushed into it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from tests.server.hand_client import NOW

from syncline.server import (
    Author,
    GroupResult,
    Lane,
    LogRow,
    MemoryStore,
    PushedOps,
    RecordKey,
    RefusalRow,
    SyncCoordinator,
    Transaction,
)
from syncline.sync import (
    DiskFull,
    Dot,
    Entry,
    Op,
    OpRefused,
    Record,
    VoidOp,
    walk_chain,
)

SECOND = 1_000_000


class World:
    """A coordinator over a store whose ledger can be looked at."""

    def __init__(self, store: MemoryStore | None = None) -> None:
        self.store = store if store is not None else MemoryStore()
        self.coordinator = SyncCoordinator(self.store)
        self.lanes: dict[tuple[str, str], Lane] = {}
        self.last: GroupResult | None = None

    def pushed(self, client: str, *ops: Op | VoidOp, session: str = "s1") -> PushedOps:
        lane = self.lanes.setdefault((client, session), Lane())
        return PushedOps(session, Author(client, f"{client}'s name"), ops, lane)

    def group(self, *pushes: PushedOps, now: int = NOW) -> list[list[OpRefused]]:
        self.last = self.coordinator.commit_group(pushes, now)
        return self.last.answers

    def push(self, client: str, *ops: Op | VoidOp, now: int = NOW) -> list[OpRefused]:
        return self.group(self.pushed(client, *ops), now=now)[0]

    def entries(self, session: str = "s1") -> list[Entry]:
        rows = self.store.entries(session, 0, 1 << 30, 1 << 30)
        entries = [Entry.decode(row.entry) for row in rows]
        head = self.store.head(session)
        assert head is not None
        walked = list(walk_chain(entries, head.genesis))
        assert [hash_ for _, hash_ in walked] == [row.hash for row in rows]
        assert not walked or walked[-1][1] == head.hash
        return entries

    def dots(self) -> list[tuple[str, int]]:
        return [(entry.client, entry.n) for entry in self.entries()]

    def record(self, id_: str = "r1", collection: str = "notes") -> Record:
        key = RecordKey(collection, id_)
        with self.store.transaction() as tx:
            return Record.decode(tx.records("s1", [key])[key])

    def refusal(self, client: str, n: int) -> RefusalRow | None:
        with self.store.transaction() as tx:
            return tx.refusal_at("s1", Dot(client, n))


def code_of(answers: Sequence[OpRefused]) -> list[tuple[int, int, bool]]:
    return [(answer.n, answer.code, answer.final) for answer in answers]


class FailingStore(MemoryStore):
    """A store whose commit fails when ``fails`` says so of the rows appended; or after it."""

    def __init__(self) -> None:
        super().__init__()
        self.fails: Callable[[list[LogRow]], bool] = lambda rows: False
        self.after_commit = False
        self.transactions = 0

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        self.transactions += 1
        rows: list[LogRow] = []
        with super().transaction() as tx:
            append = tx.append

            def watched(session: str, appended: Sequence[LogRow]) -> None:
                rows.extend(appended)
                append(session, appended)

            tx.append = watched  # type: ignore[method-assign,assignment]
            yield tx
            if self.fails(rows) and not self.after_commit:
                raise DiskFull("no space left")
        if self.fails(rows):
            raise DiskFull("nobody knows")
