"""Erasing a person: what they wrote is in no file any more, and every chain still verifies."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import pytest

from syncline.cli.verify import verify_file
from syncline.client import EventRow, ReceiptState
from syncline.server import Compliance, Erased, LedgerLine, Principal, Tokens, erase, export_ledger
from syncline.sync import FileInUse, LegalHold, NotFound

from .support import SESSION, World, now_us, query

CANARY = "canary-4711"
TOKENS = Tokens({name: Principal(name, frozenset({"*"})) for name in ("ann", "bob", "eve")})


@pytest.fixture
def served(world: World) -> World:
    world.start(tokens=TOKENS)
    return world


def _sync(world: World, *names: str) -> None:
    for name in names:
        world.sync(name, token=name.split("-")[0])


def _erase(world: World, subject: str = "ann", compliance: Compliance | None = None) -> Erased:
    world.stop()
    return erase(world.data, subject, now=now_us(), compliance=compliance)


def _restart(world: World) -> None:
    world.start(tokens=TOKENS)


def _holds(path: Path, text: str = CANARY) -> list[str]:
    """The files of this database that hold the text anywhere, free pages included."""
    return [
        found.name
        for found in sorted(path.parent.glob(path.name + "*"))
        if text.encode() in found.read_bytes()
    ]


def _write_together(world: World) -> None:
    """Ann's values stand, lose to Bob's, die with Bob's deletion, and lie in events."""
    ann, bob = (world.replica(name).create_session(session_id=SESSION) for name in ("ann", "bob"))
    ann.put("notes", "hers", {"title": CANARY, "n": 1})
    ann.put("notes", "ours", {"title": CANARY + "-2", "body": "b"})
    ann.put("notes", "dead", {"title": CANARY + "-3"})
    ann.append("said", {"text": CANARY + "-4"})
    bob.put("notes", "his", {"title": "stays"})
    bob.append("said", {"text": "bob's"})
    _sync(world, "ann", "bob", "ann")
    ann.patch("notes", "ours", {"title": CANARY + "-5"})
    ann.patch("notes", "dead", {"title": CANARY + "-6"})
    ann.patch("notes", "his", {"more": CANARY + "-7"})
    bob.patch("notes", "ours", {"title": "of bob"})
    bob.delete("notes", "dead")
    _sync(world, "ann", "bob", "ann")


def test_ER1_what_a_person_wrote_goes_from_every_file_and_the_chains_hold(served: World) -> None:
    _write_together(served)
    late = served.replica("eve")
    _sync(served, "eve")
    head = served.query("SELECT seq, hash FROM sessions")
    served.close("ann", "bob")

    erased = _erase(served)
    # Ann's eight entries, and two of Bob's that told what she lost; the label is a record's, too.
    assert erased == Erased(("ann",), (SESSION,), 10, 4, 2, erased.identities)
    assert _holds(served.data) == []
    ((seq, hash_),) = served.query("SELECT seq, hash FROM log ORDER BY seq DESC LIMIT 1 OFFSET 1")
    assert [(seq, hash_)] == head
    assert verify_file(served.data).all_problems() == []

    _restart(served)
    assert _holds(served.folder / "eve.db") != []
    _sync(served, "eve", "eve")
    _sync_open(served, "ann", "bob")
    fresh = served.replica("bob-2")
    _sync(served, "bob-2")
    for replica in (late, fresh, served.replica("ann"), served.replica("bob")):
        session = replica.session(SESSION)
        assert dict(session.records("notes")) == {
            "hers": {"title": None, "n": None},
            "his": {"title": "stays", "more": None},
            "ours": {"title": "of bob", "body": None},
        }
        assert [event.payload for event in session.events()] == [{}, {"text": "bob's"}]
        assert all(CANARY not in repr(one) for one in session.conflicts())
    served.check()
    assert [_holds(path) for path in (served.data, *served.files)] == [[]] * 5


def _sync_open(world: World, *names: str) -> None:
    for name in names:
        world.replica(name)
        _sync(world, name)


def test_ER2_a_replica_that_is_behind_folds_skeletons_and_comes_to_the_same(served: World) -> None:
    served.replica("eve").create_session(session_id=SESSION)
    _sync(served, "eve")
    _write_together(served)
    _erase(served)
    _restart(served)
    _sync(served, "eve", "ann", "bob")
    served.check()
    assert _holds(served.folder / "eve.db") == []


def test_ER3_what_the_person_writes_later_stays(served: World) -> None:
    _write_together(served)
    _erase(served)
    _restart(served)
    receipt = served.session("ann").patch("notes", "hers", {"title": "anew"})
    _sync(served, "ann", "bob")
    assert receipt.state is ReceiptState.APPLIED
    assert served.session("bob").get("notes", "hers") == {"title": "anew", "n": None}
    served.check()


