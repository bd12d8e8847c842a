"""Properties of rollback, forks and differences, over whatever two replicas write and sync."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.client.wire import IN_MEMORY, SECOND, Wire, state_of

from syncline.client import Replica, Session
from syncline.client.sessions import Checkpoints
from syncline.sync.sessions import Fields, Key, is_kept

SESSION = "s"
IDS = st.sampled_from(["a", "b"])
FIELDS = st.dictionaries(st.sampled_from(["f", "g", "h"]), st.integers(0, 3), max_size=3)
WHO = st.integers(0, 1)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), WHO, IDS, FIELDS),
        st.tuples(st.just("patch"), WHO, IDS, FIELDS),
        st.tuples(st.just("delete"), WHO, IDS, st.none()),
        st.tuples(st.just("append"), WHO, IDS, FIELDS),
        st.tuples(st.just("header"), WHO, IDS, st.integers(0, 3)),
        st.tuples(st.just("checkpoint"), WHO, IDS, st.none()),
        st.tuples(st.just("sync"), WHO, IDS, st.none()),
    ),
    min_size=3,
    max_size=20,
)
FEW = settings(
    max_examples=10, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)


class Pair:
    """Two replicas, and what showed on the author's when each checkpoint was made."""

    def __init__(self, folder: Path, steps: list[Any]) -> None:
        self.wire = Wire(folder=folder)
        self.ann, self.bob = self.wire.open("ann"), self.wire.open("bob")
        self.ann.create_session("x", session_id=SESSION)
        self.sync(self.ann)
        self.sync(self.bob)
        self.seen: list[tuple[str, dict[Key, Fields]]] = []
        for step in steps:
            self._do(*step)
            self.wire.now += SECOND

    def sync(self, replica: Replica) -> None:
        self.wire.sync(replica)

    def settle(self) -> None:
        for replica in (self.ann, self.bob, self.ann, self.bob):
            self.sync(replica)

    def session(self, who: int) -> Session:
        return (self.ann, self.bob)[who].session(SESSION)

    def _do(self, kind: str, who: int, id_: str, what: Any) -> None:
        session = self.session(who)
        match kind:
            case "put":
                session.put("notes", id_, what)
            case "patch":
                if session.get("notes", id_) is not None:
                    session.patch("notes", id_, what)
            case "delete":
                session.delete("notes", id_)
            case "append":
                session.append("said", what)
            case "header":
                session.patch("$session", "header", {f"topic {id_}": what})
            case "checkpoint":
                made = Checkpoints(session).create()
                self.seen.append((made.id, content(session)))
            case "sync":
                self.sync((self.ann, self.bob)[who])


def content(session: Session, at: Any = None) -> dict[Key, Fields]:
    """What shows at a place, but for what a rollback leaves alone (and None in the header)."""
    shown: dict[Key, Fields] = {}
    for key, fields in Checkpoints(session).state_at(at).records.items():
        if key == ("$session", "header"):
            shown[key] = {n: v for n, v in fields.items() if not is_kept(n) and v is not None}
        elif key[0] == "notes":
            shown[key] = fields
    return shown


@contextlib.contextmanager
def pair(steps: list[Any]) -> Iterator[Pair]:
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as folder:
        made = Pair(Path(folder), steps)
        try:
            yield made
        finally:
            made.wire.close()


@FEW
@given(STEPS, WHO, st.integers(0, 20))
def test_a_rollback_gives_the_state_at_its_seq_and_undoing_it_what_was_before(
    steps: list[Any], who: int, place: int
) -> None:
    with pair(steps) as made:
        session = made.session(who)
        past = Checkpoints(session)
        seq = min(place + 1, past.state_at().seq)
        before = content(session)
        back = past.rollback(seq)
        assert content(session) == content(session, seq)
        past.rollback(back.id)
        assert content(session) == before
        made.settle()
        assert state_of(made.ann, SESSION) == state_of(made.bob, SESSION)


@FEW
@given(STEPS)
def test_a_checkpoint_is_what_its_author_saw_on_every_replica_for_ever(steps: list[Any]) -> None:
    with pair(steps) as made:
        made.settle()
        for id_, seen in made.seen:
            for who in (0, 1):
                assert content(made.session(who), id_) == seen


@FEW
@given(STEPS, WHO, st.integers(0, 100))
def test_a_fork_shows_the_state_that_it_was_made_from(
    steps: list[Any], who: int, place: int
) -> None:
    with pair(steps) as made:
        session = made.session(who)
        past = Checkpoints(session)
        seq = min(place, past.state_at().seq)
        for at in (None, seq):
            fork = past.fork(at)
            theirs, ours = content(fork), content(session, at)
            header = theirs.pop(("$session", "header"))
            assert header["status"] == "active"
            ours.pop(("$session", "header"), None)
            assert theirs == ours
            said = [(e.payload, e.at) for e in past.live_events(at) if e.type == "said"]
            assert [(e.payload, e.at) for e in fork.events()] == said


@FEW
@given(STEPS, st.integers(0, 100), st.integers(0, 100))
def test_the_difference_of_two_seqs_leads_from_the_one_to_the_other(
    steps: list[Any], one: int, other: int
) -> None:
    with pair(steps) as made:
        past = Checkpoints(made.session(0))
        last = past.state_at().seq
        a, b = min(one, last), min(other, last)
        plain = {
            seq: {k: f for k, f in past.state_at(seq).records.items() if k[0] != "$checkpoint"}
            for seq in (a, b)
        }
        assert past.diff(a, b).apply(plain[a]) == plain[b]
