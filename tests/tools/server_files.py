"""Server files with a life behind them: devices that write offline, sync, collide and recover.

Ops go through the real coordinator into a real store. What the devices know of records is kept
here by hand, so that these files need no client.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from syncline.server import Author, Lane, PushedOps, RecordKey, SqliteStore, SyncCoordinator
from syncline.sync import (
    Change,
    Delete,
    Dot,
    Event,
    Op,
    OpRefused,
    Patch,
    Put,
    Record,
    RecordChange,
    Resolve,
    Stamp,
    VoidOp,
    encode_body,
    fold,
)

NOW = 1_700_000_000_000_000
VALUES: Sequence[Any] = (1, True, 1.5, "x", "ä", None, b"\x00y", [1, {"z": 1, "a": 2}], {"b": 1})
RECORDS = [RecordKey("todo", f"r{number}") for number in range(5)] + [RecordKey("note", "one")]


class Device:
    """A client by hand: its view of the records and its outbox."""

    def __init__(self, client: str) -> None:
        self.client = client
        self.n = 0
        self.view: dict[RecordKey, Record] = {}
        self.outbox: list[Op | VoidOp] = []

    def write(self, salt: bytes, at: int, *changes: Change, former: Dot | None = None) -> Op:
        """Put an op into the outbox; each stamp is above what its record shows."""
        self.n += 1
        stamps = []
        for change in changes:
            if isinstance(change, RecordChange):
                key = RecordKey(change.collection, change.id)
                known = self.view.get(key)
                after = at if known is None else max(at, known.life.updated_at + 1)
                stamp = Stamp(after, self.client, self.n)
                if known is not None or not isinstance(change, Patch):
                    self.view[key] = fold(known, change, stamp, None)
                stamps.append(after)
            else:
                stamps.append(at)
        op = Op(self.n, salt, tuple(stamps), encode_body(changes), former)
        self.outbox.append(op)
        return op

    def context(self, key: RecordKey) -> dict[str, int]:
        known = self.view.get(key)
        return {} if known is None else dict(known.vector)


class World:
    """A server file in the making."""

    def __init__(self, path: Path, seed: int = 0) -> None:
        self.store = SqliteStore(path)
        self.random = random.Random(seed)
        self.now = NOW
        self._coordinator = SyncCoordinator(self.store)

    def sync(self, device: Device, session: str) -> list[OpRefused]:
        """Push the outbox, then see all that there is."""
        push = PushedOps(session, Author(device.client, "somebody"), device.outbox, Lane())
        answers = self._coordinator.commit_group([push], self.now).answers[0]
        assert all(answer.final for answer in answers), answers
        device.outbox = []
        with self.store.transaction() as tx:
            states = tx.records(session, RECORDS)
        device.view = {key: Record.decode(state) for key, state in states.items()}
        return answers

    def live(self, devices: Sequence[Device], session: str, steps: int) -> None:
        """Random writes and syncs; every device syncs at the end."""
        for _ in range(steps):
            self.now += self.random.randrange(1, 1000)
            device = self.random.choice(devices)
            if self.random.random() < 0.25:
                self.sync(device, session)
                continue
            changes: list[Change] = [self._edit(device)]
            if self.random.random() < 0.15:
                changes.append(Event("said", {"text": "hello", "step": self.now}))
            if self.random.random() < 0.1:
                known = self._open_conflicts(session)
                changes += [Resolve(self.random.choice(known))] if known else []
            at = self.now - self.random.randrange(3000)
            device.write(self.random.randbytes(16), at, *changes)
        for device in devices:
            self.sync(device, session)

    def _edit(self, device: Device) -> Change:
        key = self.random.choice(RECORDS)
        context, known = device.context(key), device.view.get(key)
        names = self.random.sample("abc", self.random.randrange(3))
        fields = {name: self.random.choice(VALUES) for name in names}
        chance = self.random.random()
        if chance < 0.03:
            return Patch("todo", "never-put", {}, {"a": 1})
        if known is None or chance < 0.25:
            return Put(*key, context, fields)
        if chance < 0.4:
            return Delete(*key, context)
        return Patch(*key, context, fields)

    def _open_conflicts(self, session: str) -> list[str]:
        if self.store.head(session) is None:
            return []
        part = self.store.snapshot(session, b"", "nobody", 1, 1 << 20, 1 << 10)
        return [conflict.id for conflict in part.conflicts]


def build_server(path: Path, seed: int = 0, steps: int = 60) -> None:
    """A closed server file: two sessions, three devices, conflicts, resolutions and refusals."""
    world = World(path, seed)
    devices = [Device(name) for name in ("ann", "bob", "cy")]
    header = Patch("$session", "header", {}, {"label": "Groceries"})
    devices[0].write(world.random.randbytes(16), world.now, header)
    world.live(devices, "first", steps)
    others = [Device(name) for name in ("ann", "bob")]
    others[0].write(world.random.randbytes(16), world.now, Patch("todo", "missing", {}, {"a": 1}))
    world.live(others, "second", steps // 3)
    world.store.close()
