"""What the app sees: the log's state with the pending ops settled on top.

Prediction runs the same ``settle`` as the server. An op that would be refused is left out, whole;
so a refusal needs no undo: remove the op, predict again.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping

from syncline.sync import Record, RecordChange, Refused, Stamp, pack, settle

from ._rows import Pending, SessionState, pending_ops

Key = tuple[str, str]

KEYS_SEARCHED_MAX = 8
"""Up to this many records, SQLite searches the outbox for each; above, it is decoded once."""


def changes_on(op: Pending) -> Iterator[tuple[RecordChange, int]]:
    """The op's changes of records, each with its ``updatedAt``."""
    for change, at in zip(op.changes, op.stamps, strict=True):
        if isinstance(change, RecordChange):
            yield change, at


def ops_touching(
    db: sqlite3.Connection, session: SessionState, keys: set[Key]
) -> Iterable[Pending]:
    """The pending ops that touch any of these records, in the order of their numbers."""
    if len(keys) > KEYS_SEARCHED_MAX:
        return pending_ops(db, session.key)
    numbers: set[int] = set()
    for collection, id_ in keys:
        # Names stand in the body as they are packed, so a plain search finds every op that has
        # them (and perhaps one more, which does no harm).
        found = db.execute(
            "SELECT n FROM syncline_outbox WHERE session=? AND instr(body, ?) > 0",
            (session.key, pack(collection) + pack(id_)),
        )
        numbers.update(n for (n,) in found)
    return (op for n in sorted(numbers) for op in pending_ops(db, session.key, n - 1, 1))


def predict(
    ops: Iterable[Pending],
    bases: Mapping[Key, Record | None],
    client: str,
    vector: Mapping[str, int],
) -> dict[Key, Record | None]:
    """The visible state of these records: each base with the pending ops on top.

    ``vector`` is what the log is known to hold; only records in ``bases`` are looked at.
    """
    shown = dict(bases)
    for op in ops:
        held = {**vector, client: op.n - 1}
        made: dict[Key, Record] = {}
        try:
            for change, at in changes_on(op):
                key = (change.collection, change.id)
                if key not in bases:
                    continue
                record = shown[key]
                if record is not None and record.vector.get(client, 0) >= op.n:
                    continue  # The base has it already: a healing put it back into the outbox.
                settled = settle(record, change, Stamp(at, client, op.n), held)
                made[key] = settled.record
        except Refused:
            continue
        shown.update(made)
    return shown
