"""Backups of a server's file, and taking one back into service.

A server that was restored has forgotten what came after the backup, and will give the same numbers
to other entries. So a restore raises the **epoch**, which stands in every entry from then on, and
the clients heal: they give back what the backup does not have. That must not be skipped: a file
copied into place by other means goes through ``restore`` without a backup.

The copy is made complete, checked, and raised to its epoch under another name; then one rename
puts it into place. A crash leaves the old file or the new one, and never an old epoch in service.
"""

from __future__ import annotations

import os
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

from syncline.sync import Damaged, FileInUse

from ._ledger import check_ledger
from ._sqlite_file import (
    FileLock,
    check_format,
    check_path,
    connect,
    local_error,
    opening_error,
    sync_folder,
)
from ._sqlite_transaction import insert_ledger
from ._store import LedgerRow, SealedRow


class Restored(NamedTuple):
    """``epoch_before`` is that of the data which was taken into service."""

    store_id: str
    epoch_before: int
    epoch: int


def backup(data: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
    """Copy a server's file as it is at one moment, also while a server writes to it.

    ``target`` is replaced when it is whole, and needs no other file beside it.
    """
    source, path = Path(data).resolve(), Path(target).resolve()
    check_path(source, create=False)
    check_path(path, create=True)
    if source == path:
        raise FileInUse(f"{path} is the server's file itself", path=str(path))
    if path.with_name(path.name + "-wal").exists():
        # The file would take that log for its own; and somebody may be using it.
        raise FileInUse(f"{path} has a write-ahead log", path=str(path))
    with _copied(source, path) as copy:
        os.replace(copy, path)
        sync_folder(path)


def restore(data: str | os.PathLike[str], backup: str | os.PathLike[str] | None = None) -> Restored:
    """Take a backup into service as ``data``, or ``data`` itself as it is, in a new epoch.

    No server may have ``data`` open: FileInUse (3112). The file that is replaced is gone.
    """
    path = Path(data).resolve()
    source = path if backup is None else Path(backup).resolve()
    check_path(source, create=False)
    check_path(path, create=True)
    with FileLock(path), _copied(source, path) as copy:
        replaced = _epoch_of(path)
        restored = _raise_epoch(copy, replaced, path)
        _clear_away(path)
        os.replace(copy, path)
        sync_folder(path)
    return restored


@contextmanager
def _copied(source: Path, beside: Path) -> Iterator[Path]:
    """A checked copy of a server's file in the folder of ``beside``: one file, and durable."""
    handle, name = tempfile.mkstemp(prefix=f".{beside.name}-", dir=beside.parent)
    os.close(handle)
    copy = Path(name)
    try:
        try:
            with closing(connect(source, "ro")) as db, closing(connect(copy, "rw")) as made:
                check_format(db, source)
                db.backup(made)
                # Leaves one file, all of it flushed, with nothing beside it.
                made.execute("PRAGMA synchronous = FULL")
                made.execute("PRAGMA journal_mode = DELETE")
                _check_whole(made, source)
        except sqlite3.Error as error:
            raise opening_error(error, source) from error
        yield copy
    finally:
        copy.unlink(missing_ok=True)


def _check_whole(db: sqlite3.Connection, source: Path) -> None:
    """Raises Damaged (3102) for a file that SQLite or the ledger's chain finds fault with."""
    (found,) = db.execute("PRAGMA quick_check(1)").fetchone()
    if found != "ok":
        raise Damaged(f"{source}: {found}", path=str(source))
    rows = db.execute("SELECT n, hash, row FROM ledger ORDER BY n")
    check_ledger(SealedRow(*row) for row in rows)


def _epoch_of(path: Path) -> int:
    """The epoch of the file that is to be replaced; 0 when there is none, or it is damaged.

    What is not a server's file is not replaced: NotAReplica (3101).
    """
    if not path.exists() or path.stat().st_size == 0:
        return 0
    try:
        with closing(connect(path, "ro")) as db:
            check_format(db, path)
            (epoch,) = db.execute("SELECT value FROM store WHERE key = 'epoch'").fetchone()
            return int(epoch)
    except sqlite3.Error as error:
        trouble = opening_error(error, path)
        if not isinstance(trouble, Damaged):
            raise trouble from error
    except (Damaged, TypeError, ValueError):
        pass  # Damage is what a backup is for.
    return 0


def _raise_epoch(copy: Path, replaced: int, path: Path) -> Restored:
    """The epoch above all that clients may have seen, and the ledger's row of it, at once."""
    try:
        with closing(connect(copy, "rw")) as db:
            db.execute("PRAGMA synchronous = FULL")
            db.execute("BEGIN IMMEDIATE")
            values = dict(db.execute("SELECT key, value FROM store"))
            store_id, before = str(values["store_id"]), int(values["epoch"])
            epoch = max(before, replaced) + 1
            db.execute("UPDATE store SET value = ? WHERE key = 'epoch'", (epoch,))
            facts = {"from": before, "to": epoch, "replaced": replaced or None}
            row = LedgerRow("restore", time.time_ns() // 1000, "", facts, {})
            insert_ledger(db, [row])
            db.execute("COMMIT")
    except sqlite3.Error as error:
        raise local_error(error, path) from error
    except (KeyError, ValueError) as error:
        raise Damaged(f"the copy for {path} does not say what it is", path=str(path)) from error
    return Restored(store_id, before, epoch)


def _clear_away(path: Path) -> None:
    """Make sure that no write-ahead log of the old file lies beside the new one.

    SQLite would take it for the new file's, and replay it. The old file takes its log in first, so
    that a crash before the rename costs it nothing; a damaged one cannot.
    """
    if path.exists():
        try:
            with closing(connect(path, "rw")) as db:
                db.execute("PRAGMA journal_mode = DELETE")
        except sqlite3.Error as error:
            trouble = opening_error(error, path)
            if not isinstance(trouble, Damaged):
                raise trouble from error
        except Damaged:
            pass
    for suffix in ("-wal", "-shm", "-journal"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    sync_folder(path)
