from __future__ import annotations

import contextlib
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveate.core.budget import Budget, Caller
from foveate.core.errors import HouseFull, MediaTotalTooLarge
from foveate.decisions.budget import DECODE_LIMIT
from foveate.journey.in_flight import InFlight, NoRoom
from foveate.journey.in_flight_limits import QUANTITIES, SERVER_LIMITS, TENANT_LIMITS, Quantity
from foveate.journey.places import WAITING_LIMIT
from foveate.observe.labels import LIMIT


def house(**capacities: int) -> InFlight:
    whole = {"bytes_max": 1000, "pixels_max": 1000, "visual_tokens_max": 1000, **capacities}
    return InFlight(**whole)


def caller(tenant: str = "a", **limits: Any) -> Caller:
    return Caller(tenant, Budget(**limits))


def empty(accounts: InFlight) -> bool:
    return not accounts.requests and not accounts.tenants and not any(map(accounts.used, QUANTITIES))


@pytest.mark.parametrize("quantity", QUANTITIES)
def test_what_does_not_fit_now_is_a_full_house_and_fits_later(quantity: Quantity) -> None:
    accounts = house()
    first, second = accounts.open(caller("a")), accounts.open(caller("b"))
    first.add(quantity, 700)
    with pytest.raises(HouseFull) as caught:
        second.add(quantity, 301)
    assert caught.value.limit_name is not None
    assert caught.value.limit_name.startswith("limits.")
    assert (caught.value.limit, caught.value.actual) == (1000, 1001)
    assert caught.value.retry_after_seconds
    second.add(quantity, 300)
    first.release()
    second.add(quantity, 700)
    second.release()
    assert empty(accounts)


@pytest.mark.parametrize("quantity", QUANTITIES)
def test_what_alone_exceeds_the_house_is_refused_for_good_even_when_it_is_full(quantity: Quantity) -> None:
    accounts = house()
    other = accounts.open(caller("b"))
    other.add(quantity, 1000)
    mine = accounts.open(caller())
    with pytest.raises(MediaTotalTooLarge) as caught:
        mine.add(quantity, 1001)
    assert caught.value.actual == 1001
    with pytest.raises(MediaTotalTooLarge):
        mine.judge(quantity, 1001)
    mine.judge(quantity, 1000)
    assert accounts.used(quantity) == 1000


@pytest.mark.parametrize(
    ("quantity", "name"),
    [
        ("bytes", "max_tenant_bytes"),
        ("pixels", "max_tenant_pixels"),
        ("visual_tokens", "max_tenant_visual_tokens"),
    ],
)
def test_a_tenant_s_share_is_its_own(quantity: Quantity, name: str) -> None:
    accounts = house()
    limited = caller("a", **{name: 100})
    first, second = accounts.open(limited), accounts.open(limited)
    first.add(quantity, 60)
    for amount, kind in ((41, HouseFull), (101, MediaTotalTooLarge)):
        with pytest.raises(kind) as caught:
            second.add(quantity, amount)
        assert (caught.value.limit_name, caught.value.limit) == (name, 100)
    accounts.open(caller("b")).add(quantity, 500)


def test_requests_of_a_tenant_are_bounded() -> None:
    accounts = house()
    limited = caller("a", max_tenant_requests=2)
    first = accounts.open(limited)
    accounts.open(limited)
    with pytest.raises(HouseFull) as caught:
        accounts.open(limited)
    assert (caught.value.limit_name, caught.value.limit, caught.value.actual) == ("max_tenant_requests", 2, 3)
    accounts.open(caller("b"))
    first.release()
    accounts.open(limited)


def test_a_release_counts_once() -> None:
    accounts = house()
    charge, other = accounts.open(caller()), accounts.open(caller())
    charge.add("bytes", 10)
    other.add("bytes", 5)
    charge.release()
    charge.release()
    assert accounts.used("bytes") == 5
    assert accounts.requests == 1


