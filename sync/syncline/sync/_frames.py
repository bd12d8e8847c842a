"""The frames of ``syncline.v1``: one frozen model per message, gathered in two unions.

A frame is a MessagePack map with a ``type``. Unknown types and unknown keys are skipped, so that
versions can meet. Ops, entries and states travel inside as opaque bytes with decoders of their own
(``decode_op``, ``Entry.decode``, ``Record.decode``). Everything is checked once, in ``decode_*``.

Protocol history:
    1   the first
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, NamedTuple

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from ._changes import DIGEST_BYTES, OP_BYTES_MAX
from ._errors import InvalidValue, MalformedFrame, SyncError
from ._names import ID_CHARS_MAX
from ._values import check_value, pack, unpack

PROTOCOL = "syncline.v1"
PROTOCOL_VERSION = 1

FRAME_BYTES_BEFORE_SIGN_IN_MAX = 64 << 10
FRAME_BYTES_MAX = OP_BYTES_MAX + (64 << 10)
PAGE_BYTES = 256 << 10
"""A page of entries or rows is cut when it has this many bytes; one larger item goes alone."""
PAGE_ITEMS_MAX = 1024
FRAME_ARRAY_MAX = 2 * PAGE_ITEMS_MAX
SESSION_CLIENTS_MAX = 1 << 17
"""A bootstrap's last page names every client that ever wrote to its session."""
POINTS_MAX = 64

Id = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$", max_length=ID_CHARS_MAX)]
Digest = Annotated[bytes, Field(min_length=DIGEST_BYTES, max_length=DIGEST_BYTES)]
Number = Annotated[int, Field(ge=0, lt=2**63)]
Positive = Annotated[int, Field(ge=1, lt=2**63)]
Items = Annotated[tuple[bytes, ...], Field(max_length=PAGE_ITEMS_MAX)]
Text = Annotated[str, Field(max_length=4096)]


def _plain(detail: dict[str, Any]) -> dict[str, Any]:
    """The decoder lets timestamps, NaN and deep nesting through; values have none of these."""
    try:
        check_value(detail)
    except InvalidValue as error:
        raise ValueError(error.reason) from error
    return detail


Detail = Annotated[dict[str, Any], AfterValidator(_plain)]


class Frame(BaseModel):
    """Any message. Frozen, and valid once built."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)


# To the server.


class Hello(Frame):
    """Opens a connection. ``welcome`` echoes the nonce; any other answer is dropped.

    ``incarnation`` rises before every hello, so that a copied replica file is noticed.
    ``clock`` is the client's time in microseconds since the Unix epoch.
    """

    type: Literal["hello"] = "hello"
    version: Number = PROTOCOL_VERSION
    client: Id
    incarnation: Positive
    nonce: Annotated[bytes, Field(min_length=16, max_length=16)]
    token: Annotated[str, Field(max_length=4096)] | None = None
    clock: Number


class ListSessions(Frame):
    """Asks for the sessions that this identity may open, by id, after ``after``; then live."""

    type: Literal["list"] = "list"
    after: str = Field(default="", max_length=ID_CHARS_MAX)


class Open(Frame):
    """Opens a session at a cursor. ``hash`` is the chain's hash at ``seq`` (None: never synced).

    ``pending_from`` is the lowest number of this client that is still in its outbox (or its next
    number). ``snapshot`` asks for a bootstrap whatever the cursor.
    """

    type: Literal["open"] = "open"
    session: Id
    epoch: Number
    seq: Number
    hash: Digest | None
    pending_from: Positive = 1
    snapshot: bool = False


class Push(Frame):
    """Ops of one session, in the order of their numbers: each ``encode_op`` bytes."""

    type: Literal["push"] = "push"
    session: Id
    ops: Items


class Compare(Frame):
    """Asks which of these points ``[seq, hash]`` of the client's log the server's log shares."""

    type: Literal["compare"] = "compare"
    session: Id
    points: Annotated[tuple[tuple[Number, Digest], ...], Field(max_length=POINTS_MAX)]


class Snapshot(Frame):
    """Asks for the next page of a bootstrap. ``after`` is the cursor of the page before."""

    type: Literal["snapshot"] = "snapshot"
    session: Id
    after: Annotated[bytes, Field(max_length=8192)] = b""
    pending_from: Positive = 1


class History(Frame):
    """Asks for entries from ``seq`` up to and with ``through``, below where a bootstrap began."""

    type: Literal["history"] = "history"
    session: Id
    seq: Positive
    through: Positive


class Mark(Frame):
    """Asks where the heads stand now. ``marked`` comes after all that was committed before."""

    type: Literal["mark"] = "mark"
    id: Number


class Signal(Frame):
    """Ephemeral: delivered live to whoever has the session open, never stored, no seq."""

    type: Literal["signal"] = "signal"
    session: Id
    kind: Annotated[str, Field(max_length=255)]
    payload: Annotated[bytes, Field(max_length=64 << 10)]
    client: str = Field(default="", max_length=ID_CHARS_MAX)


# To the client.


class Welcome(Frame):
    """Signed in. ``clock`` is the server's time when it answered; limits are in bytes."""

    type: Literal["welcome"] = "welcome"
    version: Number = PROTOCOL_VERSION
    nonce: bytes
    store: Id
    epoch: Positive
    clock: Number
    op_bytes_max: Positive = OP_BYTES_MAX
    ahead_us_max: Number


