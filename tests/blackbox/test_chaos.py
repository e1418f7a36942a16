"""Workers of every role are killed and stopped at random under load: no request is lost, every failure is typed, nothing leaks.

30 seconds of it by default; `make chaos` takes 180. `CHAOS_SEED` repeats a run's choices.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import statistics
import time
from collections import Counter
from collections.abc import Iterator

import psutil
import pytest
from tests.blackbox.load import Load
from tests.blackbox.server import Server, eventually, title
from tests.blackbox.test_resilience import assert_well

SECONDS = float(os.environ.get("CHAOS_SECONDS", "30"))
ROLES = ("encoder 0", "encoder 1", "engine 0", "engine 1", "engine 2", "engine 3", "media 0", "media 1")
"""Engines 0 and 1 prefill, 2 and 3 draw tokens."""
TYPED = {"engine_failed", "engine_unavailable", "encoders_unavailable", "queue_full", "overloaded", "deadline_exceeded"}
KV_BYTES = 64 << 20

pytestmark = [pytest.mark.timeout(600 + 3 * SECONDS), pytest.mark.xdist_group("alone")]


@pytest.fixture
def everything_apart(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(
        tmp_path_factory.mktemp("chaos"),
        *("--topology", "e-p-d", "--encoders", "2", "--prefill-workers", "2", "--decode-workers", "2"),
        *("--topology-hang-seconds", "1", "--engine-hang-seconds", "1"),
        *("--topology-kv-bytes-max", str(KV_BYTES), "--media-workers", "2"),
        forked=True,
    )
    try:
        yield server
        server.stop()
    finally:
        server.kill_all()


def alive(server: Server) -> dict[str, int]:
    """Return the workers that run and are not stopped, with their process ids."""
    found = {}
    for process in server.processes():
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.status() not in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE):
                found[title(process).removeprefix("foveate: ")] = process.pid
    return {name: found[name] for name in ROLES if name in found}


def torment(server: Server, chance: random.Random, load: Load) -> tuple[Counter[str], list[float], list[float]]:
    """Kill and stop workers for :data:`SECONDS`.

    Returns what was done to whom, and for each the seconds until the next right answer about a picture and until all workers were there.
    """
    done: Counter[str] = Counter()
    answered: list[float] = []
    whole: list[float] = []
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        name = chance.choice(ROLES)
        how = chance.choice((signal.SIGKILL, signal.SIGSTOP))
        victim = alive(server)[name]
        seen = len(load.ended)
        struck = time.monotonic()
        os.kill(victim, how)
        done[f"{how.name} {name.partition(' ')[0]}"] += 1
        right = eventually(
            "an answer about a picture", lambda since=seen: [one for one in load.ended[since:] if one.right]
        )
        answered.append(max(right[0].at - struck, 0.0))
        eventually(
            "all workers", lambda gone=victim: len(found := alive(server)) == len(ROLES) and gone not in found.values()
        )
        whole.append(time.monotonic() - struck)
        time.sleep(chance.uniform(0.5, 2.0))
    return done, answered, whole


def lost_bytes(server: Server) -> float:
    """Return the arena's bytes in use that neither the caches hold nor the region for K/V."""
    metrics = server.metrics()
    cached = sum(metrics.total(f"foveate_{cache}_cache_bytes") for cache in ("encoder", "processor", "media"))
    return metrics.total("foveate_arena_used_bytes") - cached - KV_BYTES


def test_no_request_is_lost_whatever_dies(everything_apart: Server) -> None:
    server = everything_apart
    seed = int(os.environ.get("CHAOS_SEED", random.randrange(10**6)))
    before = len(server.processes())
    with Load(server, clients=16) as load:
        eventually("the load to run", lambda: len(load.ended) >= 16)
        done, answered, whole = torment(server, random.Random(seed), load)
    errors = Counter(one.error["code"] for one in load.ended if one.error is not None)
    print(  # noqa: T201 - the run's figures
        f"\nchaos, seed {seed}: {sum(done.values())} blows ({', '.join(f'{n} {what}' for what, n in sorted(done.items()))}); "
        f"{len(load.ended)} requests, {sum(errors.values())} failed {dict(errors)}; next right answer about a picture after "
        f"{statistics.median(answered):.2f} s (worst {max(answered):.2f}); all workers back after {statistics.median(whole):.2f} s "
        f"(worst {max(whole):.2f})"
    )
    assert load.trouble == []
    assert set(errors) <= TYPED
    assert_well(server)
    eventually("the processes there were", lambda: len(server.processes()) == before)
    eventually("nothing but the caches and the region for K/V in the arena", lambda: lost_bytes(server) <= 65536)
