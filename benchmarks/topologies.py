"""The topologies side by side on the same cores: what a separate encoder gains, and what its queue and the transfer cost.

    .venv/bin/python benchmarks/topologies.py --output artifacts/topologies        # all of it
    .venv/bin/python benchmarks/topologies.py --only isolation --rounds 2 --cores 4,5,6,7

- *stages*: texts and requests with two new pictures, open loop; every topology gets the same requests at the same moments, in turns. The
  verdict names, at each percentile, the stages by which a topology differs from ``agg`` (foveate/bench/trade.py).
- *isolation*: p99 of texts at a steady rate with bursts of requests with many pictures, over that without, in each topology.
- *parallel*: requests with eight pictures, two encode workers against one, each on a core of its own.
- *overlap*: requests with eight pictures, prefill that begins before all are encoded against prefill that waits for all, in ``e-pd``.
- *transfer*: an encode worker's embeddings, against memcpy (topology_transfer.py).

Which core does what is in foveate/bench/placement.py; clients run on other cores where there are any. docs/performance.md has the figures.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import msgspec

import topology_transfer
from foveate.bench.figures import Figure, percentile
from foveate.bench.origin import Origin, origin
from foveate.bench.placement import TOPOLOGIES, Placement, albums, confined, place, topology, topology_flags
from foveate.bench.systems import System, capped_model
from foveate.bench.trade import PERCENTILES, WATCHED, Trade, compare, stage_rows
from foveate.bench.turns import Run, in_turn
from foveate.bench.visual_loads import ALBUM, Pictures, album, make_load, steady_texts

BASE: Final = "agg"
SETTLE_SECONDS: Final = 0.5
ISOLATION_GOAL: Final = 1.25
KINDS: Final = ("text", "multimodal")
ALBUMS: Final = 4
"""Requests with eight pictures in a round."""


class Found(msgspec.Struct):
    """What was measured."""

    figures: list[Figure] = []
    trades: list[Trade] = []
    runs: list[Run] = []
    notes: list[str] = []


class Setting(msgspec.Struct, frozen=True):
    """What measurements share."""

    options: argparse.Namespace
    cores: tuple[int, ...]
    model: Path
    web: Origin
    pictures: Pictures

    def start(self, scope: ExitStack, name: str, flags: Sequence[str]) -> System:
        """Start a server for the length of ``scope``."""
        print(f"starting {name}: {' '.join(flags)}", flush=True)
        return scope.enter_context(topology(name, flags, cores=self.cores, model=self.model, origin_port=self.web.port))

    def topologies(self, scope: ExitStack, placement: Placement) -> list[System]:
        """Start those that were asked for, and have each answer something."""
        chosen = self.options.topologies
        systems = [self.start(scope, kind, topology_flags(kind, placement)) for kind in TOPOLOGIES if kind in chosen]
        for _ in in_turn(systems, make_load("b", 7, -1, self.pictures), 0, settle_seconds=0.0):
            pass  # whatever is made at the first request is made now
        return systems


def main() -> None:
    """Measure what was asked for, print it, and write it where that was asked for."""
    options = _options()
    cores = tuple(options.cores)
    others = os.sched_getaffinity(0) - set(cores)
    found = Found()
    found.notes.append(f"Servers on {len(cores)} cores: {place(cores).in_words()}.")
    if not others:
        found.notes.append("Clients and the origin have no cores of their own: they take some of the servers'.")
    with (
        confined(tuple(others or cores)),
        tempfile.TemporaryDirectory() as work,
        origin() as web,
    ):
        setting = Setting(options, cores, capped_model(Path(work)), web, Pictures(web))
        for name in options.only:
            MEASUREMENTS[name](setting, found)
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    found.notes.append(f"The machine has {os.cpu_count()} cores; load average at the end (1, 5, 15 min): {load}.")
    report = "\n".join(_report(found)) + "\n"
    print(report)
    if options.output:
        target = Path(options.output)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.with_suffix(".md").write_text(report)
        target.with_suffix(".json").write_bytes(msgspec.json.encode(found))


def stages(setting: Setting, found: Found) -> None:
    """Compare the topologies under the same load, round by round."""
    with ExitStack() as scope:
        systems = setting.topologies(scope, place(setting.cores))
        for round_ in range(setting.options.rounds):
            load = make_load("b", setting.options.requests, round_, setting.pictures)
            found.runs += _told(in_turn(systems, load, round_, settle_seconds=SETTLE_SECONDS))
    runs = {(run.system, run.round): run for run in found.runs if run.load == "b"}
    for system in (one.name for one in systems if one.name != BASE):
        for kind in KINDS:
            rounds = [(runs[BASE, at].told(kind), runs[system, at].told(kind)) for at in range(setting.options.rounds)]
            for name, share in PERCENTILES.items():
                found.trades.append(compare(system, kind, name, rounds))
                ratios = tuple(
                    percentile([told.ttft_ms for told in ours], share)
                    / percentile([told.ttft_ms for told in theirs], share)
                    for theirs, ours in rounds
                )
                what = f"TTFT, {len(rounds[0][0])} requests in each of {len(rounds)} rounds"
                found.figures.append(Figure(f"{kind} {name}, {system} / {BASE}", what, ratios, "x"))
        found.notes.append(f"{system}: {_same(runs, system):.1%} of the answers are {BASE}'s, letter for letter.")


def isolation(setting: Setting, found: Found) -> None:
    """Texts at a steady rate, with bursts of pictures and without."""
    placement = place(setting.cores)
    quiet: dict[tuple[str, int], float] = {}
    with ExitStack() as scope:
        systems = setting.topologies(scope, placement)
        ratios: dict[str, list[float]] = {one.name: [] for one in systems}
        for round_ in range(setting.options.rounds):
            for bursts in (False, True):
                load = steady_texts(setting.options.seconds, round_, setting.pictures, bursts=bursts)
                for run in _told(in_turn(systems, load, round_, settle_seconds=SETTLE_SECONDS)):
                    found.runs.append(run)
                    p99 = percentile(run.times_ms("text"), 0.99)
                    if bursts:
                        ratios[run.system].append(p99 / quiet[run.system, round_])
                    else:
                        quiet[run.system, round_] = p99
    for name, values in ratios.items():
        goal = ISOLATION_GOAL if name == "e-pd" and placement.separate else None
        what = (
            f"TTFT p99 of texts with bursts of pictures / without, {len(values)} rounds of {setting.options.seconds} s"
        )
        found.figures.append(Figure(f"Text isolation, {name}", what, tuple(values), "x", goal))
    if not placement.separate:
        found.notes.append(
            f"Text isolation: the goal of {ISOLATION_GOAL} x is for an encoder, a language model and media workers on cores of their own; "
            f"{len(setting.cores)} are too few for it."
        )


def parallel(setting: Setting, found: Found) -> None:
    """Eight pictures in one request, by one encode worker and by two."""
    if len(setting.cores) < 2:
        found.notes.append("Encode workers side by side need two cores.")
        return
    with ExitStack() as scope:
        placements = dict(zip(("1 encode worker", "2 encode workers"), albums(setting.cores), strict=True))
        systems = [setting.start(scope, name, topology_flags("e-pd", at)) for name, at in placements.items()]
        ratios = _albums(setting, found, systems)
    found.figures.append(Figure(f"{ALBUM} pictures, 2 encode workers / 1", *ratios))
    if not placements["2 encode workers"].separate:
        found.notes.append("The second encode worker shares the language model's core.")


def overlap(setting: Setting, found: Found) -> None:
    """Eight pictures in one request: prefill as they come, and when all are there."""
    flags = topology_flags("e-pd", place(setting.cores))
    with ExitStack() as scope:
        names = {"all at once": ("--no-engine-prefill-overlap",), "as they come": ()}
        systems = [setting.start(scope, name, (*flags, *more)) for name, more in names.items()]
        ratios = _albums(setting, found, systems)
    found.figures.append(Figure(f"{ALBUM} pictures, prefill as they come / all at once", *ratios))
    told = [
        one.timing.get("prefill_overlap", 0.0)
        for run in found.runs
        if run.system == "as they come"
        for one in run.answers
    ]
    found.notes.append(
        f"Prefill before the last picture was ready: {statistics.median(told):.1f} ms, the median request."
    )


def _albums(setting: Setting, found: Found, systems: Sequence[System]) -> tuple[str, tuple[float, ...], str]:
    """Ask two systems about eight pictures at a time; return a figure's words, the second's times over the first's, and their unit."""
    runs: dict[tuple[str, int], Run] = {}
    for round_ in range(-1, setting.options.rounds):  # the first warms up
        load = album(ALBUMS, round_, setting.pictures)
        for run in _told(in_turn(systems, load, round_, settle_seconds=SETTLE_SECONDS)):
            runs[run.system, round_] = run
    one, two = (
        [statistics.median(runs[each.name, at].times_ms("multimodal")) for at in range(setting.options.rounds)]
        for each in systems
    )
    found.runs += [run for run in runs.values() if run.round >= 0]
    what = f"median TTFT of {ALBUMS} requests with {ALBUM} new pictures, in each of {len(one)} rounds"
    return what, tuple(more / less for less, more in zip(one, two, strict=True)), "x"


