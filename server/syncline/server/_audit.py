"""What the audit ledger is told of ops: values that lost, and refusals for good.

Facts name dots, records and fields, never values; who signed in stands apart, where it can be
cleared. An op that simply applied has its log entry as its ledger row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from syncline.sync import Closed, Conflict, Event

from ._store import LedgerRow


@dataclass(frozen=True, slots=True)
class Author:
    """Who pushes: the client, and the principal it signed in as."""

    client: str
    principal: str


def lost_rows(
    at: int,
    session: str,
    author: Author,
    place: tuple[int, int, int],
    conflicts: Iterable[Conflict | Closed],
) -> Iterator[LedgerRow]:
    """A row for each value that an entry cost; ``place`` is the entry's epoch, seq and number."""
    epoch, seq, n = place
    for lost in conflicts:
        if isinstance(lost, Conflict):
            facts = {
                "epoch": epoch,
                "seq": seq,
                "dot": [author.client, n],
                "collection": lost.collection,
                "id": lost.record_id,
                "field": lost.field,
                "winner": list(lost.winner),
                "loser": list(lost.loser),
            }
            yield _row("lost", at, session, author, facts)


def refusal_row(
    at: int, session: str, author: Author, place: tuple[int, int], code: int
) -> LedgerRow:
    """The row of an op that was refused for good; ``place`` is the epoch and its number."""
    epoch, n = place
    facts = {"epoch": epoch, "dot": [author.client, n], "code": code}
    return _row("refusal", at, session, author, facts)


def sign_in_row(at: int, author: Author, incarnation: int) -> LedgerRow:
    """The row of a client that was let in."""
    return _row("sign_in", at, "", author, {"incarnation": incarnation})


def erasure_row(
    at: int, session: str, place: tuple[int, int], counts: Mapping[str, int]
) -> LedgerRow:
    """The row of an erasure, which names nobody; ``place`` is the epoch and seq of its entry."""
    epoch, seq = place
    return LedgerRow("erasure", at, session, {"epoch": epoch, "seq": seq, **counts}, {})


TURN_EVENTS = frozenset(
    {
        "model.request.completed",
        "model.request.failed",
        "model.request.retried",
        "session.usage",
    }
)
"""Events of a turn that say what was consumed, for whom and with what outcome."""
_TURN_FACTS = {
    "turnId": "turn",
    "stageId": "stage",
    "seqWithinTurn": "seq_within_turn",
    "parentTurnId": "parent_turn",
    "subagentDepth": "depth",
    "requestId": "request",
    "outcome": "outcome",
    "inputTokens": "input_tokens",
    "outputTokens": "output_tokens",
    "cacheReadTokens": "cache_read_tokens",
    "cacheWriteTokens": "cache_write_tokens",
    "costMicros": "cost_micros",
}
_FACT_CHARS_MAX = 128


def turn_row(
    at: int, session: str, author: Author, place: tuple[int, int, int, int], event: Event
) -> LedgerRow:
    """The row of one of ``TURN_EVENTS``; ``place`` is epoch, seq, index in the op, and number.

    Its identity tuple is the session, turn, stage and seq within the turn, with the parent turn and
    the depth of a subagent's. What does not fit a fact (another type, a long text) is left out.
    """
    epoch, seq, index, n = place
    facts = {
        "epoch": epoch,
        "seq": seq,
        "index": index,
        "dot": [author.client, n],
        "event": event.type,
    }
    for name, fact in _TURN_FACTS.items():
        value = event.payload.get(name)
        if type(value) is int or (type(value) is str and len(value) <= _FACT_CHARS_MAX):
            facts[fact] = value
    return _row("turn", at, session, author, facts)


def _row(kind: str, at: int, session: str, author: Author, facts: Mapping[str, Any]) -> LedgerRow:
    identity = {"principal": author.principal, "client": author.client}
    return LedgerRow(kind, at, session, facts, identity)
