"""What an erasure leaves behind, and how what came of it is checked.

An erased entry is a skeleton: its values are nil, and its salt gave way to the digests that its
hash needs. The chain's hash says nothing of a skeleton's bytes; the newest erasure that names the
entry does. Which values were equal once, nobody can tell any more, so on the records that such
entries touched an effect is taken at its word about what was lost.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from ._codec import HASH_BYTES, Vector, digest, is_number, need
from ._log import HEADER
from ._settling import LIFE, LostValue, State, normal_effect


@dataclass(frozen=True, slots=True)
class Erasure:
    """Who is erased, and the digests of the entries that it rewrote, by seq."""

    clients: frozenset[str]
    rewritten: dict[int, bytes]


def read_erasure(clients: Any, rewritten: Any) -> Erasure:
    """The erasure of its parts in a body."""
    need(
        type(clients) is list and all(type(client) is str for client in clients),
        "erases nobody by name",
    )
    need(
        type(rewritten) is list
        and all(
            type(one) is list
            and len(one) == 2
            and is_number(one[0])
            and type(one[1]) is bytes
            and len(one[1]) == HASH_BYTES
            for one in rewritten
        ),
        "names rewritten entries by something else than seq and digest",
    )
    return Erasure(frozenset(clients), dict(rewritten))


KEPT = {(HEADER, "created_at"), (HEADER, "parent"), (HEADER, "status")}
"""What no erasure takes."""


def bare_state(collection: str, state: State, erasure: Erasure) -> State:
    """The record without what the erased clients wrote."""
    fields = {
        name: (None if _is_gone(collection, name, stamp[1], erasure) else value, stamp)
        for name, (value, stamp) in state.fields.items()
    }
    return replace(state, fields=fields)


def _is_gone(collection: str, name: str, author: str, erasure: Erasure) -> bool:
    return author in erasure.clients and (collection, name) not in KEPT


def bare_value(lost: LostValue, erasure: Erasure, vector: Vector) -> Any:
    """A lost value after the erasure; ``vector`` is that of its record."""
    name, value = lost.field, lost.value
    if name == LIFE and type(value) is dict:
        return dict.fromkeys(value) if erasure.clients & vector.keys() else value
    return None if _is_gone(lost.collection, name, lost.loser[1], erasure) else value


def same_but_for_values(stored: Any, settled: Any) -> bool:
    """Whether two effects agree in all that does not hang on what a value was."""
    if stored is None or settled is None:
        return stored is settled
    need(type(stored) is list and len(stored) == 7, "has an effect of the wrong shape")
    return normal_effect([0, *stored[1:6], []]) == normal_effect([0, *settled[1:6], []])


@dataclass
class Skeletons:
    """The erased entries of one log, each to be vouched for by an erasure behind it."""

    problem: Callable[[str], None]
    found: dict[int, bytes] = field(default_factory=dict)
    named: dict[int, bytes] = field(default_factory=dict)

    def add(self, seq: int, data: bytes) -> None:
        self.found[seq] = digest(b"es", data)

    def vouch(self, seq: int, erasure: Erasure) -> None:
        """An erasure at ``seq`` names what it rewrote; the newest word counts."""
        for at in erasure.rewritten:
            if at >= seq:
                self.problem(f"log row {seq} erases from row {at}, which comes later")
        self.named.update(erasure.rewritten)

    def check(self, floor: int, *, all_named: bool) -> None:
        """``all_named``: the log is whole, so that no erased entry can wait for its erasure."""
        for seq, found in sorted(self.found.items()):
            known = self.named.get(seq)
            if known is None and all_named:
                self.problem(f"log row {seq} is erased, and no erasure names it")
            elif known is not None and known != found:
                self.problem(f"log row {seq} is not what its erasure left of it")
        for seq in sorted(self.named.keys() - self.found.keys()):
            if seq > floor:
                self.problem(f"log row {seq} was erased, and is whole")