def transfer(setting: Setting, found: Found) -> None:
    """The way of embeddings from an encode worker, against memcpy."""
    found.figures += topology_transfer.run(setting.options.rounds, setting.cores[0])


MEASUREMENTS: Final[dict[str, Callable[[Setting, Found], None]]] = {
    "stages": stages,
    "isolation": isolation,
    "parallel": parallel,
    "overlap": overlap,
    "transfer": transfer,
}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=MEASUREMENTS, default=[], help="may be repeated")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--requests", type=int, default=84, help="of a run of stages: 5 texts and 2 others a second")
    parser.add_argument("--seconds", type=int, default=16, help="of a run of isolation: 10 texts a second")
    parser.add_argument("--cores", type=_cores, default=sorted(os.sched_getaffinity(0)), help="the servers', as 0,1,2")
    parser.add_argument("--topologies", type=_topologies, default=list(TOPOLOGIES), help=",".join(TOPOLOGIES))
    parser.add_argument("--output", metavar="FILE", help="write FILE.md (the tables) and FILE.json (every answer)")
    options = parser.parse_args()
    options.only = options.only or list(MEASUREMENTS)
    return options


def _cores(text: str) -> list[int]:
    return sorted({int(core) for core in text.split(",")})


def _topologies(text: str) -> list[str]:
    names = text.split(",")
    if BASE not in names or not set(names) <= set(TOPOLOGIES):
        raise argparse.ArgumentTypeError(f"name {BASE} and what is compared with it, of {', '.join(TOPOLOGIES)}")
    return names


