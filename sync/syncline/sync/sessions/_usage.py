"""Usage and cost: what a session consumed, counted from its model requests.

Whatever was charged counts, also what came to nothing: failed requests, requests that a crash made
run twice, and what was done under a lease that was another's by then.
"""

from __future__ import annotations

from ._events import (
    ModelRequestCompleted,
    ModelRequestFailed,
    ModelRequestRetried,
    ModelRequestStarted,
    SubagentCompleted,
    ToolCallCompleted,
)
from ._logged import LogItem
from ._turn import Meter


class Usage:
    """The fold. ``own`` is what the session's requests consumed; of that ``doubled`` for nothing.

    Doubled is what was charged for requests that were issued again and what ran under a stale
    lease. ``requests`` counts what was begun, ``calls`` what ended; ``by_turn`` is by turn id.
    """

    __slots__ = ("_children", "by_turn", "calls", "doubled", "own", "requests")

    def __init__(self) -> None:
        self.own = Meter()
        self.doubled = Meter()
        self.requests = 0
        self.calls = 0
        self.by_turn: dict[str, Meter] = {}
        self._children: dict[str, Meter] = {}

    def copy(self) -> Usage:
        """An equal one that goes its own way."""
        made = Usage()
        made.own, made.doubled = self.own, self.doubled
        made.requests, made.calls = self.requests, self.calls
        made.by_turn = dict(self.by_turn)
        made._children = dict(self._children)
        return made

    @property
    def subagents(self) -> Meter:
        """What the session's subagents consumed, as they reported when they were done."""
        total = Meter()
        for meter in self._children.values():
            total = total.plus(meter)
        return total

    @property
    def total(self) -> Meter:
        """The session's own and its subagents'."""
        return self.own.plus(self.subagents)

    def add(self, logged: LogItem, *, stale: bool = False) -> None:
        """Fold one event; ``stale`` when it was written under a lease that was not its writer's."""
        match logged.event:
            case ModelRequestStarted():
                self.requests += 1
            case ModelRequestCompleted() | ModelRequestFailed() | ModelRequestRetried() as event:
                self.own = self.own.plus(event)
                self.by_turn[event.turn_id] = self.by_turn.get(event.turn_id, Meter()).plus(event)
                if isinstance(event, ModelRequestRetried):
                    self.requests += 1
                if stale or isinstance(event, ModelRequestRetried):
                    self.doubled = self.doubled.plus(event)
            case ToolCallCompleted():
                self.calls += 1
            case SubagentCompleted() as event:
                # It covers all that this child ever consumed: the newest word counts.
                self._children[event.session_id] = Meter().plus(event)
            case _:
                pass
