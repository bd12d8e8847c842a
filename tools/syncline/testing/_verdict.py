"""The checks at the end of a world, when the faults have ended and everything has drained."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from syncline.client._rows import SessionState, meta, session_rows
from syncline.sync import HEADER_COLLECTION, HEADER_ID, Conflict, Dot, Entry, Record

from . import _checkers as checkers
from ._app import Written
from ._checkers import Violation
from ._device import Device

if TYPE_CHECKING:
    from ._world import World

CLOCK_ERROR_US_MAX = 1_500_000
"""Half of the longest round trip of a connection that no fault slows down, and a measure more."""


def verdict(world: World) -> Iterator[Violation]:
    """Every promise that the world broke, as far as its end tells."""
    yield from _check_names(world)
    yield from _check_clocks(world)
    for session in world.sessions:
        if world.server.store.inner.head(session) is not None:
            yield from _check_session(world, session)


def _check_session(world: World, session: str) -> Iterator[Violation]:
    store = world.server.store.inner
    head = store.head(session)
    assert head is not None
    rows = store.entries(session, 0, 1 << 30, 1 << 30)
    entries = [Entry.decode(row.entry) for row in rows]
    world.result.entries += len(entries)
    yield from checkers.check_chain(entries, head.genesis, [row.hash for row in rows])
    yield from checkers.check_once(entries)
    yield from checkers.check_atomic_events(entries)
    yield from checkers.check_bounds(entries)
    yield from checkers.check_effects(entries)
    yield from checkers.check_causal(entries)
    if not world.watch.server_went_back:
        # What restores and copies together gave new names, contexts may still call by former ones.
        yield from checkers.check_own(entries)
    part = store.snapshot(session, b"", "", 1, 1 << 30, 1 << 30)
    states = {(row.collection, row.id): row.state for row in part.rows}
    shown = {key: Record.decode(data).visible for key, data in states.items()}
    yield from checkers.check_model(entries, shown)
    yield from checkers.check_nothing_lost(entries, shown, checkers.lost_values(entries))
    open_ = [conflict for conflict in part.conflicts if isinstance(conflict, Conflict)]
    closed = len(part.conflicts) - len(open_)
    yield from checkers.check_listed(entries, open_, closed)
    yield from checkers.check_ledger(session, entries, store.ledger(0, 1 << 30))
    header = shown.get((HEADER_COLLECTION, HEADER_ID)) or {}
    if head.label != header.get("label", ""):
        yield Violation("convergent", f"{session} is listed as {head.label!r}, not as its header")
    conflicts = [conflict.encode() for conflict in sorted(part.conflicts, key=lambda c: c.id)]
    hashes = {row.seq: row.hash for row in rows}
    vector = {client: last.n for client, last in store._sessions[session].last_ops.items()}
    logged: dict[str, int] = {}
    for entry in entries:
        logged[entry.client] = max(entry.n, logged.get(entry.client, 0))
    for device in world.devices:
        yield from _check_replica(
            world, device, session, states, conflicts, hashes, (logged, vector)
        )
    yield from _check_durable(world, session, entries)


def _check_replica(
    world: World,
    device: Device,
    session: str,
    states: dict[tuple[str, str], bytes],
    conflicts: list[bytes],
    hashes: dict[int, bytes],
    vectors: tuple[dict[str, int], dict[str, int]],
) -> Iterator[Violation]:
    assert device.core is not None
    name = f"{device.name} in {session}"
    with device.core.database.reading() as db:
        state = next((row for row in session_rows(db) if row.id == session), None)
        if state is None:
            if session not in world.allowed(device):
                return
            yield Violation("convergent", f"{name} has nothing")
            return
        rows = db.execute(
            "SELECT collection, id, state FROM syncline_records WHERE gen=?", (state.gen,)
        ).fetchall()
        listed = db.execute(
            "SELECT conflict FROM syncline_conflicts WHERE gen=? ORDER BY id", (state.gen,)
        ).fetchall()
        held = db.execute(
            "SELECT seq, hash FROM syncline_entries WHERE session=?", (state.key,)
        ).fetchall()
    if session not in world.allowed(device):
        if held or state.seq:
            yield Violation("isolated", f"{name} holds what it may not open")
        guests = [n for n, allowed in world.allowed_by_name.items() if session not in allowed]
        if not any(session in world.apps[guest].touched for guest in guests):
            yield Violation("isolated", f"{name} was told that it exists")
        return
    mine = {(collection, id_): data for collection, id_, data in rows}
    if mine != states:
        different = sorted(k for k in mine.keys() | states.keys() if mine.get(k) != states.get(k))
        stories = (
            f"{key}: {_shown(mine.get(key))}, server {_shown(states.get(key))}"
            for key in different[:2]
        )
        yield Violation("convergent", f"{name} differs: " + "; ".join(stories))
    if [data for (data,) in listed] != conflicts:
        yield Violation("nothing silently lost", f"{name} lists other conflicts")
    for seq, hash_ in held:
        if hashes.get(seq) != hash_:
            yield Violation("healing", f"{name}: its history at {seq} is not that of the log")
            break
    logged, settled = vectors
    if world.watch.server_went_back:
        # A refusal that a restored server forgot has its number in vectors for ever.
        settled = {**settled, **{c: n for c, n in state.vector.items() if n > settled.get(c, 0)}}
    yield from _check_vector(name, state, logged, settled)


def _check_vector(
    name: str, state: SessionState, logged: dict[str, int], settled: dict[str, int]
) -> Iterator[Violation]:
    """A replica's vector: all that the log holds, and nothing that the server never settled."""
    for client in logged.keys() | state.vector.keys():
        n = state.vector.get(client, 0)
        if not logged.get(client, 0) <= n <= settled.get(client, 0):
            yield Violation(
                "convergent",
                f"{name}: the vector has {client}/{n}; the log {logged.get(client, 0)}, the"
                f" server {settled.get(client, 0)}",
            )


