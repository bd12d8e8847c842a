"""The history file: JSON lines, gzipped or not, checked as a whole before anything is played.

The first line is a header with counts, which also tell when lines are missing:

    {"history": 1, "devices": 1, "records": 1, "writes": 1, "changes": 1, "syncs": 1}

Then, in the order of play, one of

    {"do": "write", "device": "d3", "at": 1433423779000,
     "changes": [["put", "path", {fields}], ["delete", "path"]]}
    {"do": "sync", "device": "d3"}

``at`` is what the device's clock said, in milliseconds since the Unix epoch; ``stamps``, where
``at`` is not exact, the time of each change in microseconds. There are also ``["patch", id,
{fields}]``, ``["event", type, {payload}]`` and ``["resolve", conflict id]``; the collection of a
record is ``files`` unless its change names one as its last item, and bytes are ``{"$bytes": hex}``.
``syncline record`` writes such files from real ones. Every error names the
line and says what is wrong with it.
"""

from __future__ import annotations

import gzip
import io
import os
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple, Self, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PlainValidator,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from syncline.sync import (
    NUMBER_MAX,
    OP_BYTES_MAX,
    RECORD_BYTES_MAX,
    BadHistory,
    NotFound,
    Refused,
    TooLarge,
    Value,
    check_collection,
    check_fields,
    check_id,
    check_name,
    check_record_id,
    pack,
)

LINE_BYTES_MAX = OP_BYTES_MAX
"""A line is one op: what is longer could not be written anyhow."""
AT_MS_MAX = NUMBER_MAX // 1000
COLLECTION = "files"
FORMS = (
    '["put", id, {fields}]',
    '["patch", id, {fields}]',
    '["delete", id]',
    '["event", type, {payload}]',
    '["resolve", conflict id]',
)

_GZIP = b"\x1f\x8b"
_T = TypeVar("_T")


class Put(NamedTuple):
    """The whole record ``id`` is written."""

    id: str
    fields: dict[str, Value]
    collection: str = COLLECTION


class Patch(NamedTuple):
    """Some fields of the record ``id`` are written."""

    id: str
    fields: dict[str, Value]
    collection: str = COLLECTION


class Delete(NamedTuple):
    """The record ``id`` is deleted."""

    id: str
    collection: str = COLLECTION


class Event(NamedTuple):
    """Something happened."""

    type: str
    payload: dict[str, Value]


class Resolve(NamedTuple):
    """The conflict is closed; a value that was put back is a change of its own."""

    conflict_id: str


Change = Put | Patch | Delete | Event | Resolve


def _read_change(row: Any) -> Change:
    match row:
        case [("put" | "patch") as kind, id_, dict(fields), *named] if len(named) < 2:
            _checked(check_record_id, id_)
            read = _read_fields(fields)
            collection = _read_collection(named)
            return Put(id_, read, collection) if kind == "put" else Patch(id_, read, collection)
        case ["delete", id_, *named] if len(named) < 2:
            return Delete(_checked(check_record_id, id_), _read_collection(named))
        case ["event", type_, dict(payload)]:
            return Event(
                _checked(lambda name: check_name(name, "event type"), type_), _read_fields(payload)
            )
        case ["resolve", str(conflict)]:
            return Resolve(conflict)
    raise ValueError(f"it is none of {', '.join(FORMS)}")


def _read_collection(named: list[Any]) -> str:
    return _checked(check_collection, named[0]) if named else COLLECTION


def _read_fields(fields: dict[str, Any]) -> dict[str, Value]:
    read = {name: _read_value(value) for name, value in fields.items()}
    _checked(_check_fields, read)
    return read


def _read_value(value: Any) -> Value:
    match value:
        case {"$bytes": str(text), **rest} if not rest:
            return bytes.fromhex(text)
        case dict():
            return {name: _read_value(inner) for name, inner in value.items()}
        case list():
            return [_read_value(inner) for inner in value]
    return value


def _check_fields(fields: Any) -> None:
    size = len(pack(check_fields(fields)))
    if size > RECORD_BYTES_MAX:
        raise TooLarge(f"the fields have {size} bytes, the most is {RECORD_BYTES_MAX}")


def _read_device(name: Any) -> str:
    return _checked(lambda value: check_id(value, "device"), name)


def _checked(check: Callable[[Any], _T], value: Any) -> _T:
    try:
        return check(value)
    except Refused as error:
        raise ValueError(error.reason) from error


_Device = Annotated[str, PlainValidator(_read_device)]
_Count = Annotated[int, Field(ge=0)]


