"""Two devices, one server, a week without a network: what a desktop app's author writes.

    python examples/shared_notes.py

Everything runs in this process and in a temporary folder, the server included, so that it can be
tried as it is. An app would have one replica, and an address from its settings.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from syncline.client import Notification, Replica
from syncline.server import SqliteStore, SyncServer


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with (
            SyncServer(SqliteStore(folder / "server.db"), port=0) as server,
            Replica(folder / "laptop.db", client_id="laptop") as laptop,
            Replica(folder / "phone.db", client_id="phone") as phone,
        ):
            tour(server.url, laptop, phone)


def tour(url: str, laptop: Replica, phone: Replica) -> None:
    notes = laptop.create_session("trip")
    with notes.transaction():  # Both records, or none, on every device and at every moment.
        notes.put("places", "lake", {"name": "Lake", "days": 2})
        notes.put("places", "peak", {"name": "Peak", "days": 1})
    laptop.sync_once(url)
    phone.sync_once(url)

    # A week offline: both change the lake, each in its own way.
    same = phone.session(notes.id)
    same.patch("places", "lake", {"days": 3, "boat": True})
    same.append("user.message", {"text": "found a boat"})
    receipt = notes.patch("places", "lake", {"days": 4})
    print("offline, the laptop's edit is", receipt.state.value)

    seen: list[Notification] = []
    notes.watch(seen.append)
    with laptop.connect(url) as home, phone.connect(url) as away:
        home.wait_synced(timeout=30)
        away.wait_synced(timeout=30)
        home.wait_synced(timeout=30)
    print("the laptop's edit", receipt.state.value, "and the lake is", notes.get("places", "lake"))
    print("the laptop was told of", sorted({one.origin for one in seen}))

    for conflict in notes.conflicts():
        print(f"lost: {conflict.field} = {conflict.value}, written by {conflict.loser.client}")
        notes.resolve_conflict(conflict.id, {conflict.field: 7})
    laptop.sync_once(url)
    phone.sync_once(url)
    assert notes.get("places", "lake") == same.get("places", "lake")
    assert notes.conflicts() == same.conflicts() == []
    print("settled by hand:", same.get("places", "lake"))


if __name__ == "__main__":
    main()
