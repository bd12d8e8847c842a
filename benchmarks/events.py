"""Appends and folds over a long session: 10,000 turns must cost ten times 1,000.

    python -m benchmarks.events [--turns N] [--parts N]

One replica without a server, ``durability="normal"`` in a temporary folder, a scripted turn of six
events each time: the user's message, running, a request, its answer, what it cost, idle. Two
columns a part: CPU time per turn of appending it and folding it in (the log is read after each
turn, as an app would that shows it), and of a stream that replays the part. ``ratio`` is the last
part against the first: 1 is linear.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

from syncline.client import Replica
from syncline.client.sessions import EventLog
from syncline.sync.sessions import (
    AgentMessage,
    Logged,
    ModelRequestCompleted,
    ModelRequestStarted,
    RunStatus,
    SessionStatusChanged,
    StopReason,
    UserMessage,
)


def turn(number: int) -> list[Logged]:
    """What one scripted turn writes."""
    turn_id, request_id, message_id = f"t{number}", f"r{number}", f"m{number}"
    place: dict[str, Any] = {"turn_id": turn_id, "request_id": request_id, "step": 0}
    return [
        UserMessage(message_id=message_id, text=f"question {number}"),
        SessionStatusChanged(status=RunStatus.RUNNING, turn_id=turn_id, message_ids=[message_id]),
        ModelRequestStarted(**place, message_ids=[message_id]),
        AgentMessage(**place, message_id=f"a{number}", text=f"answer {number}", tool_calls=[]),
        ModelRequestCompleted(**place, input_tokens=100, output_tokens=10),
        SessionStatusChanged(
            status=RunStatus.IDLE, turn_id=turn_id, stop_reason=StopReason.COMPLETED
        ),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=10_000)
    parser.add_argument("--parts", type=int, default=10)
    given = parser.parse_args()
    size = given.turns // given.parts
    appended: list[float] = []
    replayed: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "replica.db"
        with Replica(path, durability="normal", outbox_ops_max=10 * given.turns) as replica:
            log = EventLog(replica.create_session("bench"))
            with log.stream() as stream:
                print(f"{'turns':>8} {'append + fold, us':>18} {'replay, us':>11}")
                for part in range(given.parts):
                    begun = time.process_time()
                    for number in range(part * size, (part + 1) * size):
                        log.append(*turn(number))
                        assert not log.open_items().queued
                    between = time.process_time()
                    for _ in range(6 * size):
                        assert stream.get(timeout=0) is not None
                    ended = time.process_time()
                    appended.append((between - begun) / size * 1e6)
                    replayed.append((ended - between) / size * 1e6)
                    done = (part + 1) * size
                    print(f"{done:>8} {appended[-1]:>18.0f} {replayed[-1]:>11.0f}", flush=True)
            begun = time.process_time()
            messages = len(log.transcript().messages)
            whole = time.process_time() - begun
    assert messages == 2 * size * given.parts, messages
    print(f"ratio    {appended[-1] / appended[0]:>18.2f} {replayed[-1] / replayed[0]:>11.2f}")
    print(f"the transcript of {messages} messages: {whole * 1e3:.0f} ms")


if __name__ == "__main__":
    main()
