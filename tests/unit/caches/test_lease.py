from __future__ import annotations

import pytest

from foveate.caches.lease import Lease
from foveate.decisions.eviction import Held, Holdings, LeastRecentlyUsed


def leased() -> tuple[Lease[str], Holdings[str, str], list[str]]:
    holdings: Holdings[str, str] = Holdings(10, LeastRecentlyUsed())
    held, _ = holdings.add("a", "A", 5)
    assert held is not None
    freed: list[str] = []

    def give_back(each: Held[str, str]) -> None:
        freed.extend(holdings.unpin(each))

    return Lease(held, give_back, holdings.repin), holdings, freed


def test_leaving_the_context_gives_the_entry_back_once() -> None:
    lease, holdings, freed = leased()
    holdings.drop("a", "dropped")
    with lease as inside:
        assert (inside.entry, inside.open) == ("A", True)
        assert freed == []
        inside.release()
        assert freed == ["A"]
    assert freed == ["A"]
    assert not lease.open


def test_another_lease_holds_on_its_own() -> None:
    lease, holdings, freed = leased()
    other = lease.again()
    holdings.drop("a", "dropped")
    lease.release()
    assert freed == []
    other.release()
    assert freed == ["A"]


def test_a_released_lease_cannot_be_leased_from() -> None:
    lease, _, _ = leased()
    lease.release()
    with pytest.raises(RuntimeError, match="released"):
        lease.again()
