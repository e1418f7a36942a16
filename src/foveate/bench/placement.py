"""Topologies on the same cores: which part of a server runs where, so that none has more to compute with than another."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import msgspec

from foveate.bench.origin import fetching
from foveate.bench.server import running
from foveate.bench.systems import MODEL, System

TOPOLOGIES: Final = {
    "agg": "one engine",
    "e-pd": "encode workers, one engine",
    "e-p-d": "encode workers, a prefill worker, a token-decode worker",
}


class Placement(msgspec.Struct, frozen=True):
    """Cores by what runs on them. ``front``: media workers, and room for the gateway; none where there are too few cores."""

    front: tuple[int, ...]
    encode: tuple[int, ...]
    language: tuple[int, ...]

    @property
    def cores(self) -> tuple[int, ...]:
        """All of them."""
        return tuple(sorted({*self.front, *self.encode, *self.language}))

    @property
    def separate(self) -> bool:
        """Whether gateway and media workers, encoder and language model have cores of their own each in ``e-pd``."""
        return bool(self.front) and not set(self.encode) & set(self.language)

    def in_words(self) -> str:
        """Tell what runs where."""
        front = f"media workers on {listed(self.front)}" if self.front else "gateway and media workers on any of these"
        return f"encoder on {listed(self.encode)}, language model on {listed(self.language)}, {front}"


def place(cores: Sequence[int]) -> Placement:
    """Deal cores out: of four or more a quarter in front, and half of the rest to the encoder; of two none in front."""
    if len(cores) == 1:
        return Placement((), tuple(cores), tuple(cores))
    front = max(1, len(cores) // 4) if len(cores) > 2 else 0
    encode = (len(cores) - front) // 2
    return Placement(tuple(cores[:front]), tuple(cores[front : front + encode]), tuple(cores[front + encode :]))


def albums(cores: Sequence[int]) -> tuple[Placement, Placement]:
    """Return one encode worker's core and two's, everything else being equal; of three cores or more the language model has others."""
    others = tuple(cores[:-2] or cores[:1])
    one, two = (Placement(others[:1], tuple(cores[-count:]), others[-1:]) for count in (1, 2))
    return one, two


def topology_flags(kind: str, placement: Placement) -> tuple[str, ...]:
    """Return the flags of a server of that topology (:data:`TOPOLOGIES`) on these cores, with a thread for each core of a part.

    With ``agg`` the engine may run on the cores of encoder and language model, and has as many threads for either as the one of them
    that has more.
    """
    encode, language = placement.encode, placement.language
    front: tuple[str, ...] = ("--media-workers", str(max(1, len(placement.front))))
    if placement.front:
        front += ("--media-cpus", listed(placement.front))
    threads = str(len(language))
    if kind == "agg":
        cpus = listed(sorted({*encode, *language}))
        return (*front, "--engine-cpus", cpus, "--engine-threads", str(max(len(encode), len(language))))
    apart: tuple[str, ...] = (
        "--topology",
        kind,
        "--encoders",
        str(len(encode)),
        "--topology-encoder-cpus",
        listed(encode),
    )
    # Were a worker to fail, its pictures would be encoded elsewhere, and the benchmark would not see it.
    apart += ("--topology-encoder-threads", "1", "--topology-fallback", "off")
    if kind == "e-pd":
        return (*front, *apart, "--engine-cpus", listed(language), "--engine-threads", threads)
    # Prefill has more to compute.
    prefill = language[: -(-len(language) // 2)]
    decode = language[len(prefill) :] or language
    apart += ("--topology-prefill-cpus", listed(prefill), "--topology-prefill-threads", str(len(prefill)))
    return (*front, *apart, "--topology-decode-cpus", listed(decode), "--topology-decode-threads", str(len(decode)))


def listed(cores: Sequence[int]) -> str:
    """Return cores as settings take them."""
    return ",".join(map(str, cores))


@contextmanager
def confined(cores: Sequence[int]) -> Iterator[None]:
    """What is started meanwhile by this thread may run on these cores only."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def topology(
    name: str, flags: Sequence[str], *, cores: Sequence[int], model: Path, origin_port: int
) -> Iterator[System]:
    """Run the embedded engine on these cores; ``name`` is what its figures go by."""
    about = ("--model", str(model), "--served-model-name", MODEL, *fetching(origin_port))
    with ExitStack() as scope:
        with confined(cores):
            server = scope.enter_context(running(*about, *flags))
        yield System(name, server.port, (server,))
