"""Who a peer is and which sessions it may open: static tokens.

A token names a principal and the sessions that it opens. Every given token is compared with every
known one in constant time, so that the time of an answer says nothing about how close a guess was.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from syncline.sync import LocalError, NotFound, is_id

ALL_SESSIONS = "*"
TOKEN_FILE_CHARS_MAX = 16 << 20
TOKEN_CHARS_MAX = 4096


@dataclass(frozen=True, slots=True)
class Principal:
    """Somebody who signed in. ``sessions`` are the ids that they may open, or ``*`` for all."""

    name: str
    sessions: frozenset[str] = frozenset({ALL_SESSIONS})

    @property
    def opens_all(self) -> bool:
        return ALL_SESSIONS in self.sessions

    def may_open(self, session: str) -> bool:
        return self.opens_all or session in self.sessions


ANONYMOUS = Principal("anonymous")
"""Everybody, on a server without tokens."""


class Tokens:
    """The tokens that a server knows."""

    def __init__(self, principals_by_token: Mapping[str, Principal]) -> None:
        self._known = [(token.encode(), who) for token, who in principals_by_token.items()]

    @staticmethod
    def single(token: str) -> Tokens:
        """One token that opens every session."""
        if not token:
            raise LocalError("the token is empty")
        return Tokens({token: Principal("owner")})

    @staticmethod
    def load(path: str | Path) -> Tokens:
        """The tokens of a JSON file: ``{"<token>": {"name": "alice", "sessions": ["*"]}}``.

        Raises NotFound (3113) without the file, and LocalError naming file and problem.
        """
        try:
            # Not read_text: a device or a pipe would never end.
            with open(path, encoding="utf-8") as file:
                text = file.read(TOKEN_FILE_CHARS_MAX + 1)
            if len(text) > TOKEN_FILE_CHARS_MAX:
                raise LocalError(
                    f"token file {path} is longer than {TOKEN_FILE_CHARS_MAX} characters"
                )
            rows = json.loads(text, object_pairs_hook=_unique)
        except FileNotFoundError as error:
            raise NotFound(f"there is no token file {path}", path=str(path)) from error
        except OSError as error:
            raise LocalError(f"token file {path} cannot be read: {error.strerror}") from error
        except (ValueError, RecursionError) as error:
            raise LocalError(f"token file {path} is not JSON: {error}") from error
        if not isinstance(rows, dict) or not rows:
            raise LocalError(f"token file {path} must be a JSON object with at least one token")
        return Tokens({token: _principal(path, token, row) for token, row in rows.items()})

    def who(self, token: str | None) -> Principal | None:
        """Whose token this is; None for one that nobody has."""
        given = (token or "").encode("utf-8", "surrogatepass")
        found: Principal | None = None
        for known, principal in self._known:
            if hmac.compare_digest(known, given):
                found = principal
        return found


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("it names a token or a key twice")
    return made


def _principal(path: str | Path, token: str, row: Any) -> Principal:
    """The principal of one row. Problems name the token by its beginning only: it is a secret."""
    shown = f"token file {path}: the token that begins with {token[:3]!r}"
    if not token or len(token) > TOKEN_CHARS_MAX:
        raise LocalError(f"{shown} must have 1 to {TOKEN_CHARS_MAX} characters")
    match row:
        case {"name": str(name), "sessions": [*sessions]} if name and len(row) == 2:
            for session in sessions:
                if session != ALL_SESSIONS and not is_id(session):
                    raise LocalError(f"{shown}: {session!r} is neither a session id nor '*'")
            return Principal(name, frozenset(sessions))
    raise LocalError(
        f'{shown} must have the form {{"name": "alice", "sessions": ["*"]}}, '
        "with '*' or session ids in the list"
    )
