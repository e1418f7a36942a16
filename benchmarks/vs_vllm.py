"""Foveate against plain vLLM, side by side: the same model, threads, pictures and arrivals; one system is asked at a time, in turns.

.venv/bin/python benchmarks/vs_vllm.py                          # five rounds of all loads, about 25 minutes on two cores
.venv/bin/python benchmarks/vs_vllm.py --rounds 1 --loads b --systems vllm,foveate-vllm --requests 28

The loads are in foveate/bench/visual_loads.py, the systems in foveate/bench/systems.py. Goals are for the median over the rounds of a
round's ratio to plain vLLM. docs/performance.md has the figures.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import msgspec

from foveate.bench.figures import Figure, percentile
from foveate.bench.origin import origin
from foveate.bench.systems import SYSTEMS, System, capped_model, system
from foveate.bench.turns import Run, in_turn, run_load
from foveate.bench.visual_loads import LOADS, Pictures, make_load

BASE: Final = "vllm"
ORIGIN_DELAY_SECONDS: Final = 0.05
SETTLE_SECONDS: Final = 1.2
"""vLLM's processes look for messages without pause for a second after each; then the next system has the cores to itself."""
IDLE_CORES_MAX: Final = 0.05
IDLE_SECONDS: Final = 3.0
SAME_SHARE_MIN: Final = 0.95
"""Of the answers; some differ in a near tie, since float32 sums depend on what else is in a batch."""

STATISTICS: Final[dict[str, Callable[[list[float]], float]]] = {
    "p50": lambda values: percentile(values, 0.5),
    "p95": lambda values: percentile(values, 0.95),
    "p99": lambda values: percentile(values, 0.99),
    "mean": statistics.fmean,
}
GOALS: Final = (
    ("a", "text", "p50", 1.05),
    ("b", "multimodal", "p99", 0.5),
    ("b", "text", "p95", 0.5),
    ("c", "multimodal", "p50", 0.2),
    ("c-again", "multimodal", "p50", 0.65),
    ("d", "multimodal", "mean", 0.25),
)


def main() -> None:
    """Run what was asked for, print the tables, and write them where that was asked for."""
    options = _options()
    runs: list[Run] = []
    with tempfile.TemporaryDirectory() as work, origin(delay_seconds=ORIGIN_DELAY_SECONDS) as web, ExitStack() as scope:
        model, pictures = capped_model(Path(work)), Pictures(web)
        systems = []
        for name in options.systems:
            print(f"starting {SYSTEMS[name]} ...", flush=True)
            systems.append(scope.enter_context(system(name, model, web.port)))
        for one in systems:
            run_load(
                one, make_load("b", 14, -1, pictures), -1, settle_seconds=SETTLE_SECONDS
            )  # whatever is made at the first request is made now
        idle = _check_idle(systems)
        for round_ in range(options.rounds):
            for name in options.loads:
                load = make_load(name, options.requests, round_, pictures)
                for run in in_turn(systems, load, round_, settle_seconds=SETTLE_SECONDS):
                    runs.append(run)
                    print(f"round {round_} {name} {_line(run)}", flush=True)
    same = _compare(runs)
    report = _report(runs, same, idle)
    print(report)
    if options.output:
        target = Path(options.output)
        target.with_suffix(".md").write_text(report)
        target.with_suffix(".json").write_bytes(
            msgspec.json.encode({"figures": _figures(runs), "same_answers": same, "idle_cores": idle, "runs": runs})
        )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=84, help="of a run, texts and pictures together: 7 a second")
    parser.add_argument("--loads", type=_names(LOADS), default=list(LOADS), help=", ".join(LOADS))
    parser.add_argument("--systems", type=_names(SYSTEMS), default=list(SYSTEMS), help=", ".join(SYSTEMS))
    parser.add_argument("--output", metavar="FILE", help="write FILE.md (the tables) and FILE.json (every answer)")
    return parser.parse_args()


def _names(known: dict[str, str]) -> Callable[[str], list[str]]:
    def read(text: str) -> list[str]:
        names = text.split(",")
        for name in names:
            if name not in known:
                raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(known)}")
        return names

    return read


def _check_idle(systems: Sequence[System]) -> dict[str, float]:
    """Return how many cores each system takes when nobody asks. One that spins would be in the others' way."""
    time.sleep(SETTLE_SECONDS)
    before = [one.cpu_seconds() for one in systems]
    time.sleep(IDLE_SECONDS)
    idle = {one.name: (one.cpu_seconds() - at) / IDLE_SECONDS for one, at in zip(systems, before, strict=True)}
    for name, cores in idle.items():
        if cores > IDLE_CORES_MAX:
            print(f"{name} takes {cores:.2f} cores when idle: the other systems' figures suffer from it")
    return idle


def _compare(runs: Sequence[Run]) -> dict[str, float]:
    """Return each system's share of answers that are plain vLLM's, letter for letter."""
    expected = {told.name: told.text for run in runs if run.system == BASE for told in run.answers}
    same: dict[str, list[bool]] = {}
    for run in runs:
        if run.system != BASE and expected:
            same.setdefault(run.system, []).extend(told.text == expected[told.name] for told in run.answers)
    return {name: statistics.fmean(each) for name, each in same.items()}


