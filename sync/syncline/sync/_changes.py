"""Changes and ops: what a client writes, and the bytes it becomes.

An op's **body** (its changes with their contexts) is encoded once by its author and from then on
kept, hashed, forwarded and stored as those bytes. The stamps stand beside it, because they alone
may be set again before the op is accepted. The 16 random bytes of the **salt** name the op across
renumbering, salt its digests, and die with it when it is erased.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated, Any, NamedTuple

import msgspec

from ._errors import InvalidValue, Malformed, MalformedFrame, TooLarge
from ._forms import Digest, Form, Number, PlainFields, Salt, Time
from ._names import (
    HEADER_COLLECTION,
    HEADER_ID,
    OWN_COLLECTIONS,
    check_name,
    check_record_id,
    is_id,
)
from ._values import Value, check_field_names, check_fields, pack, unpack
from ._vectors import NUMBER_MAX, VersionVector, serialise, validate

SALT_BYTES = 16
DIGEST_BYTES = 32
RECORD_BYTES_MAX = 1 << 20
OP_BYTES_MAX = 4 << 20
OP_CHANGES_MAX = 100_000
STAMP_BYTES = 9
"""What a stamp takes at most beside the body, in the op and again in its entry."""
DELETED = "deleted"
"""The status of a session that is deleted; nothing changes it any more."""


class Stamp(NamedTuple):
    """When a value was written and by which op; totally ordered, as tuples are.

    First the time (microseconds since the Unix epoch, UTC), then the client id as text, then ``n``.
    """

    updated_at: Time
    client: str
    n: Number


def decode_stamp(row: Any) -> Stamp:
    """The stamp of its plain data. Raises TypeError or ValueError."""
    at, client, n = row
    if type(at) is not int or type(client) is not str or type(n) is not int:
        raise TypeError("a stamp is [integer, text, integer]")
    if not (0 <= at <= NUMBER_MAX and 1 <= n <= NUMBER_MAX):
        raise ValueError("a stamp's numbers have 63 bits")
    return Stamp(at, client, n)


class Dot(NamedTuple):
    """``(client, n)``: the op's idempotency key and, once accepted, its name for ever."""

    client: str
    n: Number


class Kind(IntEnum):
    """What a change does."""

    PUT = 1
    PATCH = 2
    DELETE = 3
    EVENT = 4
    RESOLVE = 5
    ERASE = 6


class Put(msgspec.Struct, frozen=True, gc=False):
    """The whole record: writes the fields named, clears the others, marks it alive."""

    collection: str
    id: str
    context: VersionVector
    fields: dict[str, Value]


class Patch(msgspec.Struct, frozen=True, gc=False):
    """Some fields: writes those named and marks the record alive."""

    collection: str
    id: str
    context: VersionVector
    fields: dict[str, Value]


class Delete(msgspec.Struct, frozen=True, gc=False):
    """Marks the record dead; its fields are kept until tombstones are collected."""

    collection: str
    id: str
    context: VersionVector


class Event(msgspec.Struct, frozen=True, gc=False):
    """Something that happened: appended once, never edited."""

    type: str
    payload: dict[str, Value]


class Resolve(msgspec.Struct, frozen=True, gc=False):
    """Closes a conflict everywhere."""

    conflict_id: str


class Erase(msgspec.Struct, frozen=True, gc=False):
    """What these clients wrote before this entry is gone: a change of the server's own alone.

    ``rewritten`` are the seqs of the entries that lost content by it, each with the digest of its
    bytes since (see ``entry_digest``).
    """

    clients: tuple[str, ...]
    rewritten: tuple[tuple[int, bytes], ...]


RecordChange = Put | Patch | Delete
Change = Put | Patch | Delete | Event | Resolve | Erase


def encode_body(changes: Sequence[Change]) -> bytes:
    """The op's body: one array per change, led by its ``Kind``.

    Raises TooLarge (3011) when a record or the whole op is over its limit.
    """
    rows: list[list[Any]] = []
    for change in changes:
        match change:
            case Put() | Patch():
                kind = Kind.PUT if type(change) is Put else Kind.PATCH
                context = serialise(change.context)
                row = [kind, change.collection, change.id, context, change.fields]
            case Delete():
                row = [Kind.DELETE, change.collection, change.id, serialise(change.context)]
            case Event():
                row = [Kind.EVENT, change.type, change.payload]
            case Resolve():
                row = [Kind.RESOLVE, change.conflict_id]
            case Erase():
                row = [Kind.ERASE, change.clients, change.rewritten]
        rows.append(row)
    body = pack(rows)
    if len(body) > RECORD_BYTES_MAX:
        for change in changes:
            _check_size(change)
    _check_op_size(body, len(changes))
    return body


