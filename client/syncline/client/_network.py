"""What the network says, in words: whether there is a way, who is away, and why it ended."""

from __future__ import annotations

import socket
from urllib.parse import urlsplit

import websockets


def route_to(url: str) -> str | None:
    """The local address that packets to the server would leave from; None without a way there.

    Connecting a datagram socket sends nothing: it only asks the routing table.
    """
    parts = urlsplit(url)
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            parts.hostname, parts.port or 443, type=socket.SOCK_DGRAM
        )[0]
        with socket.socket(family, kind, proto) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    except OSError:
        return None


def is_away(error: Exception) -> bool:
    """Whether a handshake failed for want of a server, as while a proxy waits for its restart."""
    if isinstance(error, websockets.InvalidStatus):
        return error.response.status_code >= 500
    return isinstance(error.__cause__, EOFError | OSError)


def why_away(error: BaseException, waited_s: float) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {waited_s:.0f} s"
    return str(error) or type(error).__name__


def why_closed(closed: websockets.ConnectionClosed) -> str:
    if closed.rcvd is not None:
        return f"the server closed the connection: {closed.rcvd.reason or closed.rcvd.code}"
    return "the connection broke"
