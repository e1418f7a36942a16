"""Systems that are compared take turns: each is asked the same, alone, and its processor time is taken down with the answers."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import msgspec

from foveate.bench.load import Told, converse, drive
from foveate.bench.systems import System
from foveate.bench.visual_loads import Load


class Run(msgspec.Struct, frozen=True):
    """One load on one system in one round."""

    load: str
    system: str
    round: int
    cpu_seconds: float
    answers: tuple[Told, ...]

    def told(self, kind: str) -> list[Told]:
        """Return the answers of a modality."""
        return [told for told in self.answers if told.kind == kind]

    def times_ms(self, kind: str) -> list[float]:
        """Return the times to the first token of a modality."""
        return [told.ttft_ms for told in self.told(kind)]


def run_load(one: System, load: Load, round_: int, *, settle_seconds: float) -> Run:
    """Ask one system, after what warms it up; the others have nothing to do meanwhile.

    Before and after it is left alone for some time, in which what it has begun ends. Raises SystemExit when an answer is none.
    """
    drive(one.port, load.warm)
    time.sleep(settle_seconds)
    before = one.cpu_seconds()
    answers = converse(one.port, load.conversations) if load.conversations else drive(one.port, load.asks)
    time.sleep(settle_seconds)
    spent = one.cpu_seconds() - before
    wrong = {told.status for told in answers} - {200}
    if wrong:
        raise SystemExit(f"{one.name} answered load {load.name} with status {sorted(wrong)}")
    return Run(load.name, one.name, round_, spent, tuple(answers))


def in_turn(systems: Sequence[System], load: Load, round_: int, *, settle_seconds: float) -> Iterator[Run]:
    """Ask all of them the same; who goes first changes from round to round."""
    order = [systems[(place + round_) % len(systems)] for place in range(len(systems))]
    return (run_load(one, load, round_, settle_seconds=settle_seconds) for one in order)
