"""The promises, each as a checker of its own, apart from the workload and from the product.

They look at logs, replicas' rows and what the app was told, and say what is broken as one sentence.
``model_state`` is the independent model of settling: a few lines, written apart from ``settle``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from syncline.sync import (
    Conflict,
    Delete,
    Entry,
    Event,
    Put,
    RecordChange,
    Resolve,
    Stamp,
    pack,
    same,
    unpack,
)

AHEAD_US_MAX = 60_000_000
"""How far a stamp may be ahead of the server's clock."""


@dataclass(frozen=True, slots=True)
class Violation:
    """A promise that did not hold, and how it showed."""

    promise: str
    story: str

    def __str__(self) -> str:
        return f"{self.promise}: {self.story}"


@dataclass(frozen=True, slots=True)
class Write:
    """One change of one record in the log, as the model sees it."""

    key: tuple[str, str]
    stamp: Stamp
    change: RecordChange


def writes_of(entries: Iterable[Entry]) -> list[Write]:
    """All changes of records in a log, in its order."""
    return [
        Write((a.change.collection, a.change.id), a.stamp, a.change)
        for entry in entries
        for a in entry.read()
        if isinstance(a.change, RecordChange)
    ]


def model_state(writes: Iterable[Write]) -> dict[tuple[str, str], dict[str, Any] | None]:
    """What must show of each record, from the set of writes alone, in whatever order they came."""
    by_key: dict[tuple[str, str], list[Write]] = defaultdict(list)
    for write in writes:
        by_key[write.key].append(write)
    state: dict[tuple[str, str], dict[str, Any] | None] = {}
    for key, group in by_key.items():
        newest = max(group, key=lambda w: w.stamp)
        floor = max((w.stamp for w in group if isinstance(w.change, Put)), default=None)
        best: dict[str, tuple[Stamp, Any]] = {}
        for write in group:
            if isinstance(write.change, Delete):
                continue
            for name, value in write.change.fields.items():
                below = floor is not None and write.stamp < floor
                if not below and (name not in best or write.stamp > best[name][0]):
                    best[name] = (write.stamp, value)
        alive = not isinstance(newest.change, Delete)
        state[key] = {name: value for name, (_, value) in best.items()} if alive else None
    return state


def check_chain(
    entries: Sequence[Entry], genesis: bytes, hashes: Sequence[bytes]
) -> Iterator[Violation]:
    """Dense and tamper-evident: numbers without a hole, each hash continuing the one before."""
    previous = genesis
    for place, (entry, hash_) in enumerate(zip(entries, hashes, strict=True), 1):
        if entry.seq != place:
            yield Violation("dense", f"entry {entry.seq} stands at place {place}")
        previous = _chain_hash(entry, previous)
        if previous != hash_:
            yield Violation("tamper-evident", f"the hash at {entry.seq} is not that of the entry")
            return


def _chain_hash(entry: Entry, previous: bytes) -> bytes:
    """The chain's rule as docs/protocol.md has it, written apart from the product's."""
    header = [entry.epoch, entry.seq, entry.client, entry.n, entry.outcome, entry.accepted_at]
    op = sha256(b"op" + entry.salt + entry.body).digest()
    effects = sha256(b"ef" + entry.salt + entry.effects).digest()
    return sha256(b"en" + previous + pack(header) + op + effects).digest()


def check_once(entries: Iterable[Entry]) -> Iterator[Violation]:
    """Exactly once: no op, and no dot, is in the log twice; per client in order."""
    salts: dict[bytes, int] = {}
    dots: dict[tuple[str, int], int] = {}
    for entry in entries:
        if entry.salt in salts:
            yield Violation("exactly once", f"one op is at {salts[entry.salt]} and at {entry.seq}")
        if (entry.client, entry.n) in dots:
            yield Violation("exactly once", f"dot {entry.client}/{entry.n} is twice in the log")
        salts[entry.salt] = entry.seq
        dots[entry.client, entry.n] = entry.seq
    last: dict[str, int] = {}
    for client, n in dots:
        if n < last.get(client, 0):
            yield Violation("exactly once", f"op {client}/{n} came after a later one")
        last[client] = n


