"""What the engine remembers of one connection: how each session stands on it, and what it did."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from syncline.sync import Opened, OpRefused


class Stage(Enum):
    OPENING = "opening"
    COMPARING = "comparing"
    BOOTING = "booting"
    LIVE = "live"
    PAUSED = "paused"


@dataclass(slots=True)
class Track:
    """One session on this connection.

    ``sent_through`` is the last own number sent on it; ``in_flight`` the sizes of those unanswered.
    ``not_before`` holds pushes back until then (microseconds), after 3017 and 3018. ``broken`` says
    what came of it that cannot be applied; it is then opened again at ``not_before``.
    """

    id: str
    stage: Stage = Stage.OPENING
    opened: Opened | None = None
    sent_through: int = 0
    in_flight: dict[int, int] = field(default_factory=dict)
    not_before: int = 0
    delay: int = 0
    broken: str = ""
    low: int = 0
    high: int = 0
    asked: list[int] = field(default_factory=list)
    repeats: dict[int, OpRefused] = field(default_factory=dict)


@dataclass(slots=True)
class Counts:
    """What one connection did; the report of a sync is made of it."""

    sent: int = 0
    received: int = 0
    refused: int = 0
    conflicts: int = 0
    healed: int = 0
    requeued: int = 0
    bootstrapped: int = 0