def test_ER4_a_write_whose_answer_was_lost_is_known_again_without_its_salt(served: World) -> None:
    _write_together(served)
    served.session("ann").put("notes", "last", {"title": CANARY})
    served.close("ann")
    shutil.copy(served.folder / "ann.db", served.folder / "ann-before")
    _sync_open(served, "ann")
    count = len(served.log())
    _erase(served)
    _restart(served)
    # The file as it was before the answer: its op is pending, and in the log.
    served.close("ann")
    shutil.copy(served.folder / "ann-before", served.folder / "ann.db")
    _sync_open(served, "ann")
    _sync(served, "ann", "bob")
    assert len(served.log()) == count + 1
    assert served.session("ann").pending() == []
    assert served.session("bob").get("notes", "last") == {"title": None}
    served.check()


def test_ER5_erasing_names_nobody_and_again_finds_nothing(served: World) -> None:
    _write_together(served)
    first = _erase(served)
    assert first.entries > 0
    identities = [line.identity for line in export_ledger(served.data)]
    assert all("ann" not in (who or {}).values() for who in identities)
    assert any("bob" in (who or {}).values() for who in identities)
    (row,) = [line for line in export_ledger(served.data) if line.kind == "erasure"]
    assert (row.session, row.facts["entries"], row.identity) == (SESSION, first.entries, {})
    with pytest.raises(NotFound):
        erase(served.data, "ann", now=now_us())
    with pytest.raises(NotFound):
        erase(served.data, "nobody", now=now_us())


def test_R1_8_ER6_a_hold_stops_an_erasure_before_anything_is_erased(served: World) -> None:
    class Held(Compliance):
        def hold(self, session: str, clients: Collection[str]) -> str | None:
            assert (session, set(clients)) == (SESSION, {"ann"})
            return "a court asked for it"

    _write_together(served)
    with pytest.raises(LegalHold, match="a court asked for it"):
        _erase(served, compliance=Held())
    assert served.data.name in _holds(served.data)
    served.check()


def test_a_running_server_is_not_erased_under(served: World) -> None:
    _write_together(served)
    with pytest.raises(FileInUse):
        erase(served.data, "ann", now=now_us())


def test_R1_8_a_host_says_which_clients_are_a_persons_and_what_may_be_told(served: World) -> None:
    class Host(Compliance):
        def clients_of(self, subject: str) -> Collection[str]:
            return {"person 9": ["ann"]}.get(subject, [])

        def redact(self, line: LedgerLine) -> LedgerLine | None:
            return None if line.kind == "sign_in" else line

    _write_together(served)
    assert _erase(served, "person 9", Host()).clients == ("ann",)
    kinds = [line.kind for line in export_ledger(served.data, compliance=Host())]
    assert "sign_in" not in kinds and kinds[-1] == "erasure"
    assert len(list(export_ledger(served.data, after=1))) > len(kinds)


@pytest.mark.parametrize("what", ["skeleton", "named", "unnamed"])
def test_ER7_a_skeleton_that_was_touched_since_is_found(served: World, what: str) -> None:
    _write_together(served)
    _erase(served)
    _tamper(served.data, what)
    problems = verify_file(served.data).all_problems()
    assert any("erased" in one or "erasure" in one for one in problems), problems


def _tamper(path: Path, what: str) -> None:
    import sqlite3
    from contextlib import closing

    from syncline.sync import Entry, Event, encode_body

    with closing(sqlite3.connect(path)) as db, db:
        rows: list[tuple[int, bytes]] = db.execute("SELECT seq, entry FROM log").fetchall()
        seq, entry = next(
            (seq, entry)
            for seq, entry in ((seq, Entry.decode(data)) for seq, data in rows)
            if entry.erased and isinstance(entry.read()[0].change, Event)
        )
        changed: Mapping[str, Any] = {
            "skeleton": entry._replace(body=encode_body([Event("said", {"text": "not hers"})])),
            "named": entry._replace(salt=bytes(16)),
            "unnamed": entry,
        }
        db.execute("DROP TRIGGER log_stands")
        db.execute("UPDATE log SET entry=? WHERE seq=?", (changed[what].encode(), seq))
        if what == "unnamed":
            db.execute("DROP TRIGGER log_keeps")
            db.execute("DELETE FROM log WHERE seq=(SELECT max(seq) FROM log)")


def test_an_own_event_row_says_that_it_was_erased(served: World) -> None:
    _write_together(served)
    _erase(served)
    _restart(served)
    _sync(served, "ann")
    rows: list[EventRow] = served.session("ann").events()
    assert [(row.type, row.payload) for row in rows] == [("said", {}), ("said", {"text": "bob's"})]
    assert query(served.folder / "ann.db", "SELECT count(*) FROM syncline_refused") == [(0,)]
