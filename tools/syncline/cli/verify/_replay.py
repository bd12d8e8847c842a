"""Playing a session's log again from nothing, and what must come of it.

Each change is settled anew from the bodies and compared with the effects and the outcome that the
log holds. One thing the log alone does not say: which numbers of *other* clients a server had
refused by the time it settled an op (those of the author lie below its own number). ``ceiling``
bounds them, and within the bound the stored effect is taken as witness; what it claims is then
held against everything after it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from ._codec import Stamp, Vector, read_stamp
from ._erasure import Erasure, Skeletons, bare_state, bare_value, read_erasure, same_but_for_values
from ._log import ERASE, EVENT, RESOLVE, Change, Entry, read_body, read_effects
from ._settling import LostValue, State, normal_effect, settle
from ._turns import TURN_EVENTS, turn_facts

RecordKey = tuple[str, str]


@dataclass
class Replay:
    """A session as the log makes it. ``step`` takes the entries in order."""

    ceiling: Callable[[str, int], int]
    problem: Callable[[str], None]
    records: dict[RecordKey, State] = field(default_factory=dict)
    touched: dict[RecordKey, int] = field(default_factory=dict)
    opened: dict[str, LostValue] = field(default_factory=dict)
    closed: dict[str, list[tuple[str, int]]] = field(default_factory=dict)
    lost_values: list[LostValue] = field(default_factory=list)
    held: Vector = field(default_factory=dict)
    turns: dict[tuple[int, int], dict[str, Any] | None] = field(default_factory=dict)
    blurred: set[RecordKey] = field(default_factory=set)
    skeletons: Skeletons = field(init=False)
    concurrent: int = 0
    smaller: int = 0
    deleted_at: int = 0

    def __post_init__(self) -> None:
        self.skeletons = Skeletons(self.problem)

    def step(self, entry: Entry, events: int) -> None:
        """One entry. Raises ValueError when its op cannot be what a server accepted."""
        changes = read_body(entry.body)
        if sum(change.kind == EVENT for change in changes) != events:
            self.problem(f"log row {entry.seq} miscounts its events")
        if self.deleted_at and any(change.kind <= RESOLVE for change in changes):
            self.problem(
                f"log row {entry.seq} follows row {self.deleted_at}, which deleted the session"
            )
        edited = [(change.collection, change.id) for change in changes if change.edits]
        if len(set(edited)) != len(edited):
            raise ValueError("changes one record twice")
        if entry.erased:
            self.blurred.update(edited)
        stamps, effects = read_effects(entry.effects, len(changes))
        self.held[entry.client] = max(self.held.get(entry.client, 0), entry.n - 1)
        outcomes = [
            self._change(entry, index, change, (at, entry.client, entry.n), effect)
            for index, (change, at, effect) in enumerate(zip(changes, stamps, effects, strict=True))
        ]
        if max(outcomes) != entry.outcome:
            self.problem(f"log row {entry.seq} says outcome {entry.outcome}, not {max(outcomes)}")
        self.held[entry.client] = entry.n

    def _change(self, entry: Entry, index: int, change: Change, stamp: Stamp, stored: Any) -> int:
        if not change.edits:
            if stored is not None:
                self.problem(f"log row {entry.seq} has an effect where nothing is settled")
            if change.kind == EVENT and change.collection in TURN_EVENTS:
                self.turns[entry.seq, index] = None if entry.erased else turn_facts(change)
            if change.kind == RESOLVE:
                self.closed.setdefault(change.id, []).append((entry.client, entry.n))
            elif change.kind == ERASE:
                self._erase(entry.seq, read_erasure(**change.fields))
            return 0
        key = (change.collection, change.id)
        self._take_witness(change.context, stored)
        result = settle(self.records.get(key), change, stamp, self.held)
        effect, outcome = result.effect, result.outcome
        if key in self.blurred:
            fits = same_but_for_values(stored, effect)
            if stored is not None:
                effect, outcome = stored, stored[0]
        else:
            fits = (stored is None) == (effect is None) and (
                stored is None or normal_effect(stored) == normal_effect(effect)
            )
        if not fits:
            self.problem(
                f"log row {entry.seq} has another effect on "
                f"{change.collection!a}/{change.id!a} than settling it again gives"
            )
        if change.ends:
            before = self.records.get(key)
            if before is not None and stamp <= before.life:
                self.problem(f"log row {entry.seq} deletes the session with an old stamp")
            self.deleted_at = entry.seq
        self.records[key] = result.state
        self.touched[key] = entry.seq
        self.concurrent += result.concurrent
        self.smaller += result.smaller
        for name, value, loser, winner in effect[6] if effect else ():
            lost = LostValue(
                entry.seq,
                change.collection,
                change.id,
                name,
                value,
                read_stamp(loser),
                read_stamp(winner),
            )
            self.lost_values.append(lost)
            self.opened.setdefault(lost.conflict, lost)
        if type(outcome) is not int:
            raise ValueError("has an effect of no outcome")
        return outcome

    def _erase(self, seq: int, erasure: Erasure) -> None:
        self.skeletons.vouch(seq, erasure)
        for key, state in self.records.items():
            self.records[key] = bare_state(key[0], state, erasure)
        for id_, lost in self.opened.items():
            vector = self.records[lost.collection, lost.record_id].vector
            value = bare_value(lost, erasure, vector)
            self.opened[id_] = replace(lost, value=value)

    def _take_witness(self, context: Vector, stored: Any) -> None:
        """Raise ``held`` to what the stored effect shows, where the ceiling allows it."""
        claimed: Any = None
        if stored is not None:
            claimed = stored[5] if type(stored) is list and len(stored) == 7 else {}
            if type(claimed) is not dict:
                raise ValueError("has an effect without a version vector")
        for client, n in context.items():
            known = self.held.get(client, 0)
            if n <= known:
                continue
            most = min(n, self.ceiling(client, known))
            shown = most if claimed is None else claimed.get(client, 0)
            if type(shown) is int and known < shown <= most:
                self.held[client] = shown

    def conflict_fits(self, conflict: str, closed: bool, row: Any) -> bool:
        """Whether a stored conflict is the one that the log makes."""
        if conflict in self.closed:
            by = self.closed[conflict]
            return closed and any(row == [conflict, list(dot)] for dot in by)
        lost = self.opened.get(conflict)
        return not closed and lost is not None and normal_effect(row) == normal_effect(lost.row())

    def conflicts(self) -> set[str]:
        return {*self.opened, *self.closed}
