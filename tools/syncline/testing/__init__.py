"""The testing kit: worlds from a seed, checkers, and what others point at their own code.

Names are imported when they are first used: pytest loads this package in every run of everybody
who has Syncline installed (see ``plugin``), and only some parts need the extra
``syncline[testing]``. The strategies are in ``syncline.testing.strategies``.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._campaign import Campaign, Failure, play, run, shrink
    from ._checkers import Violation
    from ._contract import StoreContract
    from ._histories import History, Sync, Write
    from ._link import Cut, Message, Proxy, Way
    from ._playing import Played, play_history
    from ._record import Recording, record
    from ._resolver import Resolver, WrongResolver, check_resolver
    from ._session_contract import SessionStoreContract
    from ._teeth import Bite, Planted, bite, planted_faults
    from ._world import FAULTS, Options, Result, World

__all__ = [
    "Bite",
    "Campaign",
    "Cut",
    "FAULTS",
    "Failure",
    "History",
    "Message",
    "Options",
    "Planted",
    "Played",
    "Proxy",
    "Recording",
    "Resolver",
    "Result",
    "SessionStoreContract",
    "StoreContract",
    "Sync",
    "Violation",
    "Way",
    "World",
    "Write",
    "WrongResolver",
    "bite",
    "check_resolver",
    "planted_faults",
    "play",
    "play_history",
    "record",
    "run",
    "shrink",
]

_NAMES_BY_MODULE = {
    "_campaign": ("Campaign", "Failure", "play", "run", "shrink"),
    "_checkers": ("Violation",),
    "_contract": ("StoreContract",),
    "_histories": ("History", "Sync", "Write"),
    "_link": ("Cut", "Message", "Proxy", "Way"),
    "_playing": ("Played", "play_history"),
    "_record": ("Recording", "record"),
    "_resolver": ("Resolver", "WrongResolver", "check_resolver"),
    "_session_contract": ("SessionStoreContract",),
    "_teeth": ("Bite", "Planted", "bite", "planted_faults"),
    "_world": ("FAULTS", "Options", "Result", "World"),
}
_HOMES = {name: module for module, names in _NAMES_BY_MODULE.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOMES[name]}", __name__), name)
