"""What both sides must know about SQLite; it opens nothing.

Versions 3.7.0 to 3.51.2 have the *WAL-reset fault*: when one connection commits while another
checkpoints the same file, a later checkpoint may skip pages that were committed, and an
acknowledged transaction is gone. It was fixed in 3.51.3 and carried back to 3.44.6 and 3.50.7
(https://sqlite.org/wal.html#the_wal_reset_bug).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")

_IN_WIDTHS = (1, 8, 64)
_FIRST = (3, 7, 0)
_FIXED = (3, 51, 3)
_FIXED_PATCH_BY_BRANCH: dict[tuple[int, ...], int] = {(3, 44): 6, (3, 50): 7}


def wal_reset_fault(version: tuple[int, ...]) -> bool:
    """Whether the SQLite library of this version (``sqlite3.sqlite_version_info``) has the fault.

    Where it has, commits and checkpoints of one file must never run at once: they go through one
    connection, or hold one lock across connections and processes.
    """
    if not _FIRST <= version < _FIXED:
        return False
    fixed_patch = _FIXED_PATCH_BY_BRANCH.get(version[:2])
    return fixed_patch is None or version[2:3] < (fixed_patch,)


def in_parts(values: Sequence[T]) -> Iterator[tuple[str, tuple[T | None, ...]]]:
    """``values`` for ``column IN (...)``, in parts: the marks, and what they stand for.

    A part is filled up with nulls, so that few statements are prepared for any number of values.
    """
    start = 0
    while start < len(values):
        part = values[start : start + _IN_WIDTHS[-1]]
        start += len(part)
        width = next(width for width in _IN_WIDTHS if width >= len(part))
        yield ", ".join("?" * width), (*part, *(None,) * (width - len(part)))
