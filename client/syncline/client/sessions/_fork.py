"""Writing a fork: a new session whose first op is a snapshot of another one's state.

All of it is one local transaction, so the fork is there whole or not at all. The first op carries
the header and every record whole (more ops do, beyond what one can hold); the ops after it set the
times of values that are newer than their record's oldest one, and then append the conversation, in
order and at its own times. Numbers and vectors begin anew with the session.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from syncline.sync import HEADER_COLLECTION, HEADER_ID, Record, Stamp, Value, pack
from syncline.sync.sessions import CHECKPOINTED, Key, Layer, fork_layers, in_parts, is_inherited

from .._core import Core
from .._session import EventRow, Session
from .._writing import OpWriter
from ._history import Place

PART_BYTES_MAX = 3 << 20
"""What one op of a fork holds at most, so that contexts and stamps fit in beside it."""
PART_CHANGES_MAX = 20_000
EVENTS_MAX = 1000
"""Events in one op: a reader of pages gets an op whole."""

_HEADER: Key = (HEADER_COLLECTION, HEADER_ID)


def write_fork(
    core: Core,
    parent: str,
    id_: str,
    place: Place,
    records: Mapping[Key, Record],
    events: Sequence[EventRow],
    label: str | None,
) -> Session:
    """Write the fork ``id_`` of ``parent``; the caller holds the transaction.

    Raises TooLarge (3011) for a record that no op can hold.
    """
    core.ensure_session(id_)
    inherited = {
        key: record
        for key, record in records.items()
        if key != _HEADER and not key[0].startswith("$")
    }
    inherited[_HEADER] = _header(core.now, parent, place, records.get(_HEADER), label)
    for ops in fork_layers(inherited):
        # The header leads: a device that has but the first op knows what it is.
        ordered = sorted(ops, key=lambda layer: layer.key != _HEADER)
        for part in in_parts(ordered, bytes_max=PART_BYTES_MAX, changes_max=PART_CHANGES_MAX):
            with core.op(id_) as op:
                for layer in part:
                    _write(op, layer)
    # Checkpoints of the original are none of the fork's.
    for page in _pages([event for event in events if event.type != CHECKPOINTED]):
        with core.op(id_) as op:
            for event in page:
                op.append(event.type, event.payload, event.at)
    return Session(core, id_)


def _header(
    now: int, parent: str, place: Place, record: Record | None, label: str | None
) -> Record:
    """The fork's header: what the original's said then, but for rights, and where it comes from."""
    origin: dict[str, Any] = {
        "session": parent,
        "epoch": place.epoch,
        "seq": place.seq,
        "hash": place.hash,
    }
    if place.checkpoint is not None:
        origin["checkpoint"] = place.checkpoint
    own: dict[str, Value] = {
        "status": "active",
        "created_at": now,
        "parent": parent,
        "forked_from": origin,
    }
    if label is not None or record is None:
        own["label"] = label or ""
    fields: dict[str, Value] = {}
    stamps: dict[str, Stamp] = {}
    if record is not None:
        for name, value in record.fields.items():
            # None is what a patch leaves of a field that is no more.
            if is_inherited(name) and name not in own and value is not None:
                fields[name], stamps[name] = value, record.stamps[name]
    stamp = Stamp(now, "", 1)
    fields |= own
    stamps |= dict.fromkeys(own, stamp)
    return Record(fields, stamps, None, True, stamp, {})


def _write(op: OpWriter, layer: Layer) -> None:
    collection, id_ = layer.key
    if layer.whole and layer.key != _HEADER:
        op.put(collection, id_, layer.fields, layer.at)
    else:
        op.patch(collection, id_, layer.fields, layer.at)


def _pages(events: Sequence[EventRow]) -> Iterator[Sequence[EventRow]]:
    begin = size = 0
    for place, event in enumerate(events):
        bytes_ = len(pack(event.payload)) + len(event.type.encode()) + 32
        if place > begin and (place - begin >= EVENTS_MAX or size + bytes_ > PART_BYTES_MAX):
            yield events[begin:place]
            begin, size = place, 0
        size += bytes_
    if events:
        yield events[begin:]
