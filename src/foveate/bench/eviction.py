"""The caches' decisions: what each eviction policy saves, what an operation costs, and how well a curve is estimated.

The runs of lookups are made up (:mod:`foveate.bench.traces`), one seed a round. CPU time throughout: other work may take the core away.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable
from typing import Final

from foveate.bench.figures import Figure
from foveate.bench.traces import chat, unique, workloads, zipf
from foveate.caches.encoder import EncoderCache, EncoderEntry
from foveate.caches.keys import EncoderKey
from foveate.core.media import ImageOptions
from foveate.core.memory import Slot, TensorBundle
from foveate.decisions.cache_sizing import MULTIPLES
from foveate.decisions.eviction import POLICY_NAMES, Holdings, PolicyName, make_policy
from foveate.decisions.miss_ratio import SAMPLES_MAX, MissRatioCurve
from foveate.decisions.simulation import Content, Outcome, StackDistances, replay

POLICY_LOOKUPS: Final = 50_000
PARTS: Final = (64, 16, 4)
"""Capacities: one such part of the bytes of all contents."""

OPERATIONS: Final = 20_000
ENTRIES: Final = 1000

CURVE_LOOKUPS: Final = 1_000_000


def _popular(seed: int) -> list[Content]:
    return zipf(CURVE_LOOKUPS, 0.9, seed, contents=300_000)


def _conversations(seed: int) -> list[Content]:
    return chat(CURVE_LOOKUPS, seed, conversations=2000)


CURVES: Final[dict[str, tuple[Callable[[int], list[Content]], float]]] = {
    "Zipf 0.9 at 1 %": (_popular, 0.01),
    "chat at 1 %": (_conversations, 0.01),
    f"Zipf 0.9, at most {SAMPLES_MAX:,} keys": (_popular, 1.0),
}


def policies(rounds: int) -> list[Figure]:
    """Saved share of the work and hit ratio of every policy on every run, at three capacities."""
    figures = []
    for name, make in workloads(POLICY_LOOKUPS).items():
        outcomes: dict[tuple[int, PolicyName], list[Outcome]] = {}
        for seed in range(rounds):
            trace = make(seed)
            footprint = sum(content.size for content in set(trace))
            for part in PARTS:
                for policy in POLICY_NAMES:
                    outcomes.setdefault((part, policy), []).append(replay(trace, policy, footprint // part))
        figures += [_saved(f"{name}, 1/{part} of the bytes", policy, each) for (part, policy), each in outcomes.items()]
    return figures


def _saved(name: str, policy: PolicyName, outcomes: list[Outcome]) -> Figure:
    ratios = [outcome.hit_ratio * 100 for outcome in outcomes]
    compared = (
        f"share of the milliseconds that hits saved; hit ratio {statistics.median(ratios):.1f} % "
        f"({min(ratios):.1f} – {max(ratios):.1f}); {POLICY_LOOKUPS:,} lookups, {len(outcomes)} seeds"
    )
    return Figure(f"{name}: {policy}", compared, tuple(outcome.saved_share * 100 for outcome in outcomes), "%")


def operations(rounds: int) -> list[Figure]:
    """Cost of a hit and of a miss that evicts, by policy, and lookups a second of the encoder cache itself."""
    hits: dict[PolicyName, list[float]] = {policy: [] for policy in POLICY_NAMES}
    misses: dict[PolicyName, list[float]] = {policy: [] for policy in POLICY_NAMES}
    rates, followed = [], []
    for seed in range(rounds):
        for policy in POLICY_NAMES:
            hit, miss = _operation_us(policy, seed)
            hits[policy].append(hit)
            misses[policy].append(miss)
        rates.append(_lookups_per_second(seed, curve_rate=0.0) / 1e3)
        followed.append(_lookups_per_second(seed, curve_rate=1.0) / 1e3)
    what = f"CPU time of {OPERATIONS:,} in each of {rounds} rounds, policies taking turns, {ENTRIES:,} entries held"
    looked_up = (
        f"get and release in the cache's own class, {OPERATIONS:,} of {ENTRIES:,} keys, {rounds} rounds; per CPU second"
    )
    return [
        *(Figure(f"A hit, {policy}", f"pin and unpin; {what}", tuple(us), "µs") for policy, us in hits.items()),
        *(
            Figure(f"A miss that evicts, {policy}", f"add and unpin; {what}", tuple(us), "µs")
            for policy, us in misses.items()
        ),
        Figure("Encoder-cache lookups a second", looked_up, tuple(rates), "k/s", 200, "at least"),
        Figure("The same, each followed for the curve", looked_up, tuple(followed), "k/s", 200, "at least"),
    ]


def _operation_us(policy: PolicyName, seed: int) -> tuple[float, float]:
    """Return the microseconds of a hit and of a miss that evicts. Every entry takes a byte."""
    cache: Holdings[int, None] = Holdings(ENTRIES, make_policy(policy, ENTRIES))
    chooser = random.Random(seed)
    costs = [chooser.random() for _ in range(OPERATIONS + ENTRIES)]
    for key in range(ENTRIES):
        _add(cache, key, costs[key])
    keys = [chooser.randrange(ENTRIES) for _ in range(OPERATIONS)]
    started = time.process_time()
    for key in keys:
        held = cache.pin(key)
        assert held is not None
        cache.unpin(held)
    between = time.process_time()
    for key in range(ENTRIES, ENTRIES + OPERATIONS):
        _add(cache, key, costs[key])
    ended = time.process_time()
    assert cache.evictions["capacity"] == OPERATIONS
    return (between - started) / OPERATIONS * 1e6, (ended - between) / OPERATIONS * 1e6


def _add(cache: Holdings[int, None], key: int, cost_ms: float) -> None:
    held, _ = cache.add(key, None, 1, cost_ms)
    assert held is not None
    cache.unpin(held)


def _lookups_per_second(seed: int, *, curve_rate: float) -> float:
    cache = EncoderCache(ENTRIES * 512, lambda slot: None, curve_rate=curve_rate)
    keys = [EncoderKey(content.digest, "p" * 64, ImageOptions(), "e" * 64) for content in unique(ENTRIES, seed)]
    for number, key in enumerate(keys):
        embeddings = TensorBundle(Slot(number * 512, 512), (), 512)
        entry = EncoderEntry(
            "", 1, {}, embeddings, {"media_decode": 20.0, "mm_processor": 4.0, "vision_encode": 30.0}, ""
        )
        lease = cache.put(key, entry, 512)
        assert lease is not None
        lease.release()
    chosen = random.Random(seed).choices(keys, k=OPERATIONS)
    started = time.process_time()
    for key in chosen:
        lease = cache.get(key)
        assert lease is not None
        lease.release()
    return OPERATIONS / (time.process_time() - started)


def curves(rounds: int) -> list[Figure]:
    """Cost of a sampled curve for each lookup, and its error against the exact one."""
    figures = []
    for name, (make, rate) in CURVES.items():
        costs, errors, saved_errors, followed = [], [], [], 0
        for seed in range(rounds):
            trace = make(seed)
            exact = StackDistances(trace)
            curve: MissRatioCurve[Content] = MissRatioCurve(exact.bytes // 16, rate_max=rate)
            costs.append(_lookup_us(curve, trace, exact))
            error, saved_error = _errors(curve, exact)
            errors.append(error)
            saved_errors.append(saved_error)
            followed += curve.seen().followed
        goal = 1 if rate < 1 else None
        what = f"{CURVE_LOOKUPS:,} lookups, {followed // rounds:,} keys followed, {rounds} seeds"
        points = "mean absolute error at 1/4, 1/2, 1, 2, 4, 16 times the capacity and unlimited against the exact curve"
        figures += [
            Figure(
                f"A curve's cost for each lookup, {name}",
                f"CPU time, the loop included; {what}",
                tuple(costs),
                "µs",
                goal,
            ),
            Figure(f"A curve's error, hit ratio, {name}", f"{points}; {what}", tuple(errors), "%", 1),
            Figure(f"A curve's error, saved share, {name}", f"{points}; {what}", tuple(saved_errors), "%"),
        ]
    return figures


def _lookup_us(curve: MissRatioCurve[Content], trace: list[Content], exact: StackDistances) -> float:
    hits = exact.hits(curve.capacity_bytes)
    lookup = curve.lookup
    started = time.process_time()
    for content, hit in zip(trace, hits, strict=True):
        lookup(content, content.size, content.cost_ms, hit)
    return (time.process_time() - started) / len(trace) * 1e6


def _errors(curve: MissRatioCurve[Content], exact: StackDistances) -> tuple[float, float]:
    """Return the mean absolute errors of hit ratio and saved share, in percent points."""
    capacities = [*(int(curve.capacity_bytes * multiple) for multiple in MULTIPLES), None]
    cost_ms = curve.seen().cost_ms
    pairs = [(got, exact.at(bytes_max)) for got, bytes_max in zip(curve.predict(capacities), capacities, strict=True)]
    return (
        100 * statistics.mean(abs(got.hit_ratio - true.hit_ratio) for got, true in pairs),
        100 * statistics.mean(abs(got.saved_ms / cost_ms - true.saved_share) for got, true in pairs),
    )
