"""The app on a device: random edits of few records, so that they collide, each with a value of its
own, so that a checker can tell where it went.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import Any

from syncline.client._core import Core
from syncline.client._session import Session
from syncline.client._writing import OpWriter
from syncline.sync import (
    HEADER_COLLECTION,
    HEADER_ID,
    Delete,
    DiskFull,
    Patch,
    Put,
    Refused,
)

COLLECTIONS = ("notes", "tasks")
RECORDS = 5
GHOSTS = "ghosts"
"""A collection for what no honest app would write."""
COARSE_US = 20_000_000
ACTIONS = {
    "put": 6,
    "patch": 8,
    "delete": 3,
    "event": 2,
    "transaction": 4,
    "batch": 1,
    "resolve": 2,
    "ghost": 1,
    "stale": 1,
    "label": 1,
}
"""What a person does, and how often."""
FIELDS = ("title", "body", "done", "rank")


@dataclass(frozen=True, slots=True)
class Written:
    """A write that returned: the app was told that it is durable."""

    device: str
    session: str
    receipt_id: str


@dataclass(slots=True)
class App:
    """Writes to the sessions of one device."""

    device: str
    sessions: tuple[str, ...]
    rng: random.Random
    written: list[Written] = field(default_factory=list)
    failed: set[str] = field(default_factory=set)
    """The values of writes that failed: nobody may ever see them."""
    touched: set[str] = field(default_factory=set)
    count: int = 0

    def act(self, core: Core) -> str:
        """One thing that a person does, in words. Raises what the product raises."""
        session = Session(core, self.rng.choice(self.sessions))
        self.touched.add(session.id)
        core.ensure_session(session.id)
        kind = self.rng.choices(tuple(ACTIONS), weights=tuple(ACTIONS.values()))[0]
        before = self.count
        try:
            receipts = getattr(self, f"_{kind}")(core, session)
        except Refused as refused:
            return f"{kind}: {refused.reason}"  # The app was told; nothing was written.
        except DiskFull:
            self.failed |= {self._value(count) for count in range(before + 1, self.count + 1)}
            raise
        for receipt in receipts:
            self.written.append(Written(self.device, session.id, receipt.id))
        return f"{kind} in {session.id}: {', '.join(r.id[:8] for r in receipts) or 'nothing'}"

    def _key(self) -> tuple[str, str]:
        return self.rng.choice(COLLECTIONS), f"r{self.rng.randrange(RECORDS)}"

    def _value(self, count: int) -> str:
        return f"{self.device}-{count}"

    def _next_value(self) -> str:
        self.count += 1
        return self._value(self.count)

    def _fields(self) -> dict[str, Any]:
        names = self.rng.sample(FIELDS, self.rng.randint(1, 3))
        return {name: self._next_value() for name in names}

    def _label(self, core: Core, session: Session) -> list[Any]:
        return [session.patch(HEADER_COLLECTION, HEADER_ID, {"label": self._next_value()})]

    def _when(self, core: Core) -> int | None:
        """Now and then a time as an import has it: so coarse that devices have the same."""
        return core.now // COARSE_US * COARSE_US if self.rng.random() < 0.3 else None

    def _put(self, core: Core, session: Session) -> list[Any]:
        return [session.put(*self._key(), self._fields(), updated_at=self._when(core))]

    def _patch(self, core: Core, session: Session) -> list[Any]:
        return [session.patch(*self._key(), self._fields(), updated_at=self._when(core))]

    def _delete(self, core: Core, session: Session) -> list[Any]:
        return [session.delete(*self._key())]

    def _event(self, core: Core, session: Session) -> list[Any]:
        return [session.append("said", {"text": self._next_value()})]

    def _transaction(self, core: Core, session: Session) -> list[Any]:
        with session.transaction() as receipt:
            for _ in range(self.rng.randint(2, 4)):
                session.put(*self._key(), self._fields())
            if self.rng.random() < 0.3:
                session.append("said", {"text": "together"})
        return [receipt]

    def _batch(self, core: Core, session: Session) -> list[Any]:
        with core.batch():
            return [session.put(*self._key(), self._fields()) for _ in range(4)]

    def _resolve(self, core: Core, session: Session) -> list[Any]:
        conflicts = session.conflicts()
        if not conflicts:
            return []
        conflict = self.rng.choice(conflicts)
        choice: Any = self.rng.choice(("local", "remote", self._fields()))
        return [session.resolve_conflict(conflict.id, choice)]

    def _ghost(self, core: Core, session: Session) -> list[Any]:
        """An app with a bug that gets past the local checks: the server has to refuse its op."""
        with core.op(session.id) as op:
            change = Patch(GHOSTS, f"g{self.count}", {}, self._fields())
            for conflict in session.conflicts()[:1] if self.rng.random() < 0.5 else ():
                op.resolve(conflict.id, "remote")
            _force(op, change, 0)
            receipt = session._receipt(op)
        return [receipt]

    def _stale(self, core: Core, session: Session) -> list[Any]:
        """Another such app: it writes below what it has seen, and has to stamp that again."""
        with core.batch():
            receipts = [session.put(GHOSTS, self.device, self._fields())]
            with core.op(session.id) as op:
                context = op._open(GHOSTS, self.device)[1]
                _force(op, Patch(GHOSTS, self.device, context, self._fields()), -5)
                receipts.append(session._receipt(op))
        return receipts


def _force(op: OpWriter, change: Put | Patch | Delete, by_us: int) -> None:
    """Write without the local checks, with a stamp that is moved by so much."""
    row, _ = op._open(change.collection, change.id)
    op._keep(row, change, None)
    key = (change.collection, change.id)
    op._drafts[key] = replace(op._drafts[key], at=op._drafts[key].at + by_us)
