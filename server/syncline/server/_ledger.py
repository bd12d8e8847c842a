"""The audit ledger: an append-only chain of rows beside the log.

    identity digest = H("id" salt identity)        identity: packed, salt: 16 random bytes
    row             = pack([n, at, kind, session, facts, identity digest])
    hash            = H("le" previous row)          previous of the first row: 32 zero bytes

H is SHA-256. ``n`` is dense from 1. Whoever a row speaks of stands, with the salt, in a side table
that can be cleared: the chain stays valid, and without the salt nobody can guess who it was.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from hashlib import sha256
from typing import NamedTuple

from syncline.sync import NO_HASH, SALT_BYTES, Damaged, MalformedFrame, pack, unpack

from ._store import LedgerRow, SealedRow

LEDGER_GENESIS = NO_HASH
"""The hash before the first row."""


class Sealing(NamedTuple):
    """A sealed row with what goes into the side table."""

    sealed: SealedRow
    salt: bytes
    identity: bytes


def seal(rows: Iterable[LedgerRow], last: SealedRow | None) -> Iterator[Sealing]:
    """Number and hash ``rows``, from the ledger's last row on."""
    n, previous = (0, LEDGER_GENESIS) if last is None else (last.n, last.hash)
    for row in rows:
        n += 1
        salt, identity = os.urandom(SALT_BYTES), pack(dict(row.identity))
        sealed = pack(
            [n, row.at, row.kind, row.session, dict(row.facts), identity_digest(salt, identity)]
        )
        previous = ledger_hash(previous, sealed)
        yield Sealing(SealedRow(n, previous, sealed), salt, identity)


def ledger_hash(previous: bytes, row: bytes) -> bytes:
    """The ledger's hash at a row."""
    return sha256(b"le" + previous + row).digest()


def identity_digest(salt: bytes, identity: bytes) -> bytes:
    """What a row keeps of an identity."""
    return sha256(b"id" + salt + identity).digest()


def check_ledger(
    rows: Iterable[SealedRow], identities: Mapping[int, tuple[bytes, bytes]] | None = None
) -> int:
    """Walk the whole ledger and return its length. Raises Damaged (3102), naming the row.

    ``identities`` are salt and identity by ``n``, for those rows whose identity was not cleared.
    """
    n, previous = 0, LEDGER_GENESIS
    for sealed in rows:
        n += 1
        if sealed.n != n:
            raise Damaged(f"ledger row {n} is missing", n=n)
        previous = ledger_hash(previous, sealed.row)
        if sealed.hash != previous:
            raise Damaged(f"ledger row {n} was changed after it was written", n=n)
        digest = _digest_of(sealed)
        known = (identities or {}).get(n)
        if known is not None and identity_digest(*known) != digest:
            raise Damaged(f"the identity of ledger row {n} was changed", n=n)
    return n


def _digest_of(sealed: SealedRow) -> bytes:
    try:
        row = unpack(sealed.row)
    except MalformedFrame as error:
        raise Damaged(f"ledger row {sealed.n} is not readable", n=sealed.n) from error
    match row:
        case [int(n), int(), str(), str(), dict(), bytes(digest)] if n == sealed.n:
            return digest
    raise Damaged(f"ledger row {sealed.n} has the wrong shape", n=sealed.n)
