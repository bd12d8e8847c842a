"""Erasing what clients wrote: a person's right, with a log that still proves itself.

An erasure is an entry of the server's own, which names client ids: every value that one of them
wrote into the log before it becomes nil, everywhere. What stays is the skeleton: dots, stamps,
contexts, names of collections, records and fields, types of events. So settling, folding and
counting go on as before, and a replica that is behind folds skeletons and comes to the same state.

The salt of an erased entry dies with its content, and the two digests that its hash needs stand in
its place: the chain holds, and nobody can guess what was there. Since those digests say nothing of
the skeleton, the erasure names the digest of each entry that it rewrote.

One rule is broader than the author: the value of a conflict over a record's life is all that the
record held, whoever wrote it, and goes when an erased client was among its writers.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from hashlib import sha256

from ._changes import Change, Event, Patch, Put, Stamp, encode_body
from ._conflicts import Conflict
from ._entries import Entry, encode_effects
from ._records import LIFE, Record
from ._settle import Effect
from ._values import Value
from ._vectors import VersionVector


def entry_digest(data: bytes) -> bytes:
    """The digest of a rewritten entry's bytes, as an erasure names it."""
    return sha256(b"es" + data).digest()


def salt_digest(salt: bytes) -> bytes:
    """What is left of an erased op's salt: enough to know the op again, should it come back."""
    return sha256(b"sa" + salt).digest()


def erase_entry(entry: Entry, clients: Collection[str]) -> Entry | None:
    """The entry without what ``clients`` wrote; None when there is nothing of theirs in it.

    Its place in the chain stays: ``hash`` gives the same. Raises MalformedFrame (3001) for bytes
    that are no entry's.
    """
    accepted = entry.read()
    theirs = entry.client in clients
    effects = [_bare_effect(one.effect, clients, theirs) for one in accepted]
    if theirs:
        body = encode_body([_bare_change(one.change) for one in accepted])
    elif effects != [one.effect for one in accepted]:
        body = entry.body
    else:
        return None
    stamps = [one.stamp.updated_at for one in accepted]
    return entry._replace(salt=entry.digests, effects=encode_effects(stamps, effects), body=body)


def erase_record(record: Record, clients: Collection[str]) -> Record | None:
    """The record without the values that ``clients`` wrote; None when it shows none of theirs."""
    theirs = [name for name, stamp in record.stamps.items() if stamp.client in clients]
    if all(record.fields[name] is None for name in theirs):
        return None
    return record._replace(fields={**record.fields, **dict.fromkeys(theirs)})


def erase_conflict(
    conflict: Conflict, clients: Collection[str], vector: VersionVector
) -> Conflict | None:
    """The conflict without a value of theirs; None when it holds none.

    ``vector`` is that of its record, which names all who wrote to it.
    """
    value = _bare_lost(conflict.field, conflict.value, conflict.loser, clients, vector)
    return None if value == conflict.value else replace(conflict, value=value)


def _bare_change(change: Change) -> Change:
    match change:
        case Put() | Patch():
            return replace(change, fields=dict.fromkeys(change.fields))
        case Event():
            return Event(change.type, {})
    return change


def _bare_effect(effect: Effect | None, clients: Collection[str], theirs: bool) -> Effect | None:
    if effect is None:
        return None
    lost = tuple(
        one._replace(value=_bare_lost(one.field, one.value, one.loser, clients, effect.vector))
        for one in effect.lost
    )
    return replace(effect, sets=dict.fromkeys(effect.sets) if theirs else effect.sets, lost=lost)


def _bare_lost(
    field: str, value: Value, loser: Stamp, clients: Collection[str], vector: VersionVector
) -> Value:
    if field == LIFE and type(value) is dict:
        return dict.fromkeys(value) if any(client in vector for client in clients) else value
    return None if loser.client in clients else value