def _figures(runs: Sequence[Run]) -> list[Figure]:
    """Return each goal's ratios, a round each, for each of our systems that ran beside plain vLLM."""
    by = {(run.load, run.system, run.round): run for run in runs}
    figures = []
    for load, kind, statistic, goal in GOALS:
        for name in SYSTEMS:
            pairs = [
                (run, by[load, name, round_])
                for (ran, base, round_), run in by.items()
                if ran == load and base == BASE and (load, name, round_) in by
            ]
            if name == BASE or not pairs:
                continue
            of = STATISTICS[statistic]
            ratios = tuple(of(ours.times_ms(kind)) / of(theirs.times_ms(kind)) for theirs, ours in pairs)
            what = f"TTFT {statistic} / plain vLLM's, {len(pairs[0][0].times_ms(kind))} requests in each of {len(pairs)} rounds"
            figures.append(Figure(f"{load}: {kind} {statistic}, {name}", what, ratios, "x", goal))
    return figures


def _line(run: Run) -> str:
    parts = [f"{run.system}: {run.cpu_seconds:.1f} CPU s"]
    for kind in ("text", "multimodal"):
        times = run.times_ms(kind)
        if times:
            parts.append(f"{kind} " + " / ".join(f"{STATISTICS[name](times):.0f}" for name in ("p50", "p95", "p99")))
    return ", ".join(parts)


def _report(runs: Sequence[Run], same: dict[str, float], idle: dict[str, float]) -> str:
    """Return the tables in Markdown."""
    rows = ["| goal | median | spread | goal | | |", "|---|---|---|---|---|---|"]
    for figure in _figures(runs):
        name, median, spread, goal, verdict, _ = figure.row()
        over = "" if figure.met or not figure.goal else f"by {figure.median / figure.goal:.2f} times"
        rows.append(f"| {name} | {median} | {spread} | {goal} | {verdict} | {over} |")
    rows += _missed(runs)
    rows += ["", "| load | system | text p50 / p95 / p99, ms | multimodal p50 / p95 / p99 (mean), ms | CPU s a round |"]
    rows.append("|---|---|---|---|---|")
    for load, words in LOADS.items():
        for name, title in SYSTEMS.items():
            found = [run for run in runs if run.load == load and run.system == name]
            if found:
                rows.append(
                    f"| ({load}) {words} | {title} | {_times(found, 'text')} | {_times(found, 'multimodal')} | {_cpu(found)} |"
                )
    rows += ["", *_stages(runs)]
    rows += ["", f"Answers equal to plain vLLM's: {', '.join(f'{name} {share:.1%}' for name, share in same.items())}"]
    rows[-1] += "".join(f"; **{name} answers otherwise**" for name, share in same.items() if share < SAME_SHARE_MIN)
    rows.append(f"Cores taken when idle: {', '.join(f'{name} {cores:.3f}' for name, cores in idle.items())}.")
    load_average = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    rows.append(f"{os.cpu_count()} cores; load average at the end (1, 5, 15 min): {load_average}.")
    return "\n".join(rows) + "\n"


def _missed(runs: Sequence[Run]) -> list[str]:
    """Return, for each goal for pictures that was missed, what of the time is the language model's, or the other server's."""
    rows = []
    for figure in _figures(runs):
        load, rest = figure.name.split(": ")
        kind, statistic, name = rest.replace(",", "").split()
        ours = [each for run in runs if (run.load, run.system) == (load, name) for each in run.told(kind)]
        stage = "upstream" if name == "foveate-upstream" else "llm_prefill"
        within = [each.timing[stage] for each in ours if stage in each.timing]
        if figure.met or figure.goal is None or kind == "text" or not within:
            continue
        of = STATISTICS[statistic]
        theirs = of([value for run in runs if (run.load, run.system) == (load, BASE) for value in run.times_ms(kind)])
        rows.append(
            f"- {figure.name}: the goal is {theirs * figure.goal:.0f} ms beside plain vLLM's {theirs:.0f}; of Foveate's "
            f"{of([each.ttft_ms for each in ours]):.0f} the stage {stage} alone takes {of(within):.0f} ({statistic})."
        )
    return rows and ["", "Goals that were missed:", "", *rows]


def _stages(runs: Sequence[Run]) -> list[str]:
    """Return where multimodal requests spent their time, in the systems that tell: each stage's median, 0 where most skip it."""
    rows = []
    for load in LOADS:
        for name in SYSTEMS:
            told = [
                each.timing
                for run in runs
                if (run.load, run.system) == (load, name)
                for each in run.answers
                if each.kind != "text"
            ]
            names = dict.fromkeys(stage for timing in told for stage in timing)
            medians = {stage: statistics.median(timing.get(stage, 0.0) for timing in told) for stage in names}
            if medians:
                rows.append(
                    f"- ({load}) {name}: " + ", ".join(f"{stage} {value:.1f}" for stage, value in medians.items())
                )
    return rows and ["Multimodal requests by stage, medians in ms:", "", *rows]


def _times(runs: Sequence[Run], kind: str) -> str:
    times = [value for run in runs for value in run.times_ms(kind)]
    if not times:
        return "–"
    shown = " / ".join(f"{STATISTICS[name](times):.0f}" for name in ("p50", "p95", "p99"))
    return f"{shown} (mean {statistics.fmean(times):.0f}, n = {len(times)})"


def _cpu(runs: Sequence[Run]) -> str:
    return f"{statistics.fmean(run.cpu_seconds for run in runs):.1f}"


if __name__ == "__main__":
    main()
