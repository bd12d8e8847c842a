"""Hostile bytes: random ones, broken ones, and those that are almost right.

Everything comes from the ``random.Random`` given, so that a seed names a run. What is almost right
does most of the finding: a frame that both ends would accept, with one thing changed somewhere in
it, also inside of the bytes that travel in it (ops, bodies, entries, effects, states).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import msgpack

from syncline.sync import FRAME_BYTES_BEFORE_SIGN_IN_MAX

HOLE = b"\xde\xad\xbe\xef" * 2
"""Stands in a tree for bytes that no encoder would make; see ``pack``."""

TEXTS = (
    "",
    "a",
    "$",
    "$session",
    "$alive",
    "notes",
    "header",
    "label",
    "x" * 65,
    "x" * 256,
    "x" * 1025,
    "\x00",
    "a\nb",
    "é",
    "\u2028",
    "🦀" * 20,
    "\ud800",
    '"; DROP TABLE syncline_outbox; --',
    "ann/../bob",
)
NUMBERS = (
    -1,
    0,
    1,
    2,
    3,
    255,
    2**31,
    2**32,
    2**53 + 1,
    2**62,
    2**63 - 1,
    2**63,
    2**64 - 1,
    -(2**63),
)
BLOBS = (b"", b"\x00", b"\xc0", b"\x90", b"\x80", b"\xc1", b"\xff" * 16, bytes(32), b"\x01" * 33)
ODD: tuple[Any, ...] = (
    None,
    True,
    False,
    0.0,
    -0.0,
    1.5,
    float("nan"),
    float("inf"),
    [],
    {},
    [[]],
    [None] * 70,
    {"": None},
    {"type": "push"},
    msgpack.Timestamp(1, 2),
    msgpack.ExtType(5, b"ext"),
)
RAW = (
    b"\x91" * 70 + b"\xc0",
    b"\x91" * 1000 + b"\xc0",
    b"\x91" * 20_000 + b"\xc0",
    b"\x81\xa1a" * 300 + b"\xc0",
    b"\x81\xa1a" * 20_000 + b"\xc0",
    b"\x82\xa1a\x01\xa1a\x02",
    b"\x81\x01\x02",
    b"\x81\xc4\x01a\x02",
    b"\xa2\xff\xfe",
    b"\xdd\xff\xff\xff\xff",
    b"\xdf\xff\xff\xff\xff",
    b"\xdc\xff\xff" + b"\xc0" * 0xFFFF,
    b"\xdb\xff\xff\xff\xffx",
    b"\xc6\xff\xff\xff\xffx",
    b"\xc1",
)


def pack(tree: Any, raw: bytes | None = None) -> bytes:
    """MessagePack bytes of a tree with anything in it; ``raw`` is put into its hole."""
    try:
        data: bytes = msgpack.packb(tree, use_bin_type=True, unicode_errors="surrogatepass")
    except (ValueError, OverflowError, RecursionError):
        return b"\xc1"  # Too deep or too large even for the encoder.
    return data if raw is None else data.replace(b"\xc4\x08" + HOLE, raw)


def unpack(data: bytes) -> Any:
    """The tree of bytes, or None when they are not those of a list or map."""
    try:
        tree = msgpack.unpackb(data, raw=False, strict_map_key=False)
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException):
        return None
    return tree if isinstance(tree, list | dict) else None


def odd_value(rng: random.Random) -> Any:
    """A value that is out of place almost everywhere."""
    return rng.choice(rng.choice((TEXTS, NUMBERS, BLOBS, ODD, (HOLE,))))


def mutate_bytes(rng: random.Random, data: bytes) -> bytes:
    """Bits flipped, bytes cut, doubled, put in, or taken from elsewhere."""
    made = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 8))):
        at = rng.randrange(len(made) + 1)
        match rng.randrange(6):
            case 0 if made:
                made[at % len(made)] ^= 1 << rng.randrange(8)
            case 1:
                del made[at:]
            case 2:
                made[at:at] = rng.randbytes(rng.choice((1, 2, 9)))
            case 3 if made:
                made[at % len(made)] = rng.choice(b"\x00\x80\x90\xa0\xc0\xc1\xc4\xdb\xdd\xdf\xff")
            case 4:
                del made[at : at + rng.choice((1, 4, 64))]
            case _:
                other = rng.randrange(len(made) + 1)
                made[at:at] = made[other : other + 32]
    return bytes(made)


def _mutate_number(rng: random.Random, number: int) -> int:
    near = number + rng.choice((-1, 1, 2, -2))
    return rng.choice((near, near, -number, rng.choice(NUMBERS)))


def mutate(rng: random.Random, node: Any) -> Any:
    """A tree with one thing changed somewhere in it."""
    if isinstance(node, list | dict) and node and rng.random() < 0.85:
        keys = list(node) if isinstance(node, dict) else range(len(node))
        key = keys[rng.randrange(len(keys))]
        made: Any = node.copy()
        match rng.randrange(12):
            case 0:
                del made[key]
            case 1:
                made[key] = made[keys[rng.randrange(len(keys))]]
            case 2 if isinstance(made, list):
                made.insert(key, made[key])
            case 2 | 3:
                name = rng.choice(TEXTS)
                if isinstance(made, dict):
                    made[name] = odd_value(rng)
                else:
                    made.append(odd_value(rng))
            case _:
                made[key] = mutate(rng, made[key])
        return made
    if isinstance(node, bytes):
        inner = unpack(node) if len(node) > 1 else None
        if inner is not None and rng.random() < 0.9:
            return pack(mutate(rng, inner), rng.choice(RAW))
        if node and rng.random() < 0.7:
            return mutate_bytes(rng, node)
    if type(node) is int and rng.random() < 0.7:
        return _mutate_number(rng, node)
    return odd_value(rng)


def twist(rng: random.Random, node: Any) -> Any:
    """A tree with one leaf changed into another of its type: most decoders find nothing wrong."""
    match node:
        case dict() if node:
            key = rng.choice(list(node))
            return {**node, key: twist(rng, node[key])}
        case list() if node:
            at = rng.randrange(len(node))
            if rng.random() < 0.15:
                return node[:at] + rng.choice(([], [node[at]] * 2)) + node[at + 1 :]
            return [*node[:at], twist(rng, node[at]), *node[at + 1 :]]
        case bytes() if (inner := unpack(node)) is not None:
            return pack(twist(rng, inner) if rng.random() < 0.7 else mutate(rng, inner))
        case bytes() if node:
            at = rng.randrange(len(node))
            return node[:at] + bytes([node[at] ^ (1 << rng.randrange(8))]) + node[at + 1 :]
        case bool():
            return not node
        case int():
            return _mutate_number(rng, node)
        case str():
            return rng.choice((*TEXTS, "r1", "r2", "s1", "s2", "ann", "victim", "a", "b"))
        case None:
            return rng.choice((None, bytes(32), 1))
    return odd_value(rng)


def spoil(rng: random.Random, data: bytes) -> bytes | str:
    """A frame that was good, and is so no more, or perhaps still is."""
    kind = rng.random()
    if kind < 0.4:
        tree = unpack(data)
        if isinstance(tree, dict) and len(tree) > 1:
            # Its type and session stay, so that it gets further in.
            key = rng.choice([k for k in tree if k not in ("type", "session")] or ["type"])
            return pack({**tree, key: twist(rng, tree[key])}, rng.choice(RAW))
    if kind < 0.8:
        tree = unpack(data)
        if tree is not None:
            for _ in range(rng.choice((1, 1, 1, 2, 3))):
                tree = mutate(rng, tree)
            return pack(tree, rng.choice(RAW))
    if kind < 0.95:
        return mutate_bytes(rng, data)
    return garbage(rng)


def garbage(rng: random.Random) -> bytes | str:
    """Something that never was a frame."""
    makers: tuple[Callable[[], bytes | str], ...] = (
        lambda: rng.randbytes(rng.choice((0, 1, 5, 40, 300))),
        lambda: rng.choice(RAW),
        lambda: pack(odd_value(rng), rng.choice(RAW)),
        lambda: pack({"type": rng.choice(TEXTS), "x": odd_value(rng)}, rng.choice(RAW)),
        lambda: "text " + rng.choice(TEXTS),
        lambda: rng.choice((b"\xc0", b"\x91", b"\xff")) * FRAME_BYTES_BEFORE_SIGN_IN_MAX,
    )
    return rng.choices(makers, (8, 4, 4, 6, 2, 1))[0]()
