"""Ids and names: their types, their limits and the checks at the boundary.

Ids of clients and sessions go into file names, addresses and logs, hence a narrow alphabet.
Collections, record ids, fields and event types are the app's own words: any text of valid Unicode
within a size. What begins with ``$`` is Syncline's own (but for record ids, which are free).
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NewType

from ._errors import InvalidValue

ClientId = NewType("ClientId", str)
SessionId = NewType("SessionId", str)
Collection = NewType("Collection", str)
RecordId = NewType("RecordId", str)
Seq = NewType("Seq", int)
OpNumber = NewType("OpNumber", int)
Micros = NewType("Micros", int)
"""Whole microseconds since the Unix epoch, UTC."""

ID_CHARS_MAX = 64
NAME_BYTES_MAX = 255
RECORD_ID_BYTES_MAX = 1024

HEADER_COLLECTION = Collection("$session")
HEADER_ID = RecordId("header")
AGENT_MESSAGES = Collection("agent_messages")
AGENT_DATA = Collection("agent_data")
RUNTIME_COLLECTIONS = frozenset({HEADER_COLLECTION, AGENT_MESSAGES, AGENT_DATA})
"""What the session runtime keeps in a session's records (see ``sessions``)."""
CHECKPOINT_COLLECTION = Collection("$checkpoint")
OWN_COLLECTIONS = frozenset({HEADER_COLLECTION, CHECKPOINT_COLLECTION})
"""The collections of Syncline's own that records can be written to."""

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def is_id(value: object) -> bool:
    """Whether ``value`` can be the id of a client or a session."""
    return isinstance(value, str) and len(value) <= ID_CHARS_MAX and _is_id(value)


@lru_cache(4096)
def _is_id(text: str) -> bool:
    return _ID.fullmatch(text) is not None


def check_id(value: object, what: str) -> str:
    """``value`` as an id of a client or a session. Raises InvalidValue (3019)."""
    if not isinstance(value, str) or not is_id(value):
        raise InvalidValue(
            f"{what} {_shown(value)} is not an id: 1 to {ID_CHARS_MAX} letters, digits, "
            "'_' or '-', the first a letter or digit",
            what=what,
        )
    return value


def check_name(
    value: object, what: str, *, own: bool = False, bytes_max: int = NAME_BYTES_MAX
) -> str:
    """``value`` as a name of a collection, a field or an event type. Raises InvalidValue (3019).

    ``own`` allows names that begin with ``$``, which are Syncline's.
    """
    if not isinstance(value, str):
        raise InvalidValue(f"{what} must be text, not {type(value).__name__}", what=what)
    if type(value) is not str:
        value = str.__str__(value)  # Of a type of its own, it has no MessagePack bytes.
    if value.isascii() and value.isprintable() and 0 < len(value) <= bytes_max:
        if value[0] != "$" or own:
            return value
    if not value:
        raise InvalidValue(f"{what} must not be empty", what=what)
    try:
        size = len(value) if value.isascii() else len(value.encode())
    except UnicodeEncodeError as error:
        raise InvalidValue(f"{what} {_shown(value)} is not valid Unicode", what=what) from error
    if size > bytes_max:
        raise InvalidValue(
            f"{what} {_shown(value)} has {size} bytes, the most is {bytes_max}", what=what
        )
    if _CONTROL.search(value) is not None:
        raise InvalidValue(f"{what} {_shown(value)} has a control character in it", what=what)
    if value[0] == "$" and not own:
        raise InvalidValue(
            f"{what} {_shown(value)} is reserved: names that begin with '$' are Syncline's own",
            what=what,
        )
    return value


def check_record_id(value: object) -> RecordId:
    """``value`` as the id of a record. Raises InvalidValue (3019)."""
    return RecordId(check_name(value, "record id", own=True, bytes_max=RECORD_ID_BYTES_MAX))


def _shown(value: object) -> str:
    text = ascii(value)
    return text if len(text) <= 60 else text[:57] + "..."
