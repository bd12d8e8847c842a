"""What the audit ledger is told of ops: values that lost, and refusals for good.

Facts name dots, records and fields, never values; who signed in stands apart, where it can be
cleared. An op that simply applied has its log entry as its ledger row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from syncline.sync import Closed, Conflict

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


def _row(kind: str, at: int, session: str, author: Author, facts: Mapping[str, Any]) -> LedgerRow:
    identity = {"principal": author.principal, "client": author.client}
    return LedgerRow(kind, at, session, facts, identity)
