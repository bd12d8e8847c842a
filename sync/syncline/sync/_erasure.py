"""Erasing what clients wrote: a person's right, with a log that still proves itself.

An erasure is an entry of the server's own, which names client ids: every value that one of them
wrote into the log before it becomes nil, everywhere. What stays is the skeleton: dots, stamps,
contexts, names of collections, records and fields, types of events. So settling, folding and
counting go on as before, and a replica that is behind folds skeletons and comes to the same state.

The salt of an erased entry dies with its content, and the two digests that its hash needs stand in
its place: the chain holds, and nobody can guess what was there. Since those digests say nothing of
the skeleton, the erasure names the digest of each entry that it rewrote.

A session's header keeps the fields that say what the session is (``HEADER_KEPT``): without them it
could not be listed. And one rule is broader than the author: the value of a conflict over a
record's life is all that the record held, whoever wrote it, and goes when an erased client was
among its writers.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from hashlib import sha256

import msgspec

from ._changes import Change, Event, Patch, Put, RecordChange, encode_body
from ._conflicts import Conflict
from ._entries import AcceptedChange, Entry, encode_effects
from ._names import HEADER_COLLECTION
from ._records import LIFE, Lost, Record
from ._settle import Effect
from ._values import Value
from ._vectors import VersionVector

HEADER_KEPT = frozenset({"created_at", "parent", "status"})
"""Fields of a session's header that no erasure takes."""


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
    effects = [_bare_effect(one, clients, theirs) for one in accepted]
    if theirs:
        body = encode_body([_bare_change(one.change) for one in accepted])
    elif effects != [one.effect for one in accepted]:
        body = entry.body
    else:
        return None
    stamps = [one.stamp.updated_at for one in accepted]
    return entry._replace(salt=entry.digests, effects=encode_effects(stamps, effects), body=body)


def erase_record(collection: str, record: Record, clients: Collection[str]) -> Record | None:
    """The record without the values that ``clients`` wrote; None when it shows none of theirs."""
    theirs = {
        name: record.fields[name] for name, at in record.stamps.items() if at.client in clients
    }
    bare = _bare_fields(collection, theirs)
    return None if bare == theirs else record._replace(fields={**record.fields, **bare})


def erase_conflict(
    conflict: Conflict, clients: Collection[str], vector: VersionVector
) -> Conflict | None:
    """The conflict without a value of theirs; None when it holds none.

    ``vector`` is that of its record, which names all who wrote to it.
    """
    lost = Lost(conflict.field, conflict.value, conflict.loser, conflict.winner)
    value = _bare_lost(conflict.collection, lost, clients, vector).value
    return None if value == conflict.value else replace(conflict, value=value)


def _bare_fields(collection: str, fields: Mapping[str, Value]) -> dict[str, Value]:
    kept = HEADER_KEPT if collection == HEADER_COLLECTION else frozenset()
    return {name: value if name in kept else None for name, value in fields.items()}


def _bare_change(change: Change) -> Change:
    match change:
        case Put() | Patch():
            fields = _bare_fields(change.collection, change.fields)
            return msgspec.structs.replace(change, fields=fields)
        case Event():
            return Event(change.type, {})
    return change


def _bare_effect(accepted: AcceptedChange, clients: Collection[str], theirs: bool) -> Effect | None:
    change, effect = accepted.change, accepted.effect
    if effect is None or not isinstance(change, RecordChange):
        return effect
    lost = tuple(_bare_lost(change.collection, one, clients, effect.vector) for one in effect.lost)
    sets = _bare_fields(change.collection, effect.sets) if theirs else effect.sets
    return replace(effect, sets=sets, lost=lost)


def _bare_lost(
    collection: str, lost: Lost, clients: Collection[str], vector: VersionVector
) -> Lost:
    if lost.field == LIFE and type(lost.value) is dict:
        everybody = any(client in vector for client in clients)
        return lost._replace(value=dict.fromkeys(lost.value)) if everybody else lost
    if lost.loser.client not in clients:
        return lost
    return lost._replace(value=_bare_fields(collection, {lost.field: lost.value})[lost.field])