def check_model(
    entries: Sequence[Entry], shown: Mapping[tuple[str, str], dict[str, Any] | None]
) -> Iterator[Violation]:
    """Last writer wins, in any order of arrival: the state is that of the model."""
    expected = {k: v for k, v in model_state(writes_of(entries)).items() if v is not None}
    got = {key: fields for key, fields in shown.items() if fields is not None}
    for key in sorted(expected.keys() | got.keys()):
        if expected.get(key) != got.get(key):
            yield Violation(
                "last writer wins", f"{key} is {got.get(key)}, by the model {expected.get(key)}"
            )


def check_causal(entries: Sequence[Entry]) -> Iterator[Violation]:
    """Causal: no write has a stamp at or below one that its author had seen."""
    by_key: dict[tuple[str, str], list[Write]] = defaultdict(list)
    for write in writes_of(entries):
        by_key[write.key].append(write)
    for key, group in by_key.items():
        for write in group:
            for other in group:
                seen = write.change.context.get(other.stamp.client, 0) >= other.stamp.n
                if seen and other.stamp >= write.stamp:
                    yield Violation(
                        "causal", f"{key}: {write.stamp} had seen {other.stamp}, which beats it"
                    )


def check_effects(entries: Iterable[Entry]) -> Iterator[Violation]:
    """Convergent: an effect is written out only where it is not plain from the log."""
    held: dict[str, int] = {}
    for entry in entries:
        for accepted in entry.read():
            change, effect = accepted.change, accepted.effect
            if isinstance(change, RecordChange) and effect is not None and not effect.outcome:
                if all(held.get(client, 0) >= n for client, n in change.context.items()):
                    yield Violation("convergent", f"entry {entry.seq} applied, and has an effect")
        held[entry.client] = entry.n


def check_own(entries: Iterable[Entry]) -> Iterator[Violation]:
    """Causal: nobody's write conflicts with an earlier one of their own."""
    for entry in entries:
        for accepted in entry.read():
            for lost in () if accepted.effect is None else accepted.effect.lost:
                if lost.loser.client == lost.winner.client:
                    yield Violation(
                        "causal", f"{lost.field} at {entry.seq}: a client lost to itself"
                    )


def check_bounds(entries: Iterable[Entry]) -> Iterator[Violation]:
    """Last writer wins, but no clock for ever: a stamp far ahead is one above what it met."""
    newest: dict[tuple[str, str], int] = defaultdict(int)
    for entry in entries:
        for accepted in entry.read():
            change, at = accepted.change, accepted.stamp.updated_at
            bound = entry.accepted_at + AHEAD_US_MAX
            if isinstance(change, RecordChange):
                key = (change.collection, change.id)
                bound = max(bound, newest[key] + 1)
                newest[key] = max(newest[key], at)
            if at > bound and not isinstance(change, Resolve):
                yield Violation("last writer wins", f"the stamp at {entry.seq} is far ahead")


def check_listed(
    entries: Iterable[Entry], open_: Iterable[Conflict], closed: int
) -> Iterator[Violation]:
    """Nothing silently lost: each value that the log says was lost is a row, open or closed."""
    lost = set(lost_values(entries))
    there = {((c.loser.client, c.loser.n), (c.collection, c.record_id), c.field) for c in open_}
    if len(lost - there) > closed:
        yield Violation(
            "nothing silently lost",
            f"{len(lost)} values lost, {len(lost & there)} are open conflicts, {closed} closed",
        )


