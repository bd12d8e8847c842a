"""The usual forms of what travels, each decoded and checked in one step by a typed decoder.

Nearly every op is one put or patch of plain fields, and every entry and most states have one
shape. A form takes these at the speed of C, and leaves the rest (nested values, bytes, what another
encoder chose, and all that is wrong) to the general decoder, ``unpack``, which takes more and says
what is the matter. So a form may be narrower than what the protocol allows, and never wider.

Where a form has maps, only the bytes that this encoder would make of the value are taken: what
names a key twice comes out shorter.
"""

from __future__ import annotations

from typing import Annotated, Any, Generic, TypeVar

import msgspec

from ._vectors import NUMBER_MAX

T = TypeVar("T")

FLOAT_MAX = 1.7976931348623157e308

Number = Annotated[int, msgspec.Meta(ge=1, le=NUMBER_MAX)]
"""Counts ops and entries."""
Time = Annotated[int, msgspec.Meta(ge=0, le=NUMBER_MAX)]
"""Microseconds since the Unix epoch."""
Salt = Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]
Digest = Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]
Integer = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
Finite = Annotated[float, msgspec.Meta(ge=-FLOAT_MAX, le=FLOAT_MAX)]
PlainFields = dict[str, None | bool | Integer | Finite | str]
"""Fields whose values hide nothing: no bytes, no lists, no maps."""

_encode = msgspec.msgpack.Encoder().encode


class Form(Generic[T]):
    """A type, and the bytes that have it."""

    def __init__(self, type_: Any) -> None:
        self._decode = msgspec.msgpack.Decoder(type_).decode

    def read(self, data: bytes) -> T | None:
        """The value of these bytes; None when they are not of this form."""
        try:
            value: T = self._decode(data)
        except (msgspec.DecodeError, RecursionError):
            return None
        return value

    def read_canonical(self, data: bytes) -> T | None:
        """The same, but None also for bytes that ``pack`` would not have made of the value."""
        value = self.read(data)
        return value if value is None or _encode(value) == data else None
