"""A Syncline client in a process of its own: a replica, through the public API alone."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Iterable, Mapping

import msgpack

from syncline.client import Connection, Notification, Replica, Session

from ._scale import COLLECTION, fields_of

WAIT_S_MAX = 300.0


def record_id(number: int) -> str:
    return f"r{number:08}"


def number_of(record: str) -> int:
    return int(record[1:])


def digest_of(rows: Iterable[tuple[str, Mapping[str, object]]]) -> str:
    """Of ids and fields, in the order of the ids; in whatever order the fields are kept."""
    whole = hashlib.sha256()
    for id_, fields in rows:
        whole.update(msgpack.packb([id_, sorted(fields.items())]))
    return whole.hexdigest()


class Device:
    """Plays a ``Part`` on a replica."""

    def __init__(self) -> None:
        self._replica: Replica | None = None
        self._session: Session | None = None
        self._connection: Connection | None = None
        self._token: str | None = None
        self._seen: dict[int, int] = {}
        self._changed = threading.Condition()

    @property
    def replica(self) -> Replica:
        assert self._replica is not None
        return self._replica

    @property
    def session(self) -> Session:
        assert self._session is not None
        return self._session

    def open(self, path: str, name: str, session: str, token: str | None) -> None:
        self._replica = Replica(path, client_id=name)
        self._token = token
        self._session = self._replica.session(session)

    def close(self) -> None:
        self.disconnect()
        if self._replica is not None:
            self._replica.close()
            self._replica = None

    # Offline.

    def write(self, first: int, count: int) -> float:
        put = self.session.put
        began = time.perf_counter()
        for number in range(first, first + count):
            put(COLLECTION, record_id(number), fields_of(number))
        return time.perf_counter() - began

    def write_batch(self, first: int, count: int) -> float:
        began = time.perf_counter()
        with self.replica.batch():
            self.write(first, count)
        return time.perf_counter() - began

    def write_transaction(self, first: int, count: int) -> float:
        """So many changes as one op."""
        began = time.perf_counter()
        with self.session.transaction():
            self.write(first, count)
        return time.perf_counter() - began

    def edit(self, order: list[int], edition: int, stamps: list[int]) -> None:
        with self.replica.batch():
            for number, stamp in zip(order, stamps, strict=True):
                fields = fields_of(number, edition)
                self.session.put(COLLECTION, record_id(number), fields, updated_at=stamp)

    def get(self, numbers: list[int]) -> float:
        """Read these records one by one."""
        ids = [record_id(number) for number in numbers]
        get = self.session.get
        began = time.perf_counter()
        for id_ in ids:
            if get(COLLECTION, id_) is None:
                raise KeyError(id_)
        return time.perf_counter() - began

    def list_all(self, times: int) -> float:
        """Read all records so many times."""
        began = time.perf_counter()
        for _ in range(times):
            for _ in self.session.records(COLLECTION):
                pass
        return time.perf_counter() - began

    def count_all(self, times: int) -> float:
        began = time.perf_counter()
        for _ in range(times):
            self.session.count(COLLECTION)
        return time.perf_counter() - began

    # Online.

    def sync(self, url: str) -> float:
        began = time.perf_counter()
        report = self.replica.sync_once(
            url, token=self._token, sessions=[self.session.id], timeout=WAIT_S_MAX
        )
        took = time.perf_counter() - began
        if report.pending or report.refused or report.paused:
            raise RuntimeError(f"not all was synced: {report}")
        return took

    def sync_through(self, url: str) -> float:
        return self.sync(url)

    def connect(self, url: str) -> None:
        self._connection = self.replica.connect(url, token=self._token, sessions=[self.session.id])
        self._connection.wait_synced(WAIT_S_MAX)

    def disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def wait(self) -> int:
        assert self._connection is not None
        self._connection.wait_synced(WAIT_S_MAX)
        return time.monotonic_ns()

    def watch(self) -> None:
        self._seen = {}
        self.session.watch(self._note, COLLECTION)

    def _note(self, notification: Notification) -> None:
        if notification.origin == "local" or notification.ids is None:
            return
        now = time.monotonic_ns()
        with self._changed:
            for id_ in notification.ids:
                self._seen.setdefault(number_of(id_), now)
            self._changed.notify_all()

    def await_seen(self, count: int) -> int:
        with self._changed:
            if not self._changed.wait_for(lambda: len(self._seen) >= count, WAIT_S_MAX):
                raise TimeoutError(f"saw {len(self._seen)} of {count} records of others")
            return max(self._seen.values(), default=0)

    def seen(self) -> dict[int, int]:
        with self._changed:
            return dict(self._seen)

    def write_paced(self, first: int, count: int, per_second: float) -> dict[int, int]:
        began_at: dict[int, int] = {}
        never = threading.Event()
        start = time.monotonic()
        for index in range(count):
            never.wait(max(0.0, start + index / per_second - time.monotonic()))
            number = first + index
            began_at[number] = time.monotonic_ns()
            self.session.put(COLLECTION, record_id(number), fields_of(number))
        return began_at

    def write_burst(self, first: int, count: int, batch: bool) -> int:
        began = time.monotonic_ns()
        self.write_batch(first, count) if batch else self.write(first, count)
        return began

    # What is there.

    def count(self) -> int:
        return self.session.count(COLLECTION)

    def digest(self) -> str:
        return digest_of(self.session.records(COLLECTION))

    def titles(self, numbers: Iterable[int]) -> list[str]:
        found = [self.session.get(COLLECTION, record_id(number)) for number in numbers]
        return [str(fields["title"]) if fields is not None else "" for fields in found]