_ONE_CHANGE: Form[tuple[tuple[int, str, str, dict[str, int], dict[str, Value]]]] = Form(
    tuple[tuple[int, str, str, dict[str, int], PlainFields]]
)
"""The body of a put or patch of plain fields."""
_ONE_TOUCHED: Form[tuple[tuple[int, str, str, dict[str, int], msgspec.Raw]]] = Form(
    tuple[tuple[int, str, str, dict[str, int], msgspec.Raw]]
)


def _check_op_size(body: bytes, changes: int) -> None:
    """An op is as large as it travels: its stamps stand beside the body."""
    size = len(body) + STAMP_BYTES * changes
    if size > OP_BYTES_MAX:
        raise TooLarge(
            f"the op has {size} bytes, the most is {OP_BYTES_MAX}",
            bytes=size,
            bytes_max=OP_BYTES_MAX,
        )


def _check_size(change: Change) -> None:
    match change:
        case Put() | Patch():
            what, size = f"the fields of {change.collection}/{change.id}", len(pack(change.fields))
        case Event():
            what, size = f"the payload of a {change.type} event", len(pack(change.payload))
        case _:
            return
    if size > RECORD_BYTES_MAX:
        raise TooLarge(
            f"{what} have {size} bytes, the most is {RECORD_BYTES_MAX}",
            bytes=size,
            bytes_max=RECORD_BYTES_MAX,
        )


def decode_body(body: bytes) -> list[Change]:
    """The changes of a body from outside, wholly checked.

    Raises Malformed (3001), InvalidValue (3019) or TooLarge (3011): all final for the op.
    """
    if len(body) <= RECORD_BYTES_MAX and (usual := _ONE_CHANGE.read_canonical(body)) is not None:
        ((kind, collection, id_, context, fields),) = usual
        check_collection(collection)
        check_record_id(id_)
        validate(context)
        check_field_names(fields)
        if kind == Kind.PUT and collection != HEADER_COLLECTION:
            return [Put(collection, id_, context, fields)]
        if kind == Kind.PATCH:
            return [Patch(collection, id_, context, fields)]
    _check_op_size(body, 0)
    try:
        rows = unpack(body)
    except MalformedFrame as error:
        raise Malformed(f"the op's body is {error.reason}") from error
    if type(rows) is not list or not 1 <= len(rows) <= OP_CHANGES_MAX:
        raise Malformed("the op's body must be a list of at least one change")
    _check_op_size(body, len(rows))
    changes = [_decode_change(row) for row in rows]
    if len(body) > RECORD_BYTES_MAX:
        for change in changes:
            _check_size(change)
    if len(changes) > 1:
        touched = [(c.collection, c.id) for c in changes if isinstance(c, RecordChange)]
        if len(set(touched)) != len(touched):
            raise Malformed("an op changes one record twice; changes of one record are folded")
    return changes


def touched(body: bytes) -> list[tuple[str, str, VersionVector]] | None:
    """Collection, id and context of each record that a body touches; its fields are not read.

    For a body that was checked before. None when it has other changes than puts and patches.
    """
    usual = _ONE_TOUCHED.read(body)
    if usual is not None:
        return [usual[0][1:4]]
    changes = decode_body(body)
    found = [(c.collection, c.id, c.context) for c in changes if isinstance(c, Put | Patch)]
    return found if len(found) == len(changes) else None


def same_content(body: bytes, other: bytes) -> bool:
    """Whether two bodies say the same but for their contexts, which a renumbering changes.

    Raises what ``decode_body`` does.
    """
    return body == other or [_without_context(c) for c in decode_body(body)] == [
        _without_context(c) for c in decode_body(other)
    ]


def _without_context(change: Change) -> bytes:
    if isinstance(change, RecordChange):
        change = msgspec.structs.replace(change, context={})
    return encode_body([change])


