"""States of a session at places of its log, what differs between two, and what a fork begins with.

Everything here is derived from entries. A state at a seq is the fold of the entries up to it. A
checkpoint stands at a seq too, but its author may have had ops waiting then: these count, wherever
in the log they came to stand. They are settled on top of the seq as the author's own replica had
settled them, so a checkpoint means what its author saw, on every device and for ever.

A rollback is an ordinary op: the difference between what shows and what showed then, and the event
``session.rollback`` that says where it went. Nothing is rewound: stamps, vectors, versions and the
log go on, so a rollback syncs, can conflict, and can itself be rolled back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from .._changes import DIGEST_BYTES, RecordChange, Stamp, is_number
from .._entries import AcceptedChange
from .._errors import InvalidValue, Refused
from .._names import HEADER_COLLECTION, HEADER_ID, check_name
from .._records import Record
from .._settle import fold, settle
from .._values import Value, pack, same
from .._vectors import VersionVector, is_vector

CHECKPOINTED = "session.checkpoint"
ROLLBACK = "session.rollback"
LABEL_BYTES_MAX = 1024

Key = tuple[str, str]
"""A record: its collection and its id."""

Fields = Mapping[str, Value]
FieldsByKey = Mapping[Key, Fields]
"""What shows of a session: the living records."""

HEADER: Key = (HEADER_COLLECTION, HEADER_ID)

HEADER_OWN = frozenset(
    {
        *("owner", "members", "policies", "locked", "locks"),
        *("created_at", "parent", "forked_from", "version", "saved", "deleted"),
    }
)
"""Header fields of one session alone: what gives rights, where it comes from, how it is kept."""
HEADER_KEPT = HEADER_OWN | {"agent", "definition"}
"""Those that no rollback touches: what a session is for its whole life, too."""
HEADER_PREFIXES = ("member:", "policy:", "lock:", "$")


def is_kept(field: str) -> bool:
    """Whether a rollback leaves this field of the header as it is."""
    return field in HEADER_KEPT or field.startswith(HEADER_PREFIXES)


def is_inherited(field: str) -> bool:
    """Whether a fork gets this field of the header."""
    return field not in HEADER_OWN and not field.startswith(HEADER_PREFIXES)


# States.


def apply_entry(records: dict[Key, Record], changes: Iterable[AcceptedChange]) -> None:
    """Fold one entry of the log, with the effects that it carries."""
    for change, stamp, effect in changes:
        if isinstance(change, RecordChange):
            key = (change.collection, change.id)
            records[key] = fold(records.get(key), change, stamp, effect)


def settle_entry(
    records: dict[Key, Record],
    changes: Iterable[tuple[RecordChange, Stamp]],
    held: VersionVector,
) -> bool:
    """Settle an op on a state that is not the one which its entry met; whether it could be.

    An op that would have been refused there is left out whole, as a replica shows it.
    """
    made: dict[Key, Record] = {}
    try:
        for change, stamp in changes:
            key = (change.collection, change.id)
            made[key] = settle(made.get(key, records.get(key)), change, stamp, held).record
    except Refused:
        return False
    records.update(made)
    return True


def visible(records: Mapping[Key, Record]) -> dict[Key, Fields]:
    """The fields of the records that live."""
    return {key: record.fields for key, record in records.items() if record.alive}


# Differences.


class RecordDifference(NamedTuple):
    """What became of one record. ``before`` and ``after`` are its fields, None while it is not."""

    collection: str
    id: str
    before: Fields | None
    after: Fields | None

    @property
    def key(self) -> Key:
        return self.collection, self.id

    @property
    def kind(self) -> Literal["added", "changed", "removed"]:
        if self.before is None:
            return "added"
        return "removed" if self.after is None else "changed"

    @property
    def sets(self) -> dict[str, Value]:
        """The fields of ``after`` that ``before`` has not, or has with another value."""
        before = self.before or {}
        return {
            name: value
            for name, value in (self.after or {}).items()
            if name not in before or not same(before[name], value)
        }

    @property
    def drops(self) -> tuple[str, ...]:
        """The fields that ``before`` has and ``after`` has not."""
        return tuple(sorted((self.before or {}).keys() - (self.after or {}).keys()))


@dataclass(frozen=True, slots=True)
class Difference:
    """What leads from one state to another, record by record, in the order of their keys."""

    records: tuple[RecordDifference, ...]

    def __bool__(self) -> bool:
        return bool(self.records)

    @property
    def added(self) -> tuple[RecordDifference, ...]:
        return tuple(one for one in self.records if one.kind == "added")

    @property
    def changed(self) -> tuple[RecordDifference, ...]:
        return tuple(one for one in self.records if one.kind == "changed")

    @property
    def removed(self) -> tuple[RecordDifference, ...]:
        return tuple(one for one in self.records if one.kind == "removed")

    def apply(self, state: FieldsByKey) -> dict[Key, Fields]:
        """The state that comes of ``state``: for the one it was made from, the other one."""
        made = dict(state)
        for one in self.records:
            if one.after is None:
                made.pop(one.key, None)
            else:
                kept = {n: v for n, v in made.get(one.key, {}).items() if n not in one.drops}
                made[one.key] = {**kept, **one.sets}
        return made


def difference(before: FieldsByKey, after: FieldsByKey) -> Difference:
    """What has to be done to ``before`` for it to be ``after``."""
    found = []
    for key in sorted(before.keys() | after.keys()):
        old, new = before.get(key), after.get(key)
        if old is None or new is None or not same(dict(old), dict(new)):
            found.append(RecordDifference(*key, old, new))
    return Difference(tuple(found))


def rollback_difference(
    now: FieldsByKey, then: FieldsByKey, collections: Iterable[str] | None = None
) -> Difference:
    """What a rollback writes.

    Collections of Syncline's own are left alone, and so are the fields of the header that give
    rights. The header takes patches only: a field that it did not have then becomes None.
    ``collections`` are the only ones to be rolled back (``$session`` stands for the header).
    """
    only = None if collections is None else frozenset(collections)
    found = [
        one
        for one in difference(now, then).records
        if (only is None or one.collection in only)
        and (one.key == HEADER or not one.collection.startswith("$"))
    ]
    return Difference(tuple(one for one in map(_without_rights, found) if one is not None))


def _without_rights(one: RecordDifference) -> RecordDifference | None:
    if one.key != HEADER:
        return one
    if one.after is None:
        return None  # Before there was a session: it does not cease to be one.
    before = {n: v for n, v in (one.before or {}).items() if not is_kept(n)}
    after = {n: v for n, v in one.after.items() if not is_kept(n)}
    after |= {name: None for name in before if name not in after}
    changed = RecordDifference(*HEADER, before, after)
    return changed if changed.sets else None


# Checkpoints.


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A state that has a name: that at ``(epoch, seq)``, with its author's own ops before ``by``.

    ``hash`` is the log's there (None for a session that was never synced), ``vector`` all that the
    author saw. ``created_at`` is microseconds since the Unix epoch, ``by`` the stamp of the op that
    made the checkpoint.
    """

    id: str
    label: str
    epoch: int
    seq: int
    hash: bytes | None
    vector: dict[str, int]
    created_at: int
    by: Stamp

    def fields(self) -> dict[str, Value]:
        """As the record in ``$checkpoint`` holds it."""
        return {
            "label": self.label,
            "epoch": self.epoch,
            "seq": self.seq,
            "hash": self.hash,
            "vector": dict(self.vector),
            "created_at": self.created_at,
        }