def check_ledger(
    session: str, entries: Iterable[Entry], ledger: Iterable[Any]
) -> Iterator[Violation]:
    """Tamper-evident: the ledger is one chain, and it knows of every value that lost."""
    previous, known = bytes(32), set()
    for sealed in ledger:
        previous = sha256(b"le" + previous + sealed.row).digest()
        if previous != sealed.hash:
            yield Violation("tamper-evident", f"the ledger's chain breaks at row {sealed.n}")
            return
        _, _, kind, of, facts, _ = unpack(sealed.row)
        if kind == "lost" and of == session:
            dot = (facts["loser"][1], facts["loser"][2])
            known.add((dot, (facts["collection"], facts["id"]), facts["field"]))
    missing = set(lost_values(entries)) - known
    if missing:
        yield Violation("tamper-evident", f"the ledger does not know of {min(missing)}")


def lost_values(
    entries: Iterable[Entry],
) -> Iterator[tuple[tuple[str, int], tuple[str, str], str]]:
    """The loser's dot, the record and the field of every conflict that a log opened."""
    for entry in entries:
        for accepted in entry.read():
            change, effect = accepted.change, accepted.effect
            if effect is None or not isinstance(change, RecordChange):
                continue
            for lost in effect.lost:
                dot = (lost.loser.client, lost.loser.n)
                yield dot, (change.collection, change.id), lost.field


def check_nothing_lost(
    entries: Sequence[Entry],
    shown: Mapping[tuple[str, str], dict[str, Any] | None],
    listed: Iterable[tuple[tuple[str, int], tuple[str, str], str]],
) -> Iterator[Violation]:
    """Nothing silently lost: what does not show was overwritten by one that had seen it, or is
    listed: ``listed`` has the dot, record and field of every conflict that was ever opened.
    """
    known = set(listed)
    with_life = _lost_with_life(entries)
    by_key: dict[tuple[str, str], list[Write]] = defaultdict(list)
    for write in writes_of(entries):
        by_key[write.key].append(write)
    for key, group in by_key.items():
        for write in group:
            if isinstance(write.change, Delete):
                continue
            dot = (write.stamp.client, write.stamp.n)
            for name, value in write.change.fields.items():
                if (shown.get(key) or {}).get(name) == value:
                    continue
                if (dot, key, name) in known or value in with_life[key]:
                    continue
                if not _overwritten_knowingly(group, write, name):
                    yield Violation(
                        "nothing silently lost", f"{value} of {key}.{name} by {dot} is gone"
                    )


def _lost_with_life(entries: Iterable[Entry]) -> dict[tuple[str, str], list[Any]]:
    """By record, the values that are listed because the whole record lost its life."""
    found: dict[tuple[str, str], list[Any]] = defaultdict(list)
    for entry in entries:
        for accepted in entry.read():
            change, effect = accepted.change, accepted.effect
            for lost in () if effect is None else effect.lost:
                if lost.field == "$alive" and isinstance(lost.value, dict):
                    assert isinstance(change, RecordChange)
                    found[change.collection, change.id].extend(lost.value.values())
    return found


def _overwritten_knowingly(group: Sequence[Write], write: Write, name: str) -> bool:
    assert not isinstance(write.change, Delete)
    value = write.change.fields[name]
    for other in group:
        if other.stamp <= write.stamp:
            continue
        fields = {} if isinstance(other.change, Delete) else other.change.fields
        if name in fields and same(fields[name], value):
            return True  # An equal value stands in its place, and its own fate is looked at.
        seen = other.change.context.get(write.stamp.client, 0) >= write.stamp.n
        if seen and (isinstance(other.change, (Put, Delete)) or name in fields):
            return True
    return False


def check_atomic_events(entries: Sequence[Entry]) -> Iterator[Violation]:
    """Every entry can be read whole: no op is in the log in part."""
    for entry in entries:
        changes = [a.change for a in entry.read()]
        if not changes:
            yield Violation("atomic", f"entry {entry.seq} has no change")
        for change in changes:
            assert isinstance(change, (RecordChange, Event, Resolve))
