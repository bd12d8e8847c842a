"""A history: what several devices wrote and when each of them synced, as data and as JSON lines.

The lines are those that ``syncline replay`` plays. The first is a header with counts; then, in the
order of play, a write or a sync each:

    {"do": "write", "device": "d3", "at": 1433423779000, "changes": [["put", "n1", {fields}]]}
    {"do": "sync", "device": "d3"}

``at`` is the device's clock in milliseconds since the Unix epoch. ``stamps`` gives the changes'
times in whole microseconds, one for each, where ``at`` is not exact. A change is one of

    ["put", id, {fields}]        ["patch", id, {fields}]      ["delete", id]
    ["event", type, {payload}]   ["resolve", conflict id]

The first three take a collection as one more item; without it, it is ``files``. Bytes are
``{"$bytes": hex}``. The last line is followed by one more sync of every device.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from syncline.sync import Change, Delete, Event, Patch, Put, Resolve, Value

COLLECTION = "files"


@dataclass(frozen=True, slots=True)
class Write:
    """A device writes, atomically. The contexts of its changes are empty: the replica knows them.

    ``stamps`` has the time of each change in microseconds since the Unix epoch.
    """

    device: str
    stamps: tuple[int, ...]
    changes: tuple[Change, ...]


@dataclass(frozen=True, slots=True)
class Sync:
    """A device comes online, sends all it has, takes all there is, and goes offline again."""

    device: str


Step = Write | Sync


@dataclass(frozen=True, slots=True)
class History:
    """What was done, in the order of play."""

    steps: tuple[Step, ...]

    @property
    def devices(self) -> tuple[str, ...]:
        """In the order in which they first do something."""
        return tuple(dict.fromkeys(step.device for step in self.steps))

    @property
    def writes(self) -> list[Write]:
        return [step for step in self.steps if isinstance(step, Write)]

    def lines(self) -> Iterator[str]:
        """The header and the steps, each as one line of JSON."""
        rows = [[_row(change) for change in write.changes] for write in self.writes]
        keys = {key for row in rows for change in row if (key := _key(change)) is not None}
        header = {
            "history": 1,
            "devices": len(self.devices),
            "records": len(keys),
            "writes": len(rows),
            "changes": sum(map(len, rows)),
            "syncs": len(self.steps) - len(rows),
        }
        yield _line(header)
        changes = iter(rows)
        for step in self.steps:
            match step:
                case Sync(device):
                    yield _line({"do": "sync", "device": device})
                case Write():
                    yield _line(_write(step, next(changes)))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the lines to a file."""
        with open(path, "w", encoding="utf-8", newline="\n") as file:
            file.writelines(f"{line}\n" for line in self.lines())


def _write(step: Write, changes: list[list[Any]]) -> dict[str, Any]:
    at = min(step.stamps) // 1000
    line = {"do": "write", "device": step.device, "at": at, "changes": changes}
    if any(stamp != at * 1000 for stamp in step.stamps):
        line["stamps"] = list(step.stamps)
    return line


def _row(change: Change) -> list[Any]:
    match change:
        case Put() | Patch():
            kind = "put" if isinstance(change, Put) else "patch"
            row = [kind, change.id, change.fields, change.collection]
        case Delete():
            row = ["delete", change.id, change.collection]
        case Event():
            return ["event", change.type, change.payload]
        case Resolve():
            return ["resolve", change.conflict_id]
    return row[:-1] if row[-1] == COLLECTION else row


def _key(row: list[Any]) -> tuple[str, str] | None:
    """The collection and id that a change is about."""
    if row[0] in ("event", "resolve"):
        return None
    named = len(row) > (2 if row[0] == "delete" else 3)
    return (row[-1] if named else COLLECTION), row[1]


def _line(data: Any) -> str:
    return json.dumps(
        data, ensure_ascii=False, separators=(",", ":"), default=_bytes, allow_nan=False
    )


def _bytes(value: Value) -> dict[str, str]:
    assert isinstance(value, bytes), "values are checked when written"
    return {"$bytes": value.hex()}