def _told(runs: Iterator[Run]) -> Iterator[Run]:
    """Print a line for each run as it comes."""
    for run in runs:
        shown = [f"{run.cpu_seconds:.1f} CPU s"]
        for kind in KINDS:
            times = run.times_ms(kind)
            if times:
                figures = " / ".join(f"{percentile(times, share):.0f}" for share in PERCENTILES.values())
                shown.append(f"{kind} {figures} ms")
        print(f"round {run.round} {run.load} {run.system}: {', '.join(shown)}", flush=True)
        yield run


def _same(runs: dict[tuple[str, int], Run], system: str) -> float:
    expected = {told.name: told.text for (name, _), run in runs.items() if name == BASE for told in run.answers}
    answers = [told for (name, _), run in runs.items() if name == system for told in run.answers]
    return statistics.fmean(told.text == expected[told.name] for told in answers)


def _report(found: Found) -> Iterator[str]:
    """Yield the lines of the report in Markdown."""
    if found.trades:
        yield from (f"- {trade.sentence()}" for trade in found.trades)
        yield from ("", "| topology | modality | stage | p50, ms | p95, ms | p99, ms |", "|---|---|---|---|---|---|")
        for kind in KINDS:
            for name in TOPOLOGIES:
                answers = [
                    told for run in found.runs if (run.load, run.system) == ("b", name) for told in run.told(kind)
                ]
                yield from stage_rows(name, kind, answers)
        yield f"\nStages: {', '.join(WATCHED)}; each has percentiles of its own, which do not add up."
    if found.figures:
        yield from ("", "| figure | median | spread | goal | | compared |", "|---|---|---|---|---|---|")
        yield from (f"| {' | '.join(figure.row())} |" for figure in found.figures)
    yield ""
    yield from found.notes


if __name__ == "__main__":
    main()
