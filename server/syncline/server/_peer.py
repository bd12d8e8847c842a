"""What goes into the engine and what comes out of it, and what it remembers of a connection."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from syncline.sync import ToServer

from ._auth import Principal
from ._coordinator import Lane

# Inputs.


@dataclass(frozen=True, slots=True)
class Connected:
    """A socket finished its handshake. ``conn`` is a number never used before."""

    conn: int
    address: str


@dataclass(frozen=True, slots=True)
class Received:
    """One message from a connection."""

    conn: int
    data: bytes | str


@dataclass(frozen=True, slots=True)
class Drained:
    """So many bytes of what was sent have left for the network."""

    conn: int
    bytes_sent: int


@dataclass(frozen=True, slots=True)
class Disconnected:
    """A connection ended, by whichever end."""

    conn: int


@dataclass(frozen=True, slots=True)
class Tick:
    """Nothing but time has passed."""


Input = Connected | Received | Drained | Disconnected | Tick

# Outputs.


@dataclass(frozen=True, slots=True)
class Send:
    """One message for a connection. The shell answers with ``Drained`` when it has left."""

    conn: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Close:
    """End a connection, after what was sent before. The engine has forgotten it already."""

    conn: int
    code: int
    reason: str


@dataclass(frozen=True, slots=True)
class Admitted:
    """A connection signed in: larger frames may come from now on."""

    conn: int


@dataclass(frozen=True, slots=True)
class Consumed:
    """So many bytes of what was received are dealt with: the shell may read as many again."""

    conn: int
    bytes_taken: int


Output = Send | Close | Admitted | Consumed

# Close codes of RFC 6455 as used here.
CLOSE_PROTOCOL = 1002
CLOSE_BAD_DATA = 1007
CLOSE_POLICY = 1008
CLOSE_INTERNAL = 1011
CLOSE_TRY_LATER = 1013


@dataclass(slots=True, eq=False)
class Subscription:
    """A session open on a connection, sent up to ``seq``, where the chain's hash is ``hash``."""

    session: str
    seq: int
    hash: bytes
    lane: Lane = field(default_factory=Lane)


@dataclass(slots=True, eq=False)
class Peer:
    """A connection. ``principal`` is None until it has signed in.

    ``unsent_bytes`` were given to the shell and have not left yet. ``inbox`` are messages not yet
    dealt with. ``behind`` are the sessions whose entries it gets from the store, not live.
    ``gone`` says that its socket ended: what it sent before still counts, nothing is sent to it.
    """

    conn: int
    address: str
    client: str = ""
    principal: Principal | None = None
    unsent_bytes: int = 0
    gone: bool = False
    inbox: deque[bytes | str | ToServer] = field(default_factory=deque)
    subscriptions: dict[str, Subscription] = field(default_factory=dict)
    behind: dict[str, Subscription] = field(default_factory=dict)
    unsubscribed: set[str] = field(default_factory=set)
    """Sessions that were opened without a common history; pushes to them are set aside."""
