"""What a host decides about the data of persons: three hooks, each with a sane default.

Subclass it and pass it to ``erase`` and ``export_ledger``. The hooks are asked before anything is
changed; what they raise stops the work with nothing done.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class LedgerLine:
    """A ledger row as it is exported; ``identity`` is None where it was cleared.

    ``at`` is microseconds since the Unix epoch, ``hash`` the ledger's hash at this row.
    """

    n: int
    at: int
    kind: str
    session: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    identity: Mapping[str, Any] | None = None
    hash: bytes = b""


class Compliance:
    """The default: the subject is who signed in under that name, nothing is held, all is told."""

    def clients_of(self, subject: str) -> Collection[str]:
        """Erasure: client ids of ``subject`` beside those that signed in under that name."""
        return ()

    def hold(self, session: str, clients: Collection[str]) -> str | None:
        """Retention or legal hold: why this session must not be erased; None lets it be."""
        return None

    def redact(self, line: LedgerLine) -> LedgerLine | None:
        """Export: the row as it may be told to whoever asks; None leaves it out."""
        return line
