"""What the ledger must say of a turn's events: who consumed what, with what outcome."""

from __future__ import annotations

from typing import Any

from ._log import Change

TURN_EVENTS = {
    "model.request.completed",
    "model.request.failed",
    "model.request.retried",
    "session.usage",
}
WORDS = (
    ("turnId", "turn"),
    ("stageId", "stage"),
    ("seqWithinTurn", "seq_within_turn"),
    ("parentTurnId", "parent_turn"),
    ("subagentDepth", "depth"),
    ("requestId", "request"),
    ("outcome", "outcome"),
    ("inputTokens", "input_tokens"),
    ("outputTokens", "output_tokens"),
    ("cacheReadTokens", "cache_read_tokens"),
    ("cacheWriteTokens", "cache_write_tokens"),
    ("costMicros", "cost_micros"),
)
TEXT_MAX = 128


def turn_facts(event: Change) -> dict[str, Any]:
    """The facts of one such event, beside its place."""
    facts: dict[str, Any] = {"event": event.collection}
    for name, fact in WORDS:
        value = event.fields.get(name)
        if type(value) is int or (type(value) is str and len(value) <= TEXT_MAX):
            facts[fact] = value
    return facts
