"""The app on a device: random edits of few records, so that they collide, each with a value of its
own, so that a checker can tell where it went.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from syncline.client._core import Core
from syncline.client._session import Session
from syncline.client._writing import OpWriter
from syncline.sync import Delete, Patch, Put, Refused

COLLECTIONS = ("notes", "tasks")
RECORDS = 5
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
    count: int = 0

    def act(self, core: Core) -> str:
        """One thing that a person does, in words. Raises what the product raises."""
        session = Session(core, self.rng.choice(self.sessions))
        core.ensure_session(session.id)
        kind = self.rng.choices(
            ("put", "patch", "delete", "event", "transaction", "batch", "resolve", "ghost"),
            weights=(6, 8, 2, 3, 4, 1, 2, 1),
        )[0]
        try:
            receipts = getattr(self, f"_{kind}")(core, session)
        except Refused as refused:
            return f"{kind}: {refused.reason}"  # The app was told; nothing was written.
        for receipt in receipts:
            self.written.append(Written(self.device, session.id, receipt.id))
        return f"{kind} in {session.id}: {', '.join(r.id[:8] for r in receipts) or 'nothing'}"

    def _key(self) -> tuple[str, str]:
        return self.rng.choice(COLLECTIONS), f"r{self.rng.randrange(RECORDS)}"

    def _fields(self) -> dict[str, Any]:
        names = self.rng.sample(FIELDS, self.rng.randint(1, 3))
        values: dict[str, Any] = {}
        for name in names:
            self.count += 1
            values[name] = f"{self.device}-{self.count}"
        return values

    def _put(self, core: Core, session: Session) -> list[Any]:
        return [session.put(*self._key(), self._fields())]

    def _patch(self, core: Core, session: Session) -> list[Any]:
        return [session.patch(*self._key(), self._fields())]

    def _delete(self, core: Core, session: Session) -> list[Any]:
        return [session.delete(*self._key())]

    def _event(self, core: Core, session: Session) -> list[Any]:
        self.count += 1
        return [session.append("said", {"text": f"{self.device}-{self.count}"})]

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
            change = Patch("ghosts", f"g{self.count}", {}, self._fields())
            _force(op, change)
            receipt = session._receipt(op)
        return [receipt]


def _force(op: OpWriter, change: Put | Patch | Delete) -> None:
    row, _ = op._open(change.collection, change.id)
    op._keep(row, change, None)
