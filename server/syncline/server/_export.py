"""The audit ledger for whoever asks: row by row, as the host's compliance rules let it be told."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from syncline.sync import unpack

from ._compliance import Compliance, LedgerLine
from ._sqlite_file import check_format, check_path, connect, opening_error


def export_ledger(
    data: str | os.PathLike[str], *, after: int = 0, compliance: Compliance | None = None
) -> Iterator[LedgerLine]:
    """The rows of a server's ledger with ``n > after``, in order, also while a server runs.

    Each goes through ``compliance.redact``. What is told carries the ledger's hash at the row, so
    that it can be held against the file later. Raises NotAReplica (3101) or Damaged (3102).
    """
    rules = compliance or Compliance()
    path = Path(data).resolve()
    check_path(path, create=False)
    try:
        with closing(connect(path, "ro")) as db:
            check_format(db, path)
            rows = db.execute(
                "SELECT l.n, l.hash, l.row, i.identity FROM ledger l"
                " LEFT JOIN ledger_identities i ON i.n = l.n WHERE l.n > ? ORDER BY l.n",
                (after,),
            )
            for n, hash_, row, identity in rows:
                _, at, kind, session, facts, _ = unpack(row)
                who = None if identity is None else unpack(identity)
                line = rules.redact(LedgerLine(n, at, kind, session, facts, who, hash_))
                if line is not None:
                    yield line
    except sqlite3.Error as error:
        raise opening_error(error, path) from error