def read_checkpoint(id_: str, record: Record) -> Checkpoint | None:
    """The checkpoint that a record of ``$checkpoint`` is; None for what is none.

    Other programs may write there: what they wrote is no reason to fail.
    """
    fields: dict[str, Any] = record.fields
    match fields:
        case {
            "label": str(label),
            "epoch": int(epoch),
            "seq": int(seq),
            "hash": bytes() | None as hash_,
            "vector": dict(vector),
            "created_at": int(created_at),
        } if (
            record.alive
            and epoch >= 0
            and (seq == 0 or is_number(seq))
            and (hash_ is None or len(hash_) == DIGEST_BYTES)
            and is_vector(vector)
        ):
            by = record.stamps["seq"]
            return Checkpoint(id_, label, epoch, seq, hash_, vector, created_at, by)
    return None


def check_label(label: object) -> str:
    """``label`` as that of a checkpoint (it may be empty). Raises InvalidValue (3019)."""
    if label == "":
        return ""
    return check_name(label, "label", own=True, bytes_max=LABEL_BYTES_MAX)


# What happened, after rollbacks.


class PlacedEvent(NamedTuple):
    """An event and where it stands; ``seq`` is None while it waits in the outbox."""

    seq: int | None
    client: str
    type: str
    payload: Mapping[str, Value]


