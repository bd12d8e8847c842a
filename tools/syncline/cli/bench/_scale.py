"""How much of everything a benchmark uses, and the records that it writes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

STANDARD = 10_000
"""The number of records at which every workload is what it is meant to be."""
COLLECTION = "notes"
TITLE_CHARS = 40
BODY_CHARS = 80
_EPOCH_MS = 1_760_000_000_000


@dataclass(frozen=True)
class Scale:
    """Sizes, all from one number. Beyond the default only what is about volume grows further."""

    records: int
    """W1, and the smaller first sync."""
    records_many: int
    """The larger first sync."""
    live_writes: int
    burst: int
    subscribers: int
    meeting: int
    """Records that three clients edit."""
    entries: tuple[int, ...]
    """Lengths of the log at which W6 measures what things cost."""
    added: int
    """Ops written on top of such a log."""
    connections: int
    missed: int
    """Ops that a reconnecting crowd has to catch up with."""
    starts: int
    """How often the server is started to see how long that takes."""
    local_singles: int

    @staticmethod
    def of(records: int, *, full: bool = False) -> Scale:
        part = min(records, STANDARD)
        return Scale(
            records=records,
            records_many=10 * records,
            live_writes=part // 20,
            burst=max(4, part // 50),
            subscribers=max(3, part // 200),
            meeting=part // 10,
            entries=(records // 10, 10 * records, *((100 * records,) if full else ())),
            added=part // 10,
            connections=max(40, part // 10),
            missed=max(4, part // 100),
            starts=3 if records >= STANDARD // 10 else 1,
            local_singles=part // 10,
        )


def fields_of(number: int, edition: int = 0) -> dict[str, Any]:
    """A record of six fields, about 200 bytes as JSON; each edition has another text."""
    title = f"{number:08} {edition:04} "
    return {
        "id": f"record-{number:08}",
        "title": title + "t" * (TITLE_CHARS - len(title)),
        "body": f"{edition:04} " + "b" * (BODY_CHARS - 5),
        "done": number % 2 == 0,
        "priority": number % 5,
        "updatedAt": _EPOCH_MS + number,
    }


def payload_bytes(first: int, count: int) -> int:
    """The JSON of that many records' fields, as an app would send it."""
    return sum(
        len(json.dumps(fields_of(number), separators=(",", ":")))
        for number in range(first, first + count)
    )
