"""One conversation on three devices: one is offline, one dies in mid-turn, one takes over."""

import asyncio
import os
import subprocess
import sys
import tempfile

from pydantic import BaseModel

from syncline.client import Connection, Replica
from syncline.client import sessions as live
from syncline.server import SqliteStore, SyncServer


class Place(BaseModel):
    name: str


def guide(dying: Connection | None = None) -> live.Agent:
    tools = live.ToolRegistry()

    @tools.tool(read_only=True)  # So it may run again after a crash.
    async def weather(place: Place) -> str:
        if dying is not None:
            dying.wait_synced(10)
            os._exit(1)  # The battery is empty.
        return f"sunny at the {place.name}"

    looks = [live.TextDelta("Let me look."), live.Asked("weather", {"name": "lake"})]
    return live.Agent("guide", live.ScriptedResponder([looks, "Sunny: go!"]), tools)


def tablet(url: str, trip: str) -> None:
    with Replica("tablet.db", client_id="tablet") as replica, replica.connect(url) as up:
        up.wait_synced(10)
        runner = live.TurnRunner(replica, guide(dying=up), lease_us=1_000_000)
        asyncio.run(runner.run(replica.session(trip)))


def main(folder: str) -> None:
    phone, laptop = (Replica(f"{folder}/{name}", client_id=name) for name in ("phone", "laptop"))
    print("offline:", live.send(trip := phone.create_session(), "How is the lake?").state.value)
    with phone, laptop, SyncServer(SqliteStore(f"{folder}/server.db"), port=0) as server:
        phone.sync_once(server.url)
        subprocess.run([sys.executable, __file__, server.url, trip.id], cwd=folder, check=False)
        with laptop.connect(server.url) as up, live.TurnRunner(laptop, guide()):
            for item in live.EventLog(laptop.session(trip.id)).stream():
                print(item.client, item.type)  # What the tablet did, and how the laptop goes on.
                if item.payload.get("stopReason") == "completed":
                    break
            up.wait_synced(10)
        phone.sync_once(server.url)
        print([message.text for message in live.EventLog(trip).transcript().messages])


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        tablet(*sys.argv[1:]) if "ws://" in str(sys.argv[1:2]) else main(made)
