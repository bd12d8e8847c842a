"""The contract of stores lives in the testing kit; its made-up rows serve other tests as well."""

from syncline.testing import StoreContract
from syncline.testing._contract import (
    ALL,
    GENESIS,
    Abandoned,
    add_entries,
    closed,
    conflict,
    everything,
    fill,
    ledger_row,
    log_row,
    make_session,
    walk,
)

__all__ = [
    "ALL",
    "GENESIS",
    "Abandoned",
    "StoreContract",
    "add_entries",
    "closed",
    "conflict",
    "everything",
    "fill",
    "ledger_row",
    "log_row",
    "make_session",
    "walk",
]