def _check_durable(world: World, session: str, entries: list[Entry]) -> Iterator[Violation]:
    """Every write that returned is in the log once, or refused and kept with its reason.

    And one that failed is nowhere: neither that, nor both.
    """
    logged = {entry.salt.hex(): entry for entry in entries}
    refused: set[str] = set()
    waiting: set[str] = set()
    for device in world.devices:
        assert device.core is not None
        with device.core.database.reading() as db:
            client = meta(db, "client")
            told = db.execute(
                "SELECT r.salt, r.client, r.n FROM syncline_refused r JOIN syncline_sessions s"
                " ON s.session = r.session WHERE s.id=?",
                (session,),
            ).fetchall()
            waiting |= {s.hex() for (s,) in db.execute("SELECT salt FROM syncline_outbox") if s}
        mine = {salt.hex() for salt, _, _ in told}
        known = world.server.store.inner._sessions[session].refusals
        for _, author, n in told:
            if Dot(author, n) not in known and not world.watch.server_went_back:
                yield Violation("exactly once", f"the refusal of {author}/{n} is not remembered")
        for salt in mine & logged.keys():
            if logged[salt].client == client or not world.watch.server_went_back:
                yield Violation("exactly once", f"{salt[:8]} is in the log and refused")
        refused |= mine
    for app in world.apps.values():
        forbidden = session not in world.allowed_by_name[app.device]
        for written in app.written:
            if written.session != session:
                continue
            if forbidden and written.receipt_id in logged:
                yield Violation("isolated", f"{_told(written)} is in the log")
            there = logged.keys() | refused | (waiting if forbidden else set())
            if written.receipt_id in there or written.device in world.watch.went_back:
                continue
            yield Violation("durable", f"{_told(written)} is neither in the log nor refused")
    failed = {value for app in world.apps.values() for value in app.failed}
    for write in checkers.writes_of(entries):
        values = getattr(write.change, "fields", {}).values()
        if any(value in failed for value in values):
            yield Violation("durable", f"a write of {write.key} failed, and is in the log")


def _check_names(world: World) -> Iterator[Violation]:
    """No two replicas go under one name."""
    names: dict[str, str] = {}
    for device in world.devices:
        assert device.core is not None
        other = names.setdefault(device.core.client(), device.name)
        if other != device.name:
            yield Violation("exactly once", f"{other} and {device.name} are one client")


def _check_clocks(world: World) -> Iterator[Violation]:
    """A replica that signed in after its clock last changed knows the time."""
    for device in world.devices:
        changed_at = max(device.clock.changed_at, world.server.clock_changed_at)
        if device.core is None or device.welcomed_at <= changed_at:
            continue
        error = device.core.now - world.server.now
        if abs(error) > CLOCK_ERROR_US_MAX:
            yield Violation("causal", f"the time of {device.name} is off by {error / 1e6:.1f} s")


def _told(written: Written) -> str:
    return f"write {written.receipt_id[:8]} of {written.device} to {written.session}"


def _shown(data: bytes | None) -> Any:
    if data is None:
        return "nothing"
    record = Record.decode(data)
    return (record.visible, record.life, dict(record.vector))
