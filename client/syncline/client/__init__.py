"""The client: a durable replica that works offline, and the connection that syncs it.

from syncline.client import Replica

with Replica("notes.db") as replica:
    session = replica.create_session("my notes")
    session.put("notes", "n1", {"title": "written offline"})
    replica.sync_once("ws://127.0.0.1:8787")
"""

from ._aio import AsyncConnection, AsyncReplica, AsyncSession, settled
from ._core import LeaseLost
from ._link import Connection, State, SyncReport
from ._receipt import Receipt, ReceiptState
from ._replica import Notice, Replica, SessionStatus, Status
from ._session import EventRow, PendingOp, RefusedOp, Session
from ._watch import Notification

__all__ = [
    "AsyncConnection",
    "AsyncReplica",
    "AsyncSession",
    "Connection",
    "EventRow",
    "LeaseLost",
    "Notice",
    "Notification",
    "PendingOp",
    "Receipt",
    "ReceiptState",
    "RefusedOp",
    "Replica",
    "Session",
    "SessionStatus",
    "State",
    "Status",
    "SyncReport",
    "settled",
]
