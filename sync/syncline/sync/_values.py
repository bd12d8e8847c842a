"""Values: what a field may hold, checked where it enters, and its canonical bytes.

Null, bool, 64-bit signed integers, finite floats, text of valid Unicode, bytes, lists and
string-keyed maps, at most ``VALUE_DEPTH_MAX`` deep. What goes in comes out equal and of the same
type, so nothing is coerced: a tuple, an int subclass or a NaN is refused with its path.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import msgpack
import msgspec

from ._errors import InvalidValue, MalformedFrame
from ._names import check_name

Value = Any
"""None | bool | int | float | str | bytes | list[Value] | dict[str, Value]."""

VALUE_DEPTH_MAX = 64
KEY_BYTES_MAX = 1024
INT_MIN, INT_MAX = -(2**63), 2**63 - 1


def check_fields(fields: object) -> dict[str, Value]:
    """``fields`` as the fields of a record: names to values. Raises InvalidValue (3019).

    The error's ``detail["path"]`` names the offending value, for example ``tags[2].label``.
    """
    if type(fields) is not dict:
        raise InvalidValue(f"fields must be a dict, not {type(fields).__name__}", path="")
    check_field_names(fields)
    for name, value in fields.items():
        kind = type(value)
        if kind is bool or (kind is str and value.isascii()):
            continue
        check_value(value, name)
    return fields


GOOD_SHAPES_MAX = 1024
GOOD_SHAPE_FIELDS_MAX = 64
_good_shapes: set[tuple[object, ...]] = set()
"""Field names of records that passed their check: an app has few, and writes them all the time."""


def check_field_names(fields: Mapping[Any, object]) -> None:
    """Raises InvalidValue (3019) unless all keys can be names of fields."""
    shape = tuple(fields)
    if shape in _good_shapes:
        return
    for name in shape:
        check_name(name, "field name")
    if len(shape) <= GOOD_SHAPE_FIELDS_MAX:
        if len(_good_shapes) >= GOOD_SHAPES_MAX:
            _good_shapes.clear()
        _good_shapes.add(shape)


def check_value(value: object, path: str = "", depth: int = 1) -> None:
    """Raises InvalidValue (3019) unless ``value`` is one that a field may hold."""
    kind = type(value)
    if value is None or kind is bool or kind is bytes:
        return
    if kind is str:
        _check_text(value, path, "text")  # type: ignore[arg-type]
    elif kind is int:
        if not INT_MIN <= value <= INT_MAX:  # type: ignore[operator]
            raise _bad(path, "is an integer beyond 64 signed bits")
    elif kind is float:
        if not math.isfinite(value):  # type: ignore[arg-type]
            raise _bad(path, f"is {value}, and floats must be finite")
    elif kind is list or kind is dict:
        _check_inner(value, path, depth)
    else:
        raise _bad(
            path,
            f"is of type {kind.__name__}; allowed are None, bool, int, float, str, bytes, "
            "list and dict",
        )


_SHALLOW: frozenset[type] = frozenset({str, int, bool, bytes, type(None)})
_TEXT: frozenset[type] = frozenset({str})


def check_decoded(values: Collection[object]) -> None:
    """Raises InvalidValue (3019) for what the decoder lets through and nothing here can handle.

    For values of records and entries, which were checked when they were written.
    """
    if not _SHALLOW.issuperset(map(type, values)):
        for value in values:
            check_value(value)


def are_names(names: Iterable[object]) -> bool:
    """Whether all of these are text; maps from outside may have bytes for keys as well."""
    return _TEXT.issuperset(map(type, names))


def _check_inner(value: Any, path: str, depth: int) -> None:
    if depth >= VALUE_DEPTH_MAX:
        raise _bad(path, f"is nested more than {VALUE_DEPTH_MAX} deep")
    if type(value) is list:
        for index, item in enumerate(value):
            check_value(item, f"{path}[{index}]", depth + 1)
        return
    for key, item in value.items():
        if type(key) is not str:
            raise _bad(path, f"has a key of type {type(key).__name__}; keys must be text")
        inner = f"{path}.{key}" if path else key
        _check_text(key, inner, "a key")
        if len(key if key.isascii() else key.encode()) > KEY_BYTES_MAX:
            raise _bad(path, f"has a key of more than {KEY_BYTES_MAX} bytes")
        check_value(item, inner, depth + 1)


def _check_text(text: str, path: str, what: str) -> None:
    if text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise _bad(path, f"has {what} that is not valid Unicode (a lone surrogate)") from error


def _bad(path: str, problem: str) -> InvalidValue:
    shown = ascii(path)[1:-1] if not path.isprintable() else path
    shown = shown if len(shown) <= 120 else shown[:60] + "..." + shown[-57:]
    return InvalidValue(f"the value at '{shown}' {problem}", path=shown)


pack = msgspec.msgpack.Encoder().encode
"""MessagePack bytes of plain data, keys in the order given."""


def canonical(value: Value) -> bytes:
    """The canonical bytes of a value: maps in the order of their keys, at every depth."""
    return pack(_sorted(value))


def same(a: Value, b: Value) -> bool:
    """Whether two values are equal and of the same types (``1`` is not ``True`` or ``1.0``)."""
    if type(a) is not type(b):
        return False
    if type(a) in (str, int, bytes, bool, type(None)):
        return bool(a == b)
    return canonical(a) == canonical(b)


def _sorted(value: Value) -> Value:
    if type(value) is dict:
        return {key: _sorted(value[key]) for key in sorted(value)}
    if type(value) is list:
        return [_sorted(item) for item in value]
    return value


def _refuse_extension(code: int, data: bytes) -> Any:
    raise ValueError(f"MessagePack extension type {code} is not allowed")


def _unique(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    """A map from its pairs; the library alone would keep the last of two equal keys."""
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("a map names a key twice")
    return made


def unpack(data: bytes, *, array_len_max: int = -1, map_len_max: int = -1) -> Any:
    """Decode one MessagePack value from outside. Raises MalformedFrame (3001).

    Without limits, no list or map may claim more items than ``data`` has bytes for.
    Refuses extension types, duplicate keys, keys that are not text and trailing bytes. What the
    decoder itself lets through (timestamps, NaN, integers of 64 unsigned bits, depth) is refused
    by ``check_value`` where values are read, and by the field types where frames are.
    """
    try:
        return msgpack.unpackb(
            data,
            raw=False,
            strict_map_key=True,
            object_pairs_hook=_unique,
            ext_hook=_refuse_extension,
            max_array_len=array_len_max,
            max_map_len=map_len_max,
        )
    # The decoder has no closed set of errors: ValueError and its kin, UnicodeDecodeError,
    # and RecursionError or TypeError for hostile nesting.
    except (ValueError, TypeError, RecursionError, OverflowError, msgpack.UnpackException) as error:
        raise MalformedFrame(f"not one MessagePack value: {_reason(error)}") from error


def _reason(error: BaseException) -> str:
    text = str(error) or type(error).__name__
    return text if len(text) <= 200 else text[:197] + "..."


def copy_fields(fields: Mapping[str, Value]) -> dict[str, Value]:
    """A copy that shares no list or map with ``fields``, so that nobody edits state by accident."""
    return {name: _copied(value) for name, value in fields.items()}


def _copied(value: Value) -> Value:
    if type(value) is dict:
        return {key: _copied(item) for key, item in value.items()}
    if type(value) is list:
        return [_copied(item) for item in value]
    return value
