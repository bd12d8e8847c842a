"""What follows from a session's log: its transcript, usage, open items and prompt in one fold.

Events that were written under a lease that was another's by then are passed over (``TurnState``
judges that), but for what they cost. Each event costs the same, however long the log is; so does
``copy`` but for a copy of the containers, which is what makes it cheap to show what still waits in
the outbox on top of a fold of the log.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ._events import UserMessage
from ._logged import LogItem
from ._prompt import Prompt
from ._trace import Trace
from ._transcript import Transcript
from ._turn import Call, Child, Phase, Turn, TurnState
from ._usage import Usage


@dataclass(frozen=True, slots=True)
class OpenItems:
    """What is under way or waits: all that a crash could leave behind, and all that it needs.

    ``turn_id`` is the turn that runs, or that rests and may go on. ``request_id`` is the model
    request that is open; ``calls`` are tool calls that have no result, ``parked`` those that wait
    for a person; ``subagents`` are not done. ``queued`` messages were taken in by no turn yet.
    """

    turn_id: str | None
    request_id: str | None
    calls: tuple[Call, ...]
    parked: tuple[Call, ...]
    subagents: tuple[Child, ...]
    queued: tuple[UserMessage, ...]

    def __bool__(self) -> bool:
        return bool(self.request_id or self.calls or self.parked or self.subagents or self.queued)


def open_items(state: TurnState) -> OpenItems:
    """What is open in a session whose log folds to this."""
    turn: Turn | None = state.unfinished
    queued = tuple(state.waiting.values())
    if turn is None:
        return OpenItems(None, None, (), (), (), queued)
    calls = (*turn.calls_in(Phase.OPEN), *turn.calls_in(Phase.DENIED))
    parked = tuple(turn.calls_in(Phase.PARKED))
    return OpenItems(turn.id, turn.request, calls, parked, tuple(turn.children.values()), queued)


class Conversation:
    """The fold of a whole log; see the module's words."""

    __slots__ = ("prompt", "transcript", "turns", "usage")

    def __init__(self) -> None:
        self.turns = TurnState()
        self.transcript = Transcript()
        self.usage = Usage()
        self.prompt = Prompt()

    def copy(self) -> Conversation:
        """An equal one that goes its own way."""
        made = Conversation()
        made.turns = self.turns.copy()
        made.transcript = self.transcript.copy()
        made.usage = self.usage.copy()
        made.prompt = self.prompt.copy()
        return made

    @property
    def open_items(self) -> OpenItems:
        """What is under way or waits."""
        return open_items(self.turns)

    def add(self, logged: LogItem) -> None:
        """Fold one event, in the order of the log."""
        stands = self.turns.take(logged.event, logged.at)
        self.usage.add(logged, stale=not stands)
        if stands:
            self.transcript.add(logged)
            self.prompt.add(logged)

    def pass_over(self, logged: LogItem) -> None:
        """Take notice of an event that a rollback took out: what it cost was spent."""
        self.usage.add(logged)

    def add_all(self, events: Iterable[LogItem]) -> Conversation:
        """Fold these; returns itself."""
        for logged in events:
            self.add(logged)
        return self


def trace_of(events: Iterable[LogItem]) -> Trace:
    """The trace of a log from its beginning."""
    turns, trace = TurnState(), Trace()
    for logged in events:
        if turns.take(logged.event, logged.at):
            trace.add(logged)
    return trace
