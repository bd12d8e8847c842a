"""Writing a session that begins with the state of another: a fork, or an import.

All of it is one local transaction, so the session is there whole or not at all. The first op
carries the header and every record whole (more ops do, beyond what one can hold); the ops after it
set the times of values that are newer than their record's oldest one, and then append the
conversation, in order and at its own times. Numbers and vectors begin anew with the session.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from syncline.sync import HEADER_COLLECTION, HEADER_ID, Record, Stamp, Value, pack
from syncline.sync.sessions import (
    CHECKPOINTED,
    ROLLBACK,
    Key,
    Layer,
    fork_layers,
    in_parts,
    is_inherited,
)

from .._core import Core
from .._session import Session
from .._writing import OpWriter
from ._history import Place

PART_BYTES_MAX = 3 << 20
"""What one op holds at most, so that contexts and stamps fit in beside it."""
PART_CHANGES_MAX = 20_000
EVENTS_MAX = 1000
"""Events in one op: a reader of pages gets an op whole."""

HEADER: Key = (HEADER_COLLECTION, HEADER_ID)


class Said(NamedTuple):
    """An event to append, with its own time."""

    type: str
    payload: Mapping[str, Value]
    at: int


def origin_of(session: str, place: Place) -> dict[str, Value]:
    """Where a fork comes from, as its header says it."""
    origin: dict[str, Any] = {
        "session": session,
        "epoch": place.epoch,
        "seq": place.seq,
        "hash": place.hash,
    }
    if place.checkpoint is not None:
        origin["checkpoint"] = place.checkpoint
    return origin


def write_session(
    core: Core,
    id_: str,
    records: Mapping[Key, Record],
    events: Sequence[Said],
    own: Mapping[str, Value],
) -> Session:
    """Write the session ``id_``; the caller holds the transaction.

    ``own`` are the fields of its header that it does not inherit. Records of Syncline's own
    collections but for the header, and events about checkpoints and rollbacks, are left out: they
    speak of another log. Raises TooLarge (3011) for a record that no op can hold.
    """
    core.ensure_session(id_)
    inherited = {
        key: record
        for key, record in records.items()
        if key != HEADER and not key[0].startswith("$")
    }
    inherited[HEADER] = _header(core.now, records.get(HEADER), own)
    for ops in fork_layers(inherited):
        # The header leads: a device that has but the first op knows what it is.
        ordered = sorted(ops, key=lambda layer: layer.key != HEADER)
        for part in in_parts(ordered, bytes_max=PART_BYTES_MAX, changes_max=PART_CHANGES_MAX):
            with core.op(id_) as op:
                for layer in part:
                    _write(op, layer)
    for page in _pages([e for e in events if e.type not in (CHECKPOINTED, ROLLBACK)]):
        with core.op(id_) as op:
            for event in page:
                op.append(event.type, event.payload, event.at)
    return Session(core, id_)


def _header(now: int, record: Record | None, own: Mapping[str, Value]) -> Record:
    """The header: what the original's said then, but for rights, and what is its own."""
    mine: dict[str, Value] = {"status": "active", "created_at": now, **own}
    if record is None or "label" not in record.fields:
        mine.setdefault("label", "")
    fields: dict[str, Value] = {}
    stamps: dict[str, Stamp] = {}
    if record is not None:
        for name, value in record.fields.items():
            # None is what a patch leaves of a field that is no more.
            if is_inherited(name) and name not in mine and value is not None:
                fields[name], stamps[name] = value, record.stamps[name]
    stamp = Stamp(now, "", 1)
    fields |= mine
    stamps |= dict.fromkeys(mine, stamp)
    return Record(fields, stamps, None, True, stamp, {})


def _write(op: OpWriter, layer: Layer) -> None:
    collection, id_ = layer.key
    if layer.whole and layer.key != HEADER:
        op.put(collection, id_, layer.fields, layer.at)
    else:
        op.patch(collection, id_, layer.fields, layer.at)


def _pages(events: Sequence[Said]) -> Iterator[Sequence[Said]]:
    begin = size = 0
    for place, event in enumerate(events):
        bytes_ = len(pack(event.payload)) + len(event.type.encode()) + 32
        if place > begin and (place - begin >= EVENTS_MAX or size + bytes_ > PART_BYTES_MAX):
            yield events[begin:place]
            begin, size = place, 0
        size += bytes_
    if events:
        yield events[begin:]
