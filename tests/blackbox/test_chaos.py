"""Workers of every role are killed and stopped at random under load: no request is lost, every failure is typed, nothing leaks.

30 seconds of it by default; `make chaos` takes 180. `CHAOS_SEED` repeats a run's choices. With `CHAOS_RUNTIME=ray` the workers are on two
nodes of a Ray cluster of this machine, and the actors that hold them are killed and stopped, too.
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
from tests.blackbox.on_ray import ServerOnRay
from tests.blackbox.server import Server, eventually, title
from tests.blackbox.test_resilience import assert_well
from tests.ray_cluster import add_node, two_nodes

SECONDS = float(os.environ.get("CHAOS_SECONDS", "30"))
RUNTIME = os.environ.get("CHAOS_RUNTIME", "local")
ROLES = ("encoder 0", "encoder 1", "engine 0", "engine 1", "engine 2", "engine 3", "media 0", "media 1")
"""Engines 0 and 1 prefill, 2 and 3 draw tokens."""
TYPED = {
    *("engine_failed", "engine_unavailable", "encoders_unavailable", "media_workers_unavailable"),
    *("queue_full", "overloaded", "deadline_exceeded"),
}
KV_BYTES = 64 << 20

pytestmark = [pytest.mark.timeout(600 + 3 * SECONDS), pytest.mark.xdist_group("alone")]


@pytest.fixture
def everything_apart(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    directory = tmp_path_factory.mktemp("chaos")
    flags = (
        *("--topology", "e-p-d", "--encoders", "2", "--prefill-workers", "2", "--decode-workers", "2"),
        *("--topology-hang-seconds", "1", "--engine-hang-seconds", "1"),
        *("--topology-kv-bytes-max", str(KV_BYTES), "--media-workers", "2"),
    )
    with contextlib.ExitStack() as scope:
        if RUNTIME == "ray":
            cluster = scope.enter_context(two_nodes())
            add_node(cluster)
            server: Server = ServerOnRay(directory, cluster, *flags)
        else:
            server = Server(directory, *flags, forked=True)
        scope.callback(server.kill_all)
        yield server
        server.stop()


def alive(server: Server) -> dict[str, int]:
    """Return the workers that run and are not stopped, with their process ids."""
    found = {}
    for process in server.processes():
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.status() not in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE):
                found[title(process).removeprefix("foveate: ")] = process.pid
    return {name: found[name] for name in ROLES if name in found}


def actor_of(worker: int) -> int:
    """Return the process id of the actor whose forkserver started this worker."""
    return psutil.Process(worker).parents()[1].pid


def whole_again(server: Server, gone: int) -> bool:
    """Whether every worker is there, and the process ``gone`` is not."""
    found = alive(server)
    return len(found) == len(ROLES) and not psutil.pid_exists(gone)


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
        worker = alive(server)[name]
        actor = RUNTIME == "ray" and chance.random() < 0.5
        victim = actor_of(worker) if actor else worker
        seen = len(load.ended)
        struck = time.monotonic()
        os.kill(victim, how)
        done[f"{how.name} {name.partition(' ')[0]}{' actor' if actor else ''}"] += 1
        right = eventually(
            "an answer about a picture", lambda since=seen: [one for one in load.ended[since:] if one.right]
        )
        answered.append(max(right[0].at - struck, 0.0))
        eventually("all workers", lambda gone=worker: whole_again(server, gone))
        whole.append(time.monotonic() - struck)
        time.sleep(chance.uniform(0.5, 2.0))
    return done, answered, whole


def lost_bytes(server: Server) -> float:
    """Return the arena's bytes in use that no cache holds, and those in use in the region for K/V, which lies beside it."""
    metrics = server.metrics()
    cached = sum(metrics.total(f"foveate_{cache}_cache_bytes") for cache in ("encoder", "processor", "media"))
    return metrics.total("foveate_arena_used_bytes") - cached + metrics.total("foveate_kv_room_used_bytes")


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
    eventually("nothing but the caches in the arena, and no K/V", lambda: 0 <= lost_bytes(server) <= 65536)
