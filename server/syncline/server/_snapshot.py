"""How a bootstrap is cut into parts; the same for every store.

A part runs through three sections: records, conflicts, entries. The cursor names the section and
the key of the last item taken, so a part can be asked for again, by any process, and nothing is
held open between two parts.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import closing
from typing import Any, NamedTuple

from syncline.sync import NUMBER_MAX, Closed, Conflict, MalformedFrame, pack, unpack

from ._store import LogRow, RecordRow

Rows = Generator[tuple[tuple[Any, ...], int, Any], None, None]
"""Items of a section in the order of their keys: the key, the bytes it counts for, the item."""

Section = Callable[..., Rows]
"""Called with the key to go on after, and how many items may be wanted at most."""

FIRST_KEYS: tuple[tuple[Any, ...], ...] = (("", ""), ("",), (0,))
"""Below every key of its section."""


class Cut(NamedTuple):
    """What a part holds; ``after`` is the cursor of the next part, None for the last one."""

    rows: tuple[RecordRow, ...]
    conflicts: tuple[Conflict | Closed, ...]
    entries: tuple[LogRow, ...]
    after: bytes | None


def cut_part(
    after: bytes, sections: tuple[Section, Section, Section], bytes_max: int, items_max: int
) -> Cut:
    """The part after a cursor. Raises MalformedFrame (3001) for a cursor that is not one."""
    first, key = _decode_cursor(after)
    found: tuple[list[Any], list[Any], list[Any]] = ([], [], [])
    size = count = 0
    position = (first, *key)
    for index in range(first, len(sections)):
        start = key if index == first else FIRST_KEYS[index]
        # One more than fits tells whether there is another part.
        with closing(sections[index](start, items_max - count + 1)) as rows:
            for row_key, row_bytes, row in rows:
                size += row_bytes
                if count and (count >= items_max or size > bytes_max):
                    return _cut(found, pack(position))
                found[index].append(row)
                count += 1
                position = (index, *row_key)
    return _cut(found, None)


def _cut(found: tuple[list[Any], list[Any], list[Any]], after: bytes | None) -> Cut:
    rows, conflicts, entries = found
    return Cut(tuple(rows), tuple(conflicts), tuple(entries), after)


def _decode_cursor(after: bytes) -> tuple[int, tuple[Any, ...]]:
    if not after:
        return 0, FIRST_KEYS[0]
    match unpack(after):
        case [0, str(collection), str(id_)]:
            return 0, (collection, id_)
        case [1, str(id_)]:
            return 1, (id_,)
        case [2, int(seq)] if 0 <= seq <= NUMBER_MAX:
            return 2, (seq,)
    raise MalformedFrame("this is no cursor of a snapshot")