class SessionItem(NamedTuple):
    """A session in a listing."""

    session: Id
    label: str
    epoch: Number
    seq: Number


class Sessions(Frame):
    """Sessions that this identity may open.

    ``page`` marks the answer to a ``list``, whose next page follows on request when ``more``;
    without it, these sessions appeared just now.
    """

    type: Literal["sessions"] = "sessions"
    items: Annotated[tuple[SessionItem, ...], Field(max_length=PAGE_ITEMS_MAX)]
    page: bool = False
    more: bool = False


class Opened(Frame):
    """How the two stand.

    ``catch_up``: entries follow from the cursor. ``bootstrap``: ask for a snapshot (the cursor is
    fresh, or below the log's floor: 3009). ``diverged``: find the common seq by ``compare`` (3015).
    ``last`` is the last number of this client that the server has settled or finally refused, and
    ``running`` the running hash there. ``head`` is the last seq, ``hash`` the chain there.
    """

    type: Literal["opened"] = "opened"
    session: Id
    stand: Literal["catch_up", "bootstrap", "diverged"]
    genesis: Digest
    epoch: Positive
    head: Number
    hash: Digest
    floor: Number
    last: Number
    running: Digest


class Entries(Frame):
    """A page of the log: entries from ``seq`` on, no hole; ``previous`` is the hash before."""

    type: Literal["entries"] = "entries"
    session: Id
    seq: Positive
    previous: Digest
    entries: Items


class Common(Frame):
    """The largest of the points asked about that both logs share; 0 when there is none."""

    type: Literal["common"] = "common"
    session: Id
    seq: Number


class SnapshotPage(Frame):
    """A page of a bootstrap.

    ``rows`` are ``[collection, id, seq, state]`` with the seq of the last entry that touched the
    record, ``conflicts`` are encoded conflicts, and ``entries`` are ``[hash, entry]`` of entries
    with events and of the client's own pending ops. ``(epoch, seq, hash)`` is the head when the
    page was read. ``after`` is the cursor of the next page, None on the last one, which also
    carries the session's ``vector``.
    """

    type: Literal["snapshot_page"] = "snapshot_page"
    session: Id
    epoch: Positive
    seq: Number
    hash: Digest
    rows: Annotated[
        tuple[tuple[str, str, Number, bytes], ...], Field(max_length=PAGE_ITEMS_MAX)
    ] = ()
    conflicts: Items = ()
    entries: Annotated[tuple[tuple[Digest, bytes], ...], Field(max_length=PAGE_ITEMS_MAX)] = ()
    after: bytes | None
    vector: dict[str, Number] | None = None


class HistoryPage(Frame):
    """Entries below the bootstrap, from ``seq`` on; ``previous`` is the hash before the first."""

    type: Literal["history_page"] = "history_page"
    session: Id
    seq: Positive
    previous: Digest
    entries: Items