def live_events(
    events: Sequence[PlacedEvent], seq: int | None = None, anchor: int | None = None
) -> list[int]:
    """The places of those events, in the order of the log, that make up the session as it is now,
    or as it was at ``seq``.

    The log keeps every event. A rollback takes those after the place that it went back to out of
    the conversation, as far as its author had seen them; what others appended meanwhile stays. A
    rollback to before another one brings in again what that one took out. The rollback events
    themselves are about the log, and no part of the conversation. ``anchor`` is the place of an
    event: what its author appended before it counts too, as for a checkpoint.
    """
    left = list(range(len(events)))
    if seq is not None:
        left = _there_at(events, left, seq, anchor)
    live: list[int] = []
    while True:
        last = next((i for i in reversed(range(len(left))) if _goes_back(events[left[i]])), None)
        tail = left if last is None else left[last + 1 :]
        live += [place for place in tail if events[place].type != ROLLBACK]
        if last is None:
            return sorted(live)
        event, before = events[left[last]], left[:last]
        unseen = [place for place in before if not _had_seen(event, events[place])]
        live += [place for place in unseen if events[place].type != ROLLBACK]
        seen = [place for place in before if _had_seen(event, events[place])]
        target = event.payload["seq"]
        assert type(target) is int
        left = _there_at(events, seen, target, _anchor(events, event, seen))


def _goes_back(event: PlacedEvent) -> bool:
    return event.type == ROLLBACK and type(event.payload.get("seq")) is int


def _had_seen(rollback: PlacedEvent, other: PlacedEvent) -> bool:
    """Whether the author of a rollback had seen an event that stands before it in the log."""
    through = rollback.payload.get("fromSeq")
    known = other.seq is not None and (type(through) is not int or other.seq <= through)
    return known or other.client == rollback.client


def _there_at(
    events: Sequence[PlacedEvent], places: Sequence[int], seq: int, anchor: int | None
) -> list[int]:
    """Those that stand at or below a seq, and those of the anchor's author before it."""
    return [
        place
        for place in places
        if ((at := events[place].seq) is not None and at <= seq)
        or (anchor is not None and place < anchor and events[place].client == events[anchor].client)
    ]


def _anchor(
    events: Sequence[PlacedEvent], rollback: PlacedEvent, before: Sequence[int]
) -> int | None:
    wanted = [rollback.payload.get(name) for name in ("undoes", "checkpointId")]
    ids = [id_ for id_ in wanted if type(id_) is str]
    return next((place for place in before for id_ in ids if marks_place(events[place], id_)), None)


def marks_place(event: PlacedEvent, id_: str) -> bool:
    """Whether an event is that of the checkpoint or of the rollback with this id."""
    field = {CHECKPOINTED: "checkpointId", ROLLBACK: "rollbackId"}.get(event.type)
    return field is not None and event.payload.get(field) == id_


# Forks.


class Layer(NamedTuple):
    """What one op of a fork writes of a record: these fields, as of ``at``."""

    key: Key
    fields: Fields
    at: int
    whole: bool


def fork_layers(records: Mapping[Key, Record]) -> Iterator[list[Layer]]:
    """The records of a fork, op by op, each value with its own ``updatedAt``.

    A change has one stamp, and an op changes a record once; a record that was written at several
    times therefore takes several ops. The first list writes every record whole, at the time of its
    oldest value; the next ones write the values that are newer again, at their own times.
    """
    later: list[list[Layer]] = []
    first: list[Layer] = []
    for key, record in sorted(records.items()):
        if not record.alive:
            continue
        by_time: dict[int, dict[str, Value]] = {}
        for name in sorted(record.fields):
            at = record.stamps[name].updated_at
            by_time.setdefault(at, {})[name] = record.fields[name]
        times = sorted(by_time) or [record.life.updated_at]
        first.append(Layer(key, record.fields, times[0], True))
        for place, at in enumerate(times[1:]):
            if place == len(later):
                later.append([])
            later[place].append(Layer(key, by_time[at], at, False))
    if first:
        yield first
    yield from later


def in_parts(
    layers: Sequence[Layer], *, bytes_max: int, changes_max: int
) -> Iterator[Sequence[Layer]]:
    """``layers`` cut into ops that fit, in order; one layer at least in each.

    Raises InvalidValue (3019) for bounds below one.
    """
    if bytes_max < 1 or changes_max < 1:
        raise InvalidValue("a part has at least one byte and one change", path="bytes_max")
    begin = size = 0
    for place, layer in enumerate(layers):
        bytes_ = len(pack(layer.fields)) + len(pack(layer.key)) + 64
        full = place - begin >= changes_max or size + bytes_ > bytes_max
        if place > begin and full:
            yield layers[begin:place]
            begin, size = place, 0
        size += bytes_
    if layers:
        yield layers[begin:]