class _Line(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class _Header(_Line):
    history: Literal[1]
    devices: _Count
    records: _Count
    writes: _Count
    changes: _Count
    syncs: _Count


class Write(_Line):
    """A device writes, atomically."""

    do: Literal["write"]
    device: _Device
    at: Annotated[int, Field(ge=0, le=AT_MS_MAX)]
    changes: Annotated[list[Annotated[Change, PlainValidator(_read_change)]], Field(min_length=1)]
    stamps: list[Annotated[int, Field(ge=0, lt=NUMBER_MAX)]] | None = None

    @model_validator(mode="after")
    def _one_stamp_each(self) -> Self:
        if self.stamps is not None and len(self.stamps) != len(self.changes):
            raise ValueError("there is one stamp for each change, or none")
        return self

    @property
    def dated(self) -> Iterator[tuple[Change, int]]:
        """Each change with its time in microseconds."""
        stamps = self.stamps or [self.at * 1000] * len(self.changes)
        return zip(self.changes, stamps, strict=True)


class Sync(_Line):
    """A device comes online, sends all it has, takes all there is, and goes offline again."""

    do: Literal["sync"]
    device: _Device


Step = Write | Sync
_STEP: TypeAdapter[Step] = TypeAdapter(Annotated[Step, Field(discriminator="do")])
_HEADER: TypeAdapter[_Header] = TypeAdapter(_Header)


@dataclass(frozen=True, slots=True)
class History:
    """A history that holds. ``devices`` are in the order in which they first do something."""

    steps: tuple[Step, ...]
    devices: tuple[str, ...]
    writes: int
    changes: int
    syncs: int


def read_history(path: str | os.PathLike[str]) -> History:
    """Read and check a whole history. Raises NotFound (3113) or BadHistory (3110)."""
    lines = _lines(path)
    first = next(lines, None)
    if first is None:
        raise BadHistory(f"{path} is empty: its first line must be a header", path=str(path))
    header = _parse(_HEADER, path, *first)
    steps = tuple(_parse(_STEP, path, number, line) for number, line in lines)
    writes = [step for step in steps if isinstance(step, Write)]
    history = History(
        steps=steps,
        devices=tuple(dict.fromkeys(step.device for step in steps)),
        writes=len(writes),
        changes=sum(len(write.changes) for write in writes),
        syncs=len(steps) - len(writes),
    )
    found = {
        "devices": len(history.devices),
        "records": len(
            {
                (change.collection, change.id)
                for write in writes
                for change in write.changes
                if isinstance(change, Put | Patch | Delete)
            }
        ),
        "writes": history.writes,
        "changes": history.changes,
        "syncs": history.syncs,
    }
    for name, count in found.items():
        promised = getattr(header, name)
        if promised != count:
            raise _bad(path, 1, f"the header says {promised} {name}, but the file has {count}")
    return history


def _lines(path: str | os.PathLike[str]) -> Iterator[tuple[int, bytes]]:
    """The lines with their numbers, from 1."""
    number = 0
    try:
        with open(path, "rb") as file, _plain(file) as text:
            while line := text.readline(LINE_BYTES_MAX + 1):
                number += 1
                if len(line) > LINE_BYTES_MAX:
                    raise _bad(path, number, f"it is longer than {LINE_BYTES_MAX} bytes")
                yield number, line
    except FileNotFoundError as error:
        raise NotFound(f"there is no history {path}", path=str(path)) from error
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise _bad(path, number + 1, f"the gzip data is broken: {error}") from error


def _plain(file: io.BufferedReader) -> gzip.GzipFile | io.BufferedReader:
    zipped = file.peek(len(_GZIP))[: len(_GZIP)] == _GZIP
    return gzip.open(file) if zipped else file


def _parse(adapter: TypeAdapter[_T], path: str | os.PathLike[str], number: int, line: bytes) -> _T:
    try:
        return adapter.validate_json(line)
    except ValidationError as error:
        raise _bad(path, number, _reason(error)) from error


def _reason(error: ValidationError) -> str:
    """The first thing that is wrong, and where."""
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    place = ".".join(str(part) for part in first["loc"] if part not in ("write", "sync"))
    message = first["msg"].removeprefix("Value error, ")
    return f"{place}: {message}" if place else message


def _bad(path: str | os.PathLike[str], number: int, reason: str) -> BadHistory:
    return BadHistory(f"{path}, line {number}: {reason}", path=str(path), line=number)
