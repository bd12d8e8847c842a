"""Frames that a client might send: almost always well formed, seldom wise.

``Writer`` is one client as a server sees it; it knows the number that comes next, so that many of
its ops are accepted and meet each other, and the rest of the product has something to settle.
"""

from __future__ import annotations

import random
from typing import Any

from syncline.sync import PROTOCOL_VERSION

from . import hostile

SESSIONS = ("s1", "s2", "s3")
CLIENTS = ("ann", "cyd", "dee")
NONCE = b"n" * 16


class Writer:
    """One client's frames. ``now`` is the time that its stamps are around."""

    def __init__(self, rng: random.Random, client: str, now: int) -> None:
        self._rng = rng
        self.client = client
        self.incarnation = 0
        self._now = now
        self._next = dict.fromkeys(SESSIONS, 1)
        self._sent: list[bytes] = []

    def hello(self) -> bytes:
        self.incarnation += 1
        return hostile.pack(
            {
                "type": "hello",
                "version": PROTOCOL_VERSION,
                "client": self.client,
                "incarnation": self.incarnation,
                "nonce": NONCE,
                "token": None,
                "clock": self._now,
            }
        )

    def open(self, session: str) -> bytes:
        return hostile.pack(
            {"type": "open", "session": session, "epoch": 1, "seq": 0, "hash": None}
        )

    def expects(self, session: str, n: int) -> None:
        """The server has said which number comes next."""
        self._next[session] = n

    def frame(self) -> bytes:
        """A good frame of any type, most often a push."""
        rng = self._rng
        session = rng.choice(SESSIONS)
        match rng.randrange(16):
            case 0:
                return self.hello()
            case 1:
                return hostile.pack({"type": "list", "after": rng.choice(("", "s1", "z"))})
            case 2:
                return self._open_somewhere(session)
            case 3:
                points = [[rng.randrange(40), rng.randbytes(32)] for _ in range(rng.randrange(9))]
                return hostile.pack({"type": "compare", "session": session, "points": points})
            case 4:
                after = rng.choice((b"", hostile.pack([0, "notes", "r1"]), rng.randbytes(6)))
                return hostile.pack(
                    {"type": "snapshot", "session": session, "after": after, "pending_from": 1}
                )
            case 5:
                seq = rng.randrange(1, 30)
                through = seq + rng.randrange(40)
                return hostile.pack(
                    {"type": "history", "session": session, "seq": seq, "through": through}
                )
            case 6:
                return hostile.pack({"type": "mark", "id": rng.randrange(9)})
            case 7:
                return hostile.pack(
                    {"type": "signal", "session": session, "kind": "typing", "payload": b"abc"}
                )
            case 8 if self._sent:
                return rng.choice(self._sent)
            case _:
                return self._push(session)

    def _open_somewhere(self, session: str) -> bytes:
        rng = self._rng
        return hostile.pack(
            {
                "type": "open",
                "session": session,
                "epoch": rng.choice((0, 1, 1, 2)),
                "seq": rng.choice((0, 0, 1, 5, 2**40)),
                "hash": rng.choice((None, rng.randbytes(32))),
                "pending_from": rng.choice((1, 2, 9)),
                "snapshot": rng.random() < 0.2,
            }
        )

    def _push(self, session: str) -> bytes:
        rng = self._rng
        ops = []
        for _ in range(rng.choice((1, 1, 1, 2, 5))):
            ops.append(self._op(session))
        data = hostile.pack({"type": "push", "session": session, "ops": ops})
        self._sent = [*self._sent[-20:], data]
        return data

    def _op(self, session: str) -> bytes:
        rng = self._rng
        n = self._next[session]
        self._next[session] += 1
        if rng.random() < 0.03:
            return hostile.pack([n, rng.randbytes(32)])
        changes = [self._change(session, n) for _ in range(rng.choice((1, 1, 1, 2, 4)))]
        body = hostile.pack(changes)
        if rng.random() < 0.25:
            body = hostile.pack(hostile.mutate(rng, changes), rng.choice(hostile.RAW))
        stamps = [self._now + rng.randrange(-9, 9) for _ in changes]
        former = [rng.choice(CLIENTS), rng.randrange(1, 9)] if rng.random() < 0.05 else None
        return hostile.pack([n, rng.randbytes(16), stamps, body, former])

    def _change(self, session: str, n: int) -> list[Any]:
        rng = self._rng
        context: dict[str, int] = {}
        if rng.random() < 0.7 and n > 1:
            context[self.client] = n - 1
        if rng.random() < 0.3:
            context[rng.choice(CLIENTS)] = rng.randrange(1, 20)
        record = f"r{rng.randrange(6)}"
        fields = {rng.choice("abcd"): self._value() for _ in range(rng.randrange(4))}
        match rng.randrange(9):
            case 0 | 1 | 2:
                return [1, "notes", record, context, fields]
            case 3 | 4:
                return [2, "notes", record, context, fields]
            case 5:
                return [3, "notes", record, context]
            case 6:
                return [4, "said", fields]
            case 7:
                return [5, rng.randbytes(10).hex()]
            case _:
                return [2, "$session", "header", context, {"label": self._value()}]

    def _value(self) -> Any:
        rng = self._rng
        return rng.choice((1, True, 1.0, "text", b"bytes", None, [1, [2]], {"b": 1, "a": [None]}))
