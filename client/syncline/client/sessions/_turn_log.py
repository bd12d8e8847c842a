"""One session's log as whoever runs its turns needs it: folded, and written under the lease.

``append`` looks at the lease and writes in one transaction of the replica's file, which no other
process and no arriving entry can come between: nobody writes under a lease that, as far as this
replica knows, is not theirs any more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from syncline.sync.sessions import Lease, Logged, LogItem, Prompt, TurnState

from .._core import Core
from .._receipt import Receipt
from ._log_fold import LogFold


class Fenced(Exception):
    """The lease is not ours any more, or the turn is over: what was about to be written, is not."""


@dataclass(slots=True)
class Folded:
    """The folds of a log up to some place: what is open, and what the model is shown."""

    state: TurnState = field(default_factory=TurnState)
    prompt: Prompt = field(default_factory=Prompt)

    def add(self, logged: LogItem) -> None:
        """Fold one event; what is stale counts for nothing but itself."""
        if self.state.take(logged.event, logged.at):
            self.prompt.add(logged)

    def pass_over(self, logged: LogItem) -> None:
        """What was rolled back is neither open nor shown to the model."""

    def copy(self) -> Folded:
        """An equal one that goes its own way."""
        return Folded(self.state.copy(), self.prompt.copy())


class TurnLog:
    """The folded log of one session. Not for several threads at once."""

    def __init__(self, core: Core, session_id: str) -> None:
        self.core = core
        self.session_id = session_id
        self._fold = LogFold(core, session_id, Folded)

    @property
    def seen(self) -> Folded:
        """The folds as of the last ``refresh``."""
        return self._fold.seen

    def refresh(self) -> TurnState:
        """Fold what is new; the state as this replica shows it."""
        return self._fold.refresh().state

    def append(
        self, make: Callable[[TurnState], Sequence[Logged]], lease: Lease | None = None
    ) -> Receipt | None:
        """Append, as one op, what ``make`` makes of the newest state; None when that is nothing.

        With ``lease`` only while a turn runs under it: else raises Fenced, and nothing is stored.
        """
        with self.core.op(self.session_id) as op:
            state = self.refresh()
            if lease is not None and (state.lease != lease or state.running is None):
                raise Fenced
            events = make(state)
            for event in events:
                op.append(event.type, event.payload(), None)
        if not events:
            return None
        return Receipt(self.core, op.salt.hex(), (self.session_id, op.head.n))