class OpRefused(Frame):
    """An op was refused (see the error tree), or is a repeat.

    ``final`` says that the number ``n`` is consumed. When not final, the rest of this client's push
    is set aside unanswered and is to be sent again from ``n`` (3005: from ``detail["expected"]``).
    ``repeat`` carries the entry, with its seq and hash, of an op that is in the log already.
    """

    type: Literal["refused"] = "refused"
    session: Id
    n: Positive
    code: Number
    reason: Text = ""
    detail: Detail = Field(default_factory=dict)
    final: bool = False
    entry: bytes | None = None
    hash: Digest | None = None


class Marked(Frame):
    """Answers ``mark``: ``[session, epoch, seq]`` of every session open on this connection."""

    type: Literal["marked"] = "marked"
    id: Number
    heads: tuple[tuple[Id, Number, Number], ...]


class ErrorFrame(Frame):
    """Something other than an op was refused. ``session`` is None for the whole connection.

    ``retry_after_ms`` is how long to wait where the server knows.
    """

    type: Literal["error"] = "error"
    session: str | None = None
    code: Number
    reason: Text
    detail: Detail = Field(default_factory=dict)
    retry_after_ms: Number | None = None


ToServer = Hello | ListSessions | Open | Push | Compare | Snapshot | History | Mark | Signal
ToClient = (
    Welcome
    | Sessions
    | Opened
    | Entries
    | Common
    | SnapshotPage
    | HistoryPage
    | OpRefused
    | Marked
    | Signal
    | ErrorFrame
)

_to_server: TypeAdapter[ToServer] = TypeAdapter(Annotated[ToServer, Field(discriminator="type")])
_to_client: TypeAdapter[ToClient] = TypeAdapter(Annotated[ToClient, Field(discriminator="type")])

TO_SERVER_TYPES = frozenset(
    {"hello", "list", "open", "push", "compare", "snapshot", "history", "mark", "signal"}
)
TO_CLIENT_TYPES = frozenset(
    {
        "welcome",
        "sessions",
        "opened",
        "entries",
        "common",
        "snapshot_page",
        "history_page",
        "refused",
        "marked",
        "signal",
        "error",
    }
)


def encode_frame(frame: Frame) -> bytes:
    """The frame's bytes."""
    return pack(frame.model_dump())


def decode_to_server(data: bytes | str) -> ToServer | None:
    """The frame that a client sent; None for a type this version does not know.

    Raises MalformedFrame (3001).
    """
    raw = _frame_map(data, FRAME_ARRAY_MAX)
    return _valid(_to_server, raw) if raw["type"] in TO_SERVER_TYPES else None


def decode_to_client(data: bytes | str) -> ToClient | None:
    """The frame that a server sent; None for a type this version does not know.

    Raises MalformedFrame (3001).
    """
    raw = _frame_map(data, SESSION_CLIENTS_MAX)
    return _valid(_to_client, raw) if raw["type"] in TO_CLIENT_TYPES else None


def _frame_map(data: bytes | str, map_len_max: int) -> dict[str, Any]:
    if not isinstance(data, bytes):
        raise MalformedFrame("frames are binary, not text")
    raw = unpack(data, array_len_max=FRAME_ARRAY_MAX, map_len_max=map_len_max)
    if not isinstance(raw, dict) or not isinstance(raw.get("type"), str):
        raise MalformedFrame("a frame must be a map with a type")
    return raw


def _valid(adapter: TypeAdapter[Any], raw: dict[str, Any]) -> Any:
    try:
        return adapter.validate_python(_tupled(raw), strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise MalformedFrame(f"a frame of type {raw['type']}: {where}: {first['msg']}") from error


_TUPLED = frozenset({"ops", "points", "items", "entries", "rows", "conflicts", "heads"})


def _tupled(raw: dict[str, Any]) -> dict[str, Any]:
    """MessagePack has lists only; the models have tuples, and strict mode tells them apart."""
    return {
        key: tuple(tuple(item) if type(item) is list else item for item in value)
        if key in _TUPLED and type(value) is list
        else value
        for key, value in raw.items()
    }


def error_frame(error: SyncError, session: str | None = None) -> ErrorFrame:
    """The frame that tells a peer of this error."""
    return ErrorFrame(
        session=session, code=error.code, reason=error.reason[:4096], detail=dict(error.detail)
    )
