"""Anchors: what a file's heads were, kept outside of it.

A chain shows every edit but one: whoever holds the whole file can cut its tail off, or write all of
it anew. So the head hashes are noted now and then in another place, one JSON object to a line, and
the file must still have each of them where it was. A restore from an older backup cuts as well, and
is found the same way: the ledger says that there was one, and an anchor says what is gone.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ._file import BLOB, INT, TEXT, DataFile
from ._report import Problems


@dataclass(frozen=True, slots=True)
class Anchor:
    """The heads of a server's file. ``at`` is microseconds since the Unix epoch, hashes are hex.

    ``sessions`` maps an id to ``[seq, hash]`` of its last entry; sessions without one are left out.
    """

    at: int
    store_id: str
    epoch: int
    ledger_n: int
    ledger_hash: str
    sessions: dict[str, list[Any]]

    def line(self) -> str:
        """One line of an anchor file, without its end."""
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))


def take_anchor(path: str | Path, at: int) -> Anchor:
    """The anchor of a server's file as it is. Raises ValueError for any other file."""
    problems = Problems()
    with DataFile(path, problems) as file:
        if file.kind() != "server":
            raise ValueError(f"{path} is not a server's file")
        store = dict(file.rows("store", {"key": TEXT, "value": (str, int, bytes)}))
        ledger_n, ledger_hash = 0, b""
        for n, hash_ in file.rows("ledger", {"n": INT, "hash": BLOB}):
            ledger_n, ledger_hash = n, hash_
        sessions = {
            id_: [seq, hash_.hex()]
            for id_, seq, hash_ in file.rows("sessions", {"id": TEXT, "seq": INT, "hash": BLOB})
            if seq
        }
    if list(problems):
        raise ValueError(f"{path}: {next(iter(problems))}")
    epoch = int(store["epoch"])
    return Anchor(at, str(store["store_id"]), epoch, ledger_n, ledger_hash.hex(), sessions)


def read_anchors(path: str | Path) -> list[Anchor]:
    """The anchors of a file of lines. Raises ValueError that names the line which is none."""
    anchors = []
    for number, line in enumerate(Path(path).read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip():
            continue
        try:
            anchors.append(Anchor(**json.loads(line)))
        except (TypeError, ValueError) as error:
            raise ValueError(f"{path}, line {number}: not an anchor") from error
    return anchors


def check_anchors(path: str | Path, anchors: list[Anchor]) -> list[str]:
    """What the file no longer has of what the anchors saw in it."""
    problems = Problems()
    with DataFile(path, problems) as file:
        if file.kind() != "server":
            return list(problems) or ["anchors are of servers' files, and this is a replica"]
        store = dict(file.rows("store", {"key": TEXT, "value": (str, int, bytes)}))
        ledger = dict(file.rows("ledger", {"n": INT, "hash": BLOB}))
        numbers = dict(file.rows("sessions", {"id": TEXT, "session": INT}))
        floors = dict(file.rows("sessions", {"id": TEXT, "floor": INT}))
        for anchor in anchors:
            if anchor.store_id != store.get("store_id"):
                problems.add(f"the anchor of {anchor.at} is of another store")
                continue
            if anchor.ledger_n and ledger.get(anchor.ledger_n, b"").hex() != anchor.ledger_hash:
                problems.add(
                    f"ledger row {anchor.ledger_n} is gone or another since the anchor of "
                    f"{anchor.at}"
                )
            for id_, (seq, hash_) in anchor.sessions.items():
                if seq <= floors.get(id_, 0):
                    continue
                where = {"session": numbers.get(id_, -1), "seq": seq}
                found = [
                    row[1].hex() for row in file.rows("log", {"seq": INT, "hash": BLOB}, **where)
                ]
                if found != [hash_]:
                    problems.add(
                        f"log row {seq} of session {id_!a} is gone or another since the anchor "
                        f"of {anchor.at}"
                    )
    return list(problems)
