"""What may not be applied: entries of another history, and another's op under an own number."""

from __future__ import annotations

import pytest
from tests.client.wire import Wire, state_of

from syncline.client import ReceiptState
from syncline.sync import NO_HASH, Diverged, ReplicaCloned


def test_EN2_a_page_that_does_not_continue_the_chain_at_the_cursor_is_not_applied(
    wire: Wire,
) -> None:
    ann, bob = wire.open("ann"), wire.open("bob")
    ann.session("s").put("n", "r", {"x": 1})
    wire.sync(ann)
    wire.sync(bob)
    before = state_of(bob, "s")
    ann.session("s").patch("n", "r", {"x": 2})
    wire.sync(ann)
    second = wire.log("s")[1].encode()
    assert bob._core.acquire_lease()
    with pytest.raises(Diverged, match="entry 2 does not continue the chain at 1"):
        bob._core.apply_entries("s", 2, NO_HASH, [second])
    assert (state_of(bob, "s"), bob._core.cursor("s")) == (before, 1)


def test_CL1_an_entry_under_an_own_number_with_another_salt_settles_nothing(wire: Wire) -> None:
    bob = wire.open("bob")
    session = bob.session("s")
    copy = wire.copy(bob, "copy")
    copy.session("s").put("n", "r", {"x": 2})
    wire.sync(copy)
    mine = session.put("n", "r", {"x": 1})
    (entry,) = wire.log("s")
    head = wire.store.head("s")
    assert head is not None and (entry.client, entry.n) == ("bob", 1)
    assert bob._core.acquire_lease()
    with pytest.raises(ReplicaCloned, match="op 1 of this client that this replica did not write"):
        bob._core.apply_entries("s", 1, head.genesis, [entry.encode()])
    assert mine.state is ReceiptState.QUEUED
    assert session.get("n", "r") == {"x": 1}


@pytest.mark.parametrize("last", [1, 2])
def test_CL1_a_server_that_knows_other_ops_of_this_client_is_noticed_as_it_opens(
    wire: Wire, last: int
) -> None:
    """Before anything is sent or applied; also when it knows more of them than there are here."""
    bob = wire.open("bob")
    bob.session("s").put("n", "r", {"x": 1})
    with pytest.raises(ReplicaCloned, match=f"{last} ops of this client in session s"):
        bob._core.check_lineage("s", last, NO_HASH)
    bob._core.check_lineage("s", 0, NO_HASH)
