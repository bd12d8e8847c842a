"""Conflicts as rows of the materialised state: what lost, to whom, and whether it is closed.

A conflict is opened by the entry in which the value lost and closed by a ``resolve`` change. A
closed one stays as a marker without its value, so that settling in another order (after a healing)
does not open it again: **closed wins over open**, whichever arrives first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ._changes import Dot, Resolve, Stamp, decode_stamp, is_number
from ._entries import AcceptedChange, conflict_id
from ._errors import InvalidValue, MalformedFrame
from ._records import Lost
from ._values import Value, check_decoded, pack, unpack


@dataclass(frozen=True, slots=True)
class Conflict:
    """An open conflict: ``value`` of ``field`` lost, written by ``loser``, to ``winner``.

    ``field`` is ``LIFE`` when a deletion and a living record collided; ``value`` is then the
    fields of the record that lost its life, or None when the deletion lost.
    """

    id: str
    collection: str
    record_id: str
    field: str
    value: Value
    loser: Stamp
    winner: Stamp

    @staticmethod
    def of(lost: Lost, collection: str, record_id: str) -> Conflict:
        return Conflict(
            conflict_id(lost.loser, collection, record_id, lost.field),
            collection,
            record_id,
            lost.field,
            lost.value,
            lost.loser,
            lost.winner,
        )

    def encode(self) -> bytes:
        return pack(
            [
                self.id,
                self.collection,
                self.record_id,
                self.field,
                self.value,
                self.loser,
                self.winner,
            ]
        )


@dataclass(frozen=True, slots=True)
class Closed:
    """A conflict that somebody resolved, by the op named; its value is gone from the state."""

    id: str
    by: Dot

    def encode(self) -> bytes:
        return pack([self.id, self.by])


def decode_conflict(data: bytes) -> Conflict | Closed:
    """The row of its bytes. Raises MalformedFrame (3001)."""
    match unpack(data):
        case [str(id_), [str(client), int(n)]] if is_number(n):
            return Closed(id_, Dot(client, n))
        case [
            str(id_),
            str(collection),
            str(record_id),
            str(field),
            value,
            loser,
            winner,
        ]:
            try:
                stamps = decode_stamp(loser), decode_stamp(winner)
                check_decoded([value])
            except (TypeError, ValueError, InvalidValue) as error:
                raise MalformedFrame("a conflict's stamp or value has the wrong shape") from error
            return Conflict(id_, collection, record_id, field, value, *stamps)
    raise MalformedFrame("a conflict has the wrong shape")


def conflicts_of(accepted: AcceptedChange) -> Iterator[Conflict | Closed]:
    """The conflicts that a change of the log opens or closes."""
    change = accepted.change
    if type(change) is Resolve:
        yield Closed(change.conflict_id, Dot(accepted.stamp.client, accepted.stamp.n))
    elif accepted.effect is not None:
        for lost in accepted.effect.lost:
            yield Conflict.of(lost, change.collection, change.id)  # type: ignore[union-attr]
