"""The sync server: settles what clients push, keeps the canonical log, sends it to everybody.

``SyncServer`` is the whole of it on a socket; ``ServerEngine`` is the same as a state machine
without sockets, threads or clocks; stores and the interface they share are beside it.
"""

from ._audit import Author
from ._auth import ANONYMOUS, Principal, Tokens
from ._compliance import Compliance, LedgerLine
from ._coordinator import (
    AHEAD_US_MAX,
    Committed,
    GroupResult,
    Lane,
    PushedOps,
    SignIn,
    SyncCoordinator,
)
from ._engine import ServerEngine
from ._erasure import Erased, erase, erase_in
from ._export import export_ledger
from ._ledger import check_ledger
from ._memory_store import MemoryStore
from ._peer import (
    Admitted,
    Close,
    Connected,
    Consumed,
    Disconnected,
    Drained,
    Input,
    Output,
    Received,
    Send,
    Tick,
)
from ._restore import Restored, backup, restore
from ._server import DEFAULT_HOST, DEFAULT_PORT, SyncServer
from ._session_store import ServerSessionStore
from ._sqlite_store import SqliteStore
from ._store import (
    Device,
    Head,
    Identity,
    LastOp,
    LedgerRow,
    LogRow,
    RecordKey,
    RecordRow,
    RefusalRow,
    SealedRow,
    SessionRow,
    SnapshotPart,
    Store,
    Transaction,
)

__all__ = [
    "AHEAD_US_MAX",
    "ANONYMOUS",
    "Admitted",
    "Author",
    "Close",
    "Committed",
    "Compliance",
    "Connected",
    "Consumed",
    "DEFAULT_HOST",
    "DEFAULT_PORT",
    "Device",
    "Disconnected",
    "Drained",
    "Erased",
    "GroupResult",
    "Head",
    "Identity",
    "Input",
    "Lane",
    "LastOp",
    "LedgerLine",
    "LedgerRow",
    "LogRow",
    "MemoryStore",
    "Output",
    "Principal",
    "PushedOps",
    "Received",
    "RecordKey",
    "RecordRow",
    "RefusalRow",
    "Restored",
    "SealedRow",
    "Send",
    "ServerEngine",
    "ServerSessionStore",
    "SessionRow",
    "SignIn",
    "SnapshotPart",
    "SqliteStore",
    "Store",
    "SyncCoordinator",
    "SyncServer",
    "Tick",
    "Tokens",
    "Transaction",
    "backup",
    "check_ledger",
    "erase",
    "erase_in",
    "export_ledger",
    "restore",
]
