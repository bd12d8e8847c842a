"""Sessions in a folder, one JSON file each.

``{id}.json`` is written whole: under an exclusive lock on ``{id}.lock``, into a temporary file that
is synced to disk and then renamed, so that a crash leaves the old file or the new one. A file that
cannot be read as a session is left as it is, whatever is asked of it.

JSON has no bytes: a value of bytes is ``{"$bytes": "<base64>"}``, and a key of the app's that
begins with ``$`` has one more.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import portalocker

from syncline.sync import DiskFull, InvalidSessionFile, InvalidValue, ReadOnly
from syncline.sync.sessions import (
    AgentSession,
    SessionHeader,
    check_creatable,
    check_savable,
)

from ._ids import wall_clock

FORMAT = 1
BYTES = "$bytes"
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")


class JsonSessionStore:
    """Sessions in ``folder``, which is made. Any number of threads and processes may use it.

    ``clock`` gives microseconds since the Unix epoch. Raises InvalidValue (3019) for an id that is
    none, InvalidSessionFile (3122) for a file that is no session, ReadOnly (3103) or DiskFull
    (3105) when the folder does not let itself be written.
    """

    def __init__(
        self, folder: str | os.PathLike[str], *, clock: Callable[[], int] = wall_clock
    ) -> None:
        self.folder = Path(folder).resolve()
        self._clock = clock
        with _explained(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)

    def create(self, session: AgentSession) -> AgentSession:
        """See ``SessionStore``."""
        with self._locked(session.id) as path:
            check_creatable(session, taken=path.exists())
            return _write(path, session.stored(version=1, updated_at=self._clock()))

    def save(self, session: AgentSession) -> AgentSession:
        """See ``SessionStore``. A file that is no session is not overwritten."""
        with self._locked(session.id) as path:
            kept = _read(path, session.id)
            check_savable(session, None if kept is None else kept.version)
            assert kept is not None
            at = max(self._clock(), kept.header.updated_at + 1)
            return _write(path, session.stored(version=kept.version + 1, updated_at=at))

    def load(self, session_id: str) -> AgentSession | None:
        return _read(self._path(session_id), session_id)

    def exists(self, session_id: str) -> bool:
        return self._path(session_id).exists()

    def delete(self, session_id: str) -> None:
        with self._locked(session_id) as path, _explained(path):
            path.unlink(missing_ok=True)
            _sync_folder(self.folder)

    def list_headers(self) -> list[SessionHeader]:
        """The headers by id. Raises InvalidSessionFile (3122) when a file is no session."""
        names = sorted(path.stem for path in self.folder.glob("*.json"))
        found = (self.load(name) for name in names if _ID.fullmatch(name))
        return [session.header for session in found if session is not None]

    def _path(self, session_id: str, ending: str = ".json") -> Path:
        if not isinstance(session_id, str) or _ID.fullmatch(session_id) is None:
            raise InvalidValue(f"{session_id!r} is not the id of a session", what="session id")
        path = self.folder / f"{session_id}{ending}"
        # The alphabet has no way out of the folder; a link that somebody put there has.
        if path.resolve().parent != self.folder:
            raise InvalidValue(f"{path} leads out of {self.folder}", what="session id")
        return path

    @contextlib.contextmanager
    def _locked(self, session_id: str) -> Iterator[Path]:
        path, lock = self._path(session_id), self._path(session_id, ".lock")
        # The lock file stays: were it removed, two could hold locks on two files of one name.
        with _explained(lock), open(lock, "ab") as file:
            portalocker.lock(file, portalocker.LockFlags.EXCLUSIVE)
            try:
                yield path
            finally:
                portalocker.unlock(file)


def _read(path: Path, session_id: str) -> AgentSession | None:
    with _explained(path):
        try:
            text = path.read_bytes()
        except FileNotFoundError:
            return None
    try:
        row = json.loads(text, object_hook=_from_json)
        if type(row) is not dict or row.get("format") != FORMAT:
            raise InvalidValue(f"its format is not {FORMAT}")
        session = AgentSession.from_dict(row)
        if session.id != session_id or type(session.version) is not int or session.version < 1:
            raise InvalidValue(f"it is version {session.version} of session {session.id}")
    except (ValueError, RecursionError, InvalidValue) as error:
        reason = error.reason if isinstance(error, InvalidValue) else str(error)
        raise InvalidSessionFile(
            f"{path} is no session: {reason}", path=str(path), problem=reason
        ) from error
    return session


def _write(path: Path, session: AgentSession) -> AgentSession:
    row = _to_json({"format": FORMAT, **session.to_dict()})
    data = json.dumps(row, ensure_ascii=False, indent=1, allow_nan=False).encode()
    temporary = path.with_suffix(".tmp")
    with _explained(path):
        try:
            with open(temporary, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        _sync_folder(path.parent)
    return session


def _sync_folder(folder: Path) -> None:
    """Make a rename last; where a folder cannot be opened (Windows), the system sees to it."""
    if os.name == "nt":
        return
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise ReadOnly(f"{path} cannot be written: its folder is gone") from error
    except PermissionError as error:
        raise ReadOnly(f"{path} cannot be used: {error.strerror}") from error
    except OSError as error:
        raise DiskFull(f"{path} cannot be written: {error.strerror}") from error


def _to_json(value: Any) -> Any:
    if type(value) is bytes:
        return {BYTES: base64.b64encode(value).decode()}
    if type(value) is list:
        return [_to_json(item) for item in value]
    if type(value) is dict:
        return {f"${key}" if key[:1] == "$" else key: _to_json(value[key]) for key in value}
    return value


def _from_json(row: dict[str, Any]) -> Any:
    if row.keys() == {BYTES}:
        return base64.b64decode(row[BYTES], validate=True)
    return {key[1:] if key[:1] == "$" else key: value for key, value in row.items()}
