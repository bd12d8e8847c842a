"""The asyncio door to the same replica: each call runs in a thread and is awaited.

A call that was begun runs to its end even when the awaiting task is cancelled: the write is then
done or not done, never half, and cancellation is raised as always.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from syncline.sync import Conflict, Value

from ._link import Connection, SyncReport
from ._receipt import Receipt, ReceiptState
from ._replica import Replica, Status
from ._session import EventRow, Session
from ._writing import Choice

T = TypeVar("T")


async def _run(call: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    return await asyncio.shield(asyncio.to_thread(call, *args, **kwargs))


class AsyncReplica:
    """``async with AsyncReplica(replica)``: closes the replica at the end."""

    def __init__(self, replica: Replica) -> None:
        self.replica = replica

    @classmethod
    async def open(cls, *args: Any, **kwargs: Any) -> AsyncReplica:
        """As ``Replica(...)``, off the event loop."""
        return cls(await _run(Replica, *args, **kwargs))

    async def __aenter__(self) -> AsyncReplica:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        await _run(self.replica.close)

    async def create_session(self, label: str = "", **kwargs: Any) -> AsyncSession:
        return AsyncSession(await _run(self.replica.create_session, label, **kwargs))

    async def session(self, id: str, **kwargs: Any) -> AsyncSession:
        return AsyncSession(await _run(self.replica.session, id, **kwargs))

    async def sessions(self) -> list[AsyncSession]:
        return [AsyncSession(session) for session in await _run(self.replica.sessions)]

    async def sync_once(self, url: str, **kwargs: Any) -> SyncReport:
        return await _run(self.replica.sync_once, url, **kwargs)

    async def connect(self, url: str, **kwargs: Any) -> AsyncConnection:
        return AsyncConnection(await _run(self.replica.connect, url, **kwargs))

    async def status(self) -> Status:
        return await _run(self.replica.status)


class AsyncConnection:
    """A background connection, awaited."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    async def __aenter__(self) -> AsyncConnection:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def wait_synced(self, timeout: float | None = None) -> None:
        await _run(self.connection.wait_synced, timeout)

    async def close(self) -> None:
        await _run(self.connection.close)


class AsyncSession:
    """A session, awaited. For many changes as one op, hand ``transact`` a function."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.id = session.id

    async def put(self, collection: str, id: str, fields: Mapping[str, Value]) -> Receipt:
        return await _run(self.session.put, collection, id, fields)

    async def patch(self, collection: str, id: str, fields: Mapping[str, Value]) -> Receipt:
        return await _run(self.session.patch, collection, id, fields)

    async def delete(self, collection: str, id: str) -> Receipt:
        return await _run(self.session.delete, collection, id)

    async def append(self, type: str, payload: Mapping[str, Value]) -> Receipt:
        return await _run(self.session.append, type, payload)

    async def transact(self, function: Callable[[Session], T]) -> T:
        """Run ``function(session)`` as one atomic op, in a thread."""

        def run() -> T:
            with self.session.transaction():
                return function(self.session)

        return await _run(run)

    async def get(self, collection: str, id: str) -> dict[str, Value] | None:
        return await _run(self.session.get, collection, id)

    async def records(self, collection: str) -> list[tuple[str, dict[str, Value]]]:
        return await _run(lambda: list(self.session.records(collection)))

    async def events(self, after: int = 0, limit: int | None = None) -> list[EventRow]:
        return await _run(self.session.events, after, limit)

    async def conflicts(self) -> list[Conflict]:
        return await _run(self.session.conflicts)

    async def resolve_conflict(
        self, conflict_id: str, choice: Choice | Mapping[str, Value]
    ) -> Receipt:
        return await _run(self.session.resolve_conflict, conflict_id, choice)


async def settled(receipt: Receipt, timeout: float | None = None) -> ReceiptState:
    """Await a receipt: its state once it is settled or refused."""
    return await _run(receipt.wait, timeout)
