"""Playing a device history through a real server, and proving from the files that all agree.

``read_history`` checks a whole file before anything is played. ``play`` runs a server process, one
replica file per device and a real connection for each sync, and leaves closed files behind.
``check`` looks at nothing but those files, with the verifier's own code.
"""

from ._check import Result, check
from ._history import Delete, Event, History, Patch, Put, Resolve, Sync, Write, read_history
from ._player import Durability, Played, play
from ._process import ServerProcess

__all__ = [
    "Delete",
    "Durability",
    "Event",
    "History",
    "Patch",
    "Played",
    "Put",
    "Resolve",
    "Result",
    "ServerProcess",
    "Sync",
    "Write",
    "check",
    "play",
    "read_history",
]
