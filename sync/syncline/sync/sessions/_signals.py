"""Signals: what rides beside the log, live only. No seq, never stored, never replayed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pydantic import ValidationError

from .._values import Value
from ._payload import Count, Payload


class Ephemeral(Payload):
    """Delivered live to whoever has the session open; one that is late or offline misses it.

    ``index`` counts the signals of one request from 0, so that a reader sees when it missed some.
    """

    kind: ClassVar[str]
    turn_id: str
    index: Count = 0


class AgentTextDelta(Ephemeral):
    """A typing preview; ``agent.message`` is what counts."""

    kind: ClassVar[str] = "agent.text_delta"
    request_id: str
    text: str


class AgentReasoningDelta(Ephemeral):
    """The same for reasoning."""

    kind: ClassVar[str] = "agent.reasoning_delta"
    request_id: str
    text: str


class ToolCallInputDelta(Ephemeral):
    """The same for the arguments of a call that is being composed."""

    kind: ClassVar[str] = "tool.call.input_delta"
    call_id: str
    text: str


EphemeralEvent = AgentTextDelta | AgentReasoningDelta | ToolCallInputDelta

EPHEMERAL_KINDS: Mapping[str, type[EphemeralEvent]] = {
    cls.kind: cls for cls in EphemeralEvent.__args__
}
"""Every kind of signal that this version knows, by its name on the wire."""


def read_signal(kind: str, payload: Mapping[str, Value]) -> EphemeralEvent | None:
    """The signal of its wire form; None for one that this version cannot read."""
    cls = EPHEMERAL_KINDS.get(kind)
    if cls is None:
        return None
    try:
        return cls.read(payload)
    except ValidationError:
        return None
