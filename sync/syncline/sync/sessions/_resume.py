"""Resuming a session: the stored row, the latest checkpoint, and what the event log adds.

The row is the base. A checkpoint stands in for it when it is **at least as recent**, by version and
by time: that is how a session comes back after a crash that kept the checkpoint and lost the row's
write. An older one never rolls a fresher row back. The log rebuilds only what no row carries
(decisions that were taken, subagents, exports, cards); it rides on the session as ``transient``
and is never stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from .._values import Value
from ._session import AgentSession


@dataclass(frozen=True, slots=True)
class CheckpointSnapshot:
    """A session as a checkpoint holds it.

    ``version`` is the version that it had or was about to get, ``at`` when the checkpoint was
    taken, in microseconds since the Unix epoch.
    """

    id: str
    version: int
    at: int
    session: AgentSession


class CheckpointSource(Protocol):
    """Where a runtime finds checkpoints."""

    def latest_snapshot(self, session_id: str) -> CheckpointSnapshot | None:
        """The latest checkpoint of a session; None when there is none."""

    def delete_all(self, session_id: str) -> None:
        """Drop the session's checkpoints, since it is being deleted."""


class LoggedEvent(Protocol):
    """An event of the log, whatever its type is written as."""

    @property
    def type(self) -> str: ...
    @property
    def payload(self) -> Mapping[str, Value]: ...


class EventSource(Protocol):
    """Where a runtime reads a session's event log."""

    def events(self, session_id: str, /) -> Iterable[LoggedEvent]:
        """All events of the session, in order."""


def is_recent(snapshot: CheckpointSnapshot, row: AgentSession) -> bool:
    """Whether a checkpoint is at least as recent as the stored row."""
    return snapshot.version >= row.version and snapshot.at >= row.header.updated_at


def transient_state(events: Iterable[LoggedEvent]) -> dict[str, Value]:
    """What only the log knows, as plain data; a fold, so the same events give the same.

    ``resolved_interrupts``: decisions by the id of their call. ``subagents``: the last that each
    child reported, by its session. ``exports``: snapshots of sandboxes, ``cards``: artifacts, in
    order.
    """
    resolved: dict[str, Value] = {}
    subagents: dict[str, Value] = {}
    exports: list[Value] = []
    cards: list[Value] = []
    for event in events:
        payload: dict[str, Any] = dict(event.payload)
        kind, _, what = event.type.partition(".")
        if event.type == "tool.call.decision":
            resolved[str(payload.get("callId", ""))] = payload
        elif kind == "subagent":
            child = str(payload.get("sessionId", ""))
            known = subagents.get(child, {})
            subagents[child] = {**known, **payload, "last": what}
        elif event.type == "sandbox.snapshotted":
            exports.append(payload)
        elif event.type == "session.artifact":
            cards.append(payload)
    return {
        "resolved_interrupts": resolved,
        "subagents": subagents,
        "exports": exports,
        "cards": cards,
    }
