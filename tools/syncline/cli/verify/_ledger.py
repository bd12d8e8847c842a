"""The audit ledger: its chain, its identities, and that it says all that the log says.

Every value that lost in a log has its row of kind "lost", every op that was finally refused its row
of kind "refusal", and no such row stands without the thing it speaks of.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from ._codec import (
    HASH_BYTES,
    NO_HASH,
    SALT_BYTES,
    Stamp,
    decode_exact,
    digest,
    is_number,
    need,
    read_stamp,
)
from ._file import BLOB, BLOB_OR_NULL, INT, DataFile
from ._report import Problems
from ._settling import LostValue

PLACE = {"epoch", "seq", "index", "dot"}
LostKey = tuple[str, int, str, str, str, Stamp, Stamp]
TurnKey = tuple[str, int, int]
"""Session, seq and index in the op of an event; its facts are None where it was erased."""
RefusalKey = tuple[str, str, int, int]
"""Session, client, number and code."""


@dataclass
class Recorded:
    """What the sessions say that the ledger must say too. ``refusals`` have their op digests.

    ``unknown`` are sessions whose log could not be replayed: of their lost values nothing is known.
    """

    lost: Counter[LostKey] = field(default_factory=Counter)
    refusals: dict[RefusalKey, bytes] = field(default_factory=dict)
    turns: dict[TurnKey, dict[str, Any] | None] = field(default_factory=dict)
    unknown: set[str] = field(default_factory=set)

    def add_turns(self, session: str, turns: dict[tuple[int, int], dict[str, Any] | None]) -> None:
        self.turns.update({(session, *place): facts for place, facts in turns.items()})

    def add_lost(self, session: str, values: list[LostValue]) -> None:
        self.lost.update(
            (session, one.seq, one.collection, one.record_id, one.field, one.loser, one.winner)
            for one in values
        )


def check_ledger(file: DataFile, problems: Problems, recorded: Recorded) -> None:
    """Walk the ledger and match it with what was recorded of the sessions."""
    identities = _identities(file, problems)
    lost: Counter[LostKey] = Counter()
    refusals: set[RefusalKey] = set()
    turns: set[TurnKey] = set()
    last, previous = 0, NO_HASH
    for n, hash_, data in file.rows("ledger", {"n": INT, "hash": BLOB, "row": BLOB}):
        name = f"ledger row {n}"
        if n != last + 1:
            problems.add(f"{name} follows {last}: the ledger is not dense")
        if digest(b"le", previous, data) != hash_:
            problems.add(f"{name} does not have the hash that its bytes give")
        last, previous = n, hash_
        with problems.named(name):
            kind, session, facts, of_whom = _read_row(data, n)
            salted = identities.pop(n, None)
            need(salted in (None, of_whom), "does not fit its identity")
            if kind == "lost":
                lost[_lost_key(session, facts)] += 1
            elif kind == "refusal":
                refusals.add(_refusal_key(session, facts))
            elif kind == "turn":
                key = _turn_key(session, facts)
                turns.add(key)
                if session not in recorded.unknown:
                    _check_turn(recorded, key, facts)
    for n in identities:
        problems.add(f"ledger_identities row {n} belongs to no ledger row")
    _match(problems, recorded, lost, refusals)
    for session, seq, index in sorted(recorded.turns.keys() - turns):
        problems.add(f"the ledger has no row for event {index} at seq {seq} of session {session!a}")


def _identities(file: DataFile, problems: Problems) -> dict[int, bytes]:
    """The digest of each identity that was not cleared."""
    columns = {"n": INT, "salt": BLOB_OR_NULL, "identity": BLOB_OR_NULL}
    digests = {}
    for n, salt, identity in file.rows("ledger_identities", columns):
        with problems.named(f"ledger_identities row {n}"):
            need((salt is None) == (identity is None), "was cleared by half")
            need(n not in digests, "is there twice")
            if salt is not None and identity is not None:
                need(len(salt) == SALT_BYTES, "has a salt of the wrong length")
                decode_exact(identity)
                digests[n] = digest(b"id", salt, identity)
    return digests


def _read_row(data: bytes, n: int) -> tuple[str, str, dict[str, Any], bytes]:
    row = decode_exact(data)
    need(type(row) is list and len(row) == 6, "is not a row of the ledger")
    number, at, kind, session, facts, of_whom = row
    need(
        number == n
        and is_number(at, 0)
        and type(kind) is str
        and type(session) is str
        and type(facts) is dict
        and type(of_whom) is bytes
        and len(of_whom) == HASH_BYTES,
        "is not a row of the ledger, or not the one of its number",
    )
    return kind, session, facts, of_whom


def _lost_key(session: str, facts: dict[str, Any]) -> LostKey:
    seq, place = facts.get("seq"), [facts.get(key) for key in ("collection", "id", "field")]
    need(is_number(seq) and all(type(part) is str for part in place), "names no lost value")
    loser, winner = read_stamp(facts.get("loser")), read_stamp(facts.get("winner"))
    return session, seq, place[0], place[1], place[2], loser, winner  # type: ignore[return-value]


def _turn_key(session: str, facts: dict[str, Any]) -> TurnKey:
    seq, index = facts.get("seq"), facts.get("index")
    need(is_number(seq) and is_number(index, 0), "names no event of a turn")
    return session, seq, index  # type: ignore[return-value]


def _check_turn(recorded: Recorded, key: TurnKey, facts: dict[str, Any]) -> None:
    need(key in recorded.turns, "speaks of a turn's event that the log does not have")
    said = {name: fact for name, fact in facts.items() if name not in PLACE}
    need(recorded.turns[key] in (None, said), "says something else of a turn than the log")


def _refusal_key(session: str, facts: dict[str, Any]) -> RefusalKey:
    dot, code = facts.get("dot"), facts.get("code")
    need(
        type(dot) is list
        and [type(part) for part in dot] == [str, int]
        and type(code) is int
        and code > 0,
        "names no refused op",
    )
    return session, dot[0], dot[1], code  # type: ignore[index,return-value]


def _match(
    problems: Problems, recorded: Recorded, lost: Counter[LostKey], refusals: set[RefusalKey]
) -> None:
    for key in sorted((recorded.lost - lost).keys()):
        problems.add(f"the ledger has no row for the value of {_shown(key)} that lost")
    for key in sorted((lost - recorded.lost).keys()):
        if key[0] not in recorded.unknown:
            problems.add(f"the ledger says that a value of {_shown(key)} lost, the log does not")
    # An op that a copied replica sends again under a new number is refused again without a row.
    said = {(key[0], recorded.refusals[key]) for key in refusals & recorded.refusals.keys()}
    for one in sorted(refusals ^ recorded.refusals.keys()):
        session, client, n, code = one
        if one in refusals or (session, recorded.refusals[one]) not in said:
            problems.add(
                f"ledger and refusals disagree on op {n} of {client!a} in session {session!a}, "
                f"refused with {code}"
            )


def _shown(key: LostKey) -> str:
    session, seq, collection, record_id, name = key[:5]
    return f"{collection!a}/{record_id!a} {name!a} at seq {seq} of session {session!a}"
