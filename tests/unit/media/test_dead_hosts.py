"""Consecutive failures make a host dead for a while; one probe, and any answer, bring it back."""

from __future__ import annotations

import pytest

from foveate.core.errors import FetchFailed
from foveate.media.dead_hosts import DeadHosts, Sign

KEY = "h:443"


def ended(hosts: DeadHosts, sign: Sign, now: float, *, since: float | None = None, key: str = KEY) -> None:
    hosts.ended(key, sign, since=now if since is None else since, now=now)


def dead(now: float = 0.0, failures: int = 3, sign: Sign = "unreachable") -> DeadHosts:
    hosts = DeadHosts(failures_max=3, seconds=10)
    for _ in range(failures):
        ended(hosts, sign, now)
    return hosts


@pytest.mark.parametrize("sign", ["unreachable", "silent"])
def test_only_failures_in_a_row_count(sign: Sign) -> None:
    hosts = dead(failures=2, sign=sign)
    ended(hosts, "alive", 0)
    for _ in range(2):
        ended(hosts, sign, 100)
        hosts.check(KEY, 100)
    ended(hosts, sign, 100)
    with pytest.raises(FetchFailed):
        hosts.check(KEY, 100)


def test_refuses_until_the_time_is_over_and_says_how_long() -> None:
    hosts = dead()
    for now, wait in ((0.0, 10.0), (9.5, 1.0)):
        with pytest.raises(FetchFailed) as caught:
            hosts.enter(KEY, now)
        assert caught.value.retry_after_seconds == wait
        assert KEY not in caught.value.public
    hosts.check("h:80", 0)
    hosts.check(KEY, 10)


def test_one_probe_at_a_time() -> None:
    hosts = dead()
    hosts.enter(KEY, 10)
    with pytest.raises(FetchFailed):
        hosts.enter(KEY, 99)
    ended(hosts, "none", 99)  # cancelled: the next one probes
    hosts.enter(KEY, 99)
    ended(hosts, "silent", 100)
    with pytest.raises(FetchFailed):
        hosts.check(KEY, 109)
    hosts.enter(KEY, 110)
    ended(hosts, "alive", 110)
    for _ in range(3):
        hosts.enter(KEY, 110)


def test_silence_says_nothing_of_a_host_that_answered_meanwhile_or_lately() -> None:
    hosts = dead(failures=0)
    ended(hosts, "alive", 20)
    for _ in range(5):
        ended(hosts, "silent", 35, since=5)
        ended(hosts, "silent", 40, since=30)
    hosts.check(KEY, 40)
    for _ in range(3):
        ended(hosts, "silent", 41, since=31)
    with pytest.raises(FetchFailed):
        hosts.check(KEY, 41)


def test_a_connection_that_is_refused_counts_whenever_it_answered_last() -> None:
    hosts = dead(failures=0)
    ended(hosts, "alive", 20)
    for _ in range(3):
        ended(hosts, "unreachable", 20)
    with pytest.raises(FetchFailed):
        hosts.check(KEY, 20)


def test_zero_turns_it_off() -> None:
    hosts = DeadHosts(failures_max=0, seconds=10)
    for _ in range(9):
        hosts.enter(KEY, 0)
        ended(hosts, "unreachable", 0)
    assert len(hosts) == 0


def test_remembers_a_bounded_number_of_hosts() -> None:
    hosts = DeadHosts(failures_max=1, seconds=10, hosts_max=3)
    for number in range(5):
        ended(hosts, "unreachable", 0, key=f"{number}:443")
        ended(hosts, "alive", 0, key="alive:443")
    assert len(hosts) == 3
    hosts.check("0:443", 0)
    with pytest.raises(FetchFailed):
        hosts.check("4:443", 0)
