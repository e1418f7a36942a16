"""Consecutive failures make a host dead for a while; one probe, and any answer, bring it back."""

from __future__ import annotations

import pytest

from foveate.core.errors import FetchFailed
from foveate.media.dead_hosts import DeadHosts


def dead(now: float = 0.0, failures: int = 3) -> DeadHosts:
    hosts = DeadHosts(failures_max=3, seconds=10)
    for _ in range(failures):
        hosts.failed("h:443", now)
    return hosts


def test_only_failures_in_a_row_count() -> None:
    hosts = dead(failures=2)
    hosts.answered("h:443")
    hosts.failed("h:443", 0)
    hosts.check("h:443", 0)
    assert len(hosts) == 1


def test_refuses_until_the_time_is_over_and_says_how_long() -> None:
    hosts = dead()
    for now, wait in ((0.0, 10.0), (9.5, 1.0)):
        with pytest.raises(FetchFailed) as caught:
            hosts.enter("h:443", now)
        assert caught.value.retry_after_seconds == wait
        assert "h:443" not in caught.value.public
    hosts.check("h:80", 0)
    hosts.check("h:443", 10)


def test_one_probe_at_a_time() -> None:
    hosts = dead()
    hosts.enter("h:443", 10)
    with pytest.raises(FetchFailed):
        hosts.enter("h:443", 99)
    hosts.left("h:443")  # cancelled: the next one probes
    hosts.enter("h:443", 99)
    hosts.failed("h:443", 100)
    with pytest.raises(FetchFailed):
        hosts.check("h:443", 109)
    hosts.enter("h:443", 110)
    hosts.answered("h:443")
    for _ in range(3):
        hosts.enter("h:443", 110)
    assert len(hosts) == 0


def test_zero_turns_it_off() -> None:
    hosts = DeadHosts(failures_max=0, seconds=10)
    for _ in range(9):
        hosts.enter("h:443", 0)
        hosts.failed("h:443", 0)
    assert len(hosts) == 0


def test_remembers_a_bounded_number_of_hosts() -> None:
    hosts = DeadHosts(failures_max=1, seconds=10, hosts_max=3)
    for number in range(5):
        hosts.failed(f"{number}:443", 0)
    assert len(hosts) == 3
    hosts.check("0:443", 0)
    with pytest.raises(FetchFailed):
        hosts.check("4:443", 0)