def test_bytes_of_a_transfer_count_until_it_ends_and_a_retry_begins_anew() -> None:
    accounts = house()
    with accounts.transfer("one") as transfer:
        transfer.grow(600)
        transfer.grow(-600)
        transfer.grow(700)
        with accounts.transfer("two") as other, pytest.raises(NoRoom) as stopped:
            other.grow(301)
        assert stopped.value.size == 301
        assert accounts.used("bytes") == 700
        assert accounts.arriving(["one", "one", "two"]) == 700
    assert accounts.arriving(["one"]) == 0
    assert empty(accounts)


def test_a_transfer_without_room_is_a_full_house_or_too_much_for_any_house() -> None:
    accounts = house()
    other, mine = accounts.open(caller("b")), accounts.open(caller())
    other.add("bytes", 500)
    mine.add("bytes", 500)
    for arriving, kind in ((500, HouseFull), (501, MediaTotalTooLarge)):
        error = mine.no_room(arriving)
        assert isinstance(error, kind)
        assert (error.limit_name, error.limit) == ("limits.media_bytes_in_flight_max", 1000)


steps = st.tuples(
    st.integers(0, 5), st.sampled_from("abc"), st.sampled_from([*QUANTITIES, "release"]), st.integers(0, 700)
)


@given(st.lists(steps, max_size=60))
def test_whatever_happens_no_limit_is_exceeded_and_everything_returns(steps: list[Any]) -> None:
    accounts = house()
    charges: dict[int, Any] = {}
    charged: Counter[tuple[int, str]] = Counter()
    for number, tenant, what, amount in steps:
        with contextlib.suppress(HouseFull, MediaTotalTooLarge):
            charge = charges.get(number)
            if charge is None:
                charge = charges[number] = accounts.open(caller(tenant, max_tenant_pixels=900, max_tenant_requests=3))
            if what == "release":
                charges.pop(number).release()
                for quantity in QUANTITIES:
                    del charged[number, quantity]
            else:
                charge.add(what, amount)
                charged[number, what] += amount
        assert all(accounts.used(quantity) <= 1000 for quantity in QUANTITIES)
        assert all(
            accounts.used(quantity) == sum(amount for (_, what), amount in charged.items() if what == quantity)
            for quantity in QUANTITIES
        )
    for charge in charges.values():
        charge.release()
    assert empty(accounts)


def test_every_limit_that_is_named_here_is_a_value_of_the_metric_s_label() -> None:
    named = {*SERVER_LIMITS.values(), *TENANT_LIMITS.values(), WAITING_LIMIT, "max_tenant_requests", DECODE_LIMIT}
    assert named <= set(LIMIT.values)


def test_what_arrives_counts_once_for_each_request_that_waits_for_it() -> None:
    accounts = house()
    first = accounts.open(caller("a", max_total_bytes=100, max_tenant_bytes=150))
    second = accounts.open(caller("a", max_total_bytes=100, max_tenant_bytes=150))
    told: list[tuple[int, str | None, type[Exception]]] = []

    def refuse(which: int) -> Any:
        return lambda error: told.append((which, error.limit_name, type(error)))

    with accounts.transfer("x") as x, first.wait("x", refuse(1)), first.wait("x", refuse(1)):
        x.grow(60)
        with second.wait("x", refuse(2)), second.wait("y", refuse(2)), accounts.transfer("y") as y:
            assert not told
            y.grow(30)
            assert not told
            x.grow(1)
            assert told == [(1, "max_tenant_bytes", HouseFull), (2, "max_tenant_bytes", HouseFull)]
            told.clear()
            x.grow(-61)
            x.grow(61)
            told.clear()
        x.grow(39)
        assert not told, "a wait that ended counts no more"
        x.grow(1)
        assert told == [(1, "max_total_bytes", MediaTotalTooLarge)]
    first.release()
    second.release()
    assert empty(accounts)
    assert not accounts._waits