def _decode_change(row: Any) -> Change:
    if type(row) is not list or not row or type(row[0]) is not int:
        # True and 1.0 equal Kind.PUT here, but not in every language that reads the log.
        raise Malformed("a change of unknown kind or shape")
    try:
        match row:
            case [Kind.PUT | Kind.PATCH as kind, collection, id_, context, fields]:
                made: Put | Patch = (Put if kind == Kind.PUT else Patch)(
                    check_collection(collection),
                    check_record_id(id_),
                    validate(context),
                    check_fields(fields),
                )
                if collection == HEADER_COLLECTION and kind == Kind.PUT:
                    raise Malformed("the session's header takes patches only")
                return made
            case [Kind.DELETE, collection, id_, context]:
                if collection == HEADER_COLLECTION:
                    raise Malformed("the session's header takes patches only")
                return Delete(check_collection(collection), check_record_id(id_), validate(context))
            case [Kind.EVENT, type_, payload]:
                return Event(check_name(type_, "event type"), check_fields(payload))
            case [Kind.RESOLVE, conflict_id]:
                return Resolve(check_name(conflict_id, "conflict id"))
            case [Kind.ERASE, list(clients), list(rewritten)] if clients and all(
                is_id(client) for client in clients
            ):
                return Erase(tuple(clients), tuple(_rewritten(one) for one in rewritten))
    except RecursionError as error:
        raise InvalidValue("a value is nested too deep") from error
    raise Malformed("a change of unknown kind or shape")


def _rewritten(row: Any) -> tuple[int, bytes]:
    match row:
        case [seq, bytes(digest)] if is_number(seq) and len(digest) == DIGEST_BYTES:
            return seq, digest
    raise Malformed("an erasure names an entry by its seq and a digest")


def check_collection(value: object) -> str:
    """``value`` as a collection: the app's own, or one of Syncline's that exist."""
    return check_name(value, "collection", own=isinstance(value, str) and value in OWN_COLLECTIONS)


def deletes_session(change: Change) -> bool:
    """Whether the change is the end of its session: its status becomes ``deleted``."""
    return (
        type(change) is Patch
        and (change.collection, change.id) == (HEADER_COLLECTION, HEADER_ID)
        and change.fields.get("status") == DELETED
    )


class Op(NamedTuple):
    """The atomic unit that a client writes, as it travels.

    ``stamps`` has one ``updatedAt`` per change of the body. ``former`` names the dot that the op
    had before its replica took a new client id.
    """

    n: int
    salt: bytes
    stamps: tuple[int, ...]
    body: bytes
    former: Dot | None = None


@dataclass(frozen=True, slots=True)
class VoidOp:
    """A number that a refusal consumed, as a restored server gets it: its running hash alone."""

    n: int
    running: bytes


_Stamps = Annotated[tuple[Time, ...], msgspec.Meta(min_length=1, max_length=OP_CHANGES_MAX)]
_OP: Form[tuple[int, bytes, tuple[int, ...], bytes, Dot | None]] = Form(
    tuple[Number, Salt, _Stamps, bytes, Dot | None]
)
_STAMPS: Form[tuple[int, ...]] = Form(_Stamps)
_VOID: Form[tuple[int, bytes]] = Form(tuple[Number, Digest])


def encode_op(op: Op | VoidOp) -> bytes:
    """The op's bytes in a ``push`` frame."""
    if isinstance(op, VoidOp):
        return pack([op.n, op.running])
    return pack(op)


def decode_op(data: bytes) -> Op | VoidOp:
    """An op's envelope from outside. Raises MalformedFrame (3001): without it ``n`` is unknown.

    The body is not looked into here: see ``decode_body``.
    """
    op = _OP.read(data)
    if op is not None and (op[4] is None or is_id(op[4].client)):
        return Op._make(op)
    void = _VOID.read(data)
    if void is not None:
        return VoidOp(*void)
    raise MalformedFrame("an op's envelope has the wrong shape")


def decode_stamps(data: bytes) -> tuple[int, ...]:
    """An op's stamps as they were packed. Raises MalformedFrame (3001)."""
    stamps = _STAMPS.read(data)
    if stamps is None:
        raise MalformedFrame("an op's stamps have the wrong shape")
    return stamps


def is_number(n: object) -> bool:
    """Whether ``n`` counts ops or entries: 1 to 2**63 - 1."""
    return type(n) is int and 1 <= n <= NUMBER_MAX
