"""Bytes, values and hashes, written again from the format alone.

Every hash is SHA-256 over a two-letter tag and its parts:

    op digest      "op" salt body
    effects digest "ef" salt effects
    entry hash     "en" previous header op-digest effects-digest
    genesis        "ge" [store id, epoch at creation, session id]
    running hash   "ru" previous n-as-8-bytes op-digest
    conflict id    "co" [client, n, collection, record id, field], the first 20 hex digits
    ledger hash    "le" previous row
    identity       "id" salt identity

All lists are MessagePack. What is malformed raises ValueError with a phrase that fits behind the
name of the row it was found in.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import msgpack

HASH_BYTES = 32
SALT_BYTES = 16
NO_HASH = bytes(HASH_BYTES)
NUMBER_MAX = 2**63 - 1

Stamp = tuple[int, str, int]
Vector = dict[str, int]

MALFORMED = (ValueError, TypeError, RecursionError, OverflowError)
"""What hostile bytes can raise on their way through this package."""


def pack(value: object) -> bytes:
    """MessagePack bytes, maps in the order given."""
    packed: bytes = msgpack.packb(value, use_bin_type=True)
    return packed


def canonical(value: object) -> bytes:
    """MessagePack bytes with every map in the order of its keys."""
    return pack(_in_order(value))


def _in_order(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _in_order(inner) for key, inner in sorted(value.items())}
    if isinstance(value, (list, tuple)):
        return [_in_order(inner) for inner in value]
    return value


def _text_keys_once(pairs: list[tuple[Any, Any]]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for key, value in pairs:
        if type(key) is not str or key in made:
            raise ValueError("a map names a key twice or by other than text")
        made[key] = value
    return made


def _no_extension(code: int, data: bytes) -> Any:
    raise ValueError(f"extension type {code}")


def decode(data: object) -> Any:
    """One MessagePack value."""
    if type(data) is not bytes:
        raise ValueError("is not a BLOB")
    try:
        return msgpack.unpackb(
            data,
            raw=False,
            strict_map_key=True,
            object_pairs_hook=_text_keys_once,
            ext_hook=_no_extension,
        )
    except (*MALFORMED, msgpack.UnpackException) as error:
        raise ValueError(f"is not MessagePack ({error or type(error).__name__})") from error


def decode_exact(data: object) -> Any:
    """One value whose bytes are the only ones that it can have (its maps' order apart).

    A number can be written in several widths, and hashes are over the shortest: without this
    check, a byte could change and no hash would notice.
    """
    value = decode(data)
    if pack(value) != data:
        raise ValueError("is not written in its shortest form")
    return value


def need(fine: bool, problem: str) -> None:
    """Raise ValueError with ``problem`` unless ``fine``."""
    if not fine:
        raise ValueError(problem)


def is_number(value: object, least: int = 1) -> bool:
    return type(value) is int and least <= value <= NUMBER_MAX


def read_stamp(value: Any) -> Stamp:
    need(
        type(value) in (list, tuple)
        and len(value) == 3
        and is_number(value[0], 0)
        and type(value[1]) is str
        and is_number(value[2]),
        "holds a stamp of the wrong shape",
    )
    return value[0], value[1], value[2]


def read_vector(value: Any) -> Vector:
    need(
        type(value) is dict and all(is_number(n) for n in value.values()),
        "holds a version vector of the wrong shape",
    )
    vector: Vector = value
    return vector


def digest(tag: bytes, *parts: bytes) -> bytes:
    return sha256(tag + b"".join(parts)).digest()


def op_digest(salt: bytes, body: bytes) -> bytes:
    return digest(b"op", salt, body)


def running_after(previous: bytes, n: int, of_op: bytes) -> bytes:
    return digest(b"ru", previous, n.to_bytes(8, "big"), of_op)


def genesis(store_id: str, epoch: int, session: str) -> bytes:
    return digest(b"ge", pack([store_id, epoch, session]))


def conflict_id(loser: Stamp, collection: str, record_id: str, field: str) -> str:
    return digest(b"co", pack([loser[1], loser[2], collection, record_id, field])).hex()[:20]
