"""The audit ledger: its chain finds any edit, its triggers refuse edits in the first place."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest

from syncline.server._ledger import LEDGER_GENESIS, Sealing, check_ledger, seal
from syncline.server._sqlite_store import SqliteStore
from syncline.server._store import LedgerRow, SealedRow
from syncline.sync import Damaged, pack

ROWS = [
    LedgerRow("lost", 1_000, "s", {"seq": 1, "field": "title"}, {"client": "ann"}),
    LedgerRow("refusal", 2_000, "s", {"code": 3019}, {"client": "bob", "principal": "Bob"}),
    LedgerRow("restore", 3_000, "", {"from": 1, "to": 2}, {}),
]

Identities = dict[int, tuple[bytes, bytes]]


def sealed_rows() -> tuple[list[SealedRow], Identities]:
    sealings = list(seal(ROWS, None))
    return [made.sealed for made in sealings], identities_of(sealings)


def identities_of(sealings: list[Sealing]) -> Identities:
    return {made.sealed.n: (made.salt, made.identity) for made in sealings}


def test_the_bytes_and_hashes_are_those_of_the_format() -> None:
    (first, second) = seal(ROWS[:2], None)
    identity = pack({"client": "ann"})
    digest = sha256(b"id" + first.salt + identity).digest()
    row = pack([1, 1_000, "lost", "s", {"seq": 1, "field": "title"}, digest])
    assert (len(first.salt), first.identity) == (16, identity)
    assert first.sealed == SealedRow(1, sha256(b"le" + bytes(32) + row).digest(), row)
    assert second.sealed.hash == sha256(b"le" + first.sealed.hash + second.sealed.row).digest()
    assert LEDGER_GENESIS == bytes(32)


def test_sealing_goes_on_from_the_last_row() -> None:
    first = [made.sealed for made in seal(ROWS[:1], None)]
    rest = [made.sealed for made in seal(ROWS[1:], first[-1])]
    assert check_ledger(first + rest) == 3


def test_the_same_identity_has_another_digest_each_time() -> None:
    first, second = (next(seal(ROWS, None)).sealed for _ in range(2))
    assert first.row[-32:] != second.row[-32:]


def test_an_untouched_ledger_verifies_also_when_identities_were_cleared() -> None:
    rows, identities = sealed_rows()
    assert check_ledger(rows, identities) == 3
    del identities[2]
    assert check_ledger(rows, identities) == 3
    assert check_ledger(rows) == 3
    assert check_ledger([]) == 0


def test_any_flipped_bit_is_found() -> None:
    rows, identities = sealed_rows()
    tried = 0
    for index, good in enumerate(rows):
        changed_rows = [good._replace(hash=flipped) for flipped in flips(good.hash)]
        changed_rows += [good._replace(row=flipped) for flipped in flips(good.row)]
        for bad in changed_rows:
            with pytest.raises(Damaged, match=f"ledger row {good.n}"):
                check_ledger([*rows[:index], bad, *rows[index + 1 :]], identities)
            tried += 1
        salt, identity = identities[good.n]
        changed = [(s, identity) for s in flips(salt)] + [(salt, i) for i in flips(identity)]
        for pair in changed:
            with pytest.raises(Damaged, match=f"ledger row {good.n}"):
                check_ledger(rows, {**identities, good.n: pair})
            tried += 1
    assert tried > 2_500


def test_a_row_that_is_missing_doubled_or_moved_is_found() -> None:
    rows, _ = sealed_rows()
    first, second, third = rows
    for bad in ([second, third], [first, third], [first, first, second], [second, first, third]):
        with pytest.raises(Damaged):
            check_ledger(bad)


def test_a_row_that_was_made_anew_breaks_the_chain_behind_it() -> None:
    rows, _ = sealed_rows()
    forged = next(seal([LedgerRow("lost", 1, "s", {}, {})], None)).sealed
    with pytest.raises(Damaged, match="ledger row 2 was changed"):
        check_ledger([forged, *rows[1:]])


@pytest.mark.parametrize("row", [b"\xc1", pack(7), pack([2, 1, "lost", "s", {}, b"d" * 32])])
def test_a_well_chained_row_that_is_none_is_found(row: bytes) -> None:
    sealed = SealedRow(1, sha256(b"le" + bytes(32) + row).digest(), row)
    with pytest.raises(Damaged, match="ledger row 1"):
        check_ledger([sealed])


def flips(data: bytes) -> Iterator[bytes]:
    for position in range(len(data)):
        for bit in range(8):
            flipped = bytearray(data)
            flipped[position] ^= 1 << bit
            yield bytes(flipped)


@pytest.fixture
def db(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    """A foreign connection to a file with three ledger rows and one entry."""
    path = tmp_path / "server.db"
    store = SqliteStore(path)
    with store.transaction() as tx:
        tx.write_ledger(ROWS)
    store.close()
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("INSERT INTO log VALUES (1, 1, x'00', 'ann', 1, 0, x'00', x'00')")
    yield db
    db.close()


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE ledger SET row = x'00' WHERE n = 2",
        "UPDATE ledger SET n = n + 10",
        "DELETE FROM ledger WHERE n = 3",
        "DELETE FROM ledger",
        "REPLACE INTO ledger (n, hash, row) VALUES (2, x'00', x'00')",
        "INSERT OR REPLACE INTO ledger (n, hash, row) VALUES (3, x'00', x'00')",
        "INSERT OR IGNORE INTO ledger (n, hash, row) VALUES (2, x'00', x'00')",
        "INSERT INTO ledger (n, hash, row) VALUES (5, x'00', x'00')",
        "INSERT INTO ledger (n, hash, row) VALUES (0, x'00', x'00')",
        "INSERT INTO ledger (hash, row) VALUES (x'00', x'00')",
    ],
)
def test_R1_8_the_database_refuses_whatever_is_not_the_next_row(
    db: sqlite3.Connection, sql: str
) -> None:
    before = db.execute("SELECT * FROM ledger ORDER BY n").fetchall()
    with pytest.raises(sqlite3.IntegrityError, match="the ledger is append-only"):
        db.execute(sql)
    assert db.execute("SELECT * FROM ledger ORDER BY n").fetchall() == before
    assert check_ledger(SealedRow(*row) for row in before) == 3


@pytest.mark.parametrize("sql", ["UPDATE log SET entry = x'01'", "DELETE FROM log"])
def test_the_database_refuses_edits_of_the_log(db: sqlite3.Connection, sql: str) -> None:
    with pytest.raises(sqlite3.IntegrityError, match="the log is append-only"):
        db.execute(sql)
    assert db.execute("SELECT entry FROM log").fetchall() == [(b"\x00",)]


def test_R1_8_identities_can_be_cleared_and_the_chain_stays_valid(db: sqlite3.Connection) -> None:
    db.execute("DELETE FROM ledger_identities WHERE n = 2")
    identities = {
        n: (salt, identity)
        for n, salt, identity in db.execute("SELECT n, salt, identity FROM ledger_identities")
    }
    assert sorted(identities) == [1, 3]
    rows = db.execute("SELECT n, hash, row FROM ledger ORDER BY n").fetchall()
    assert check_ledger([SealedRow(*row) for row in rows], identities) == 3
    assert not any(b"Bob" in row for _, _, row in rows)
