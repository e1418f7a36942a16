"""Change where the vision encoder and the language model run while requests run."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final

import msgspec

from foveate.core.clock import now
from foveate.core.errors import FoveateError, StartupError, TopologyRefused
from foveate.decisions.scaling import ScaleTerms
from foveate.encoders.pool import EncoderPool
from foveate.journey.roll_out import RollOut
from foveate.journey.scaling import LOOK_SECONDS, Scaling
from foveate.journey.serving import Serving
from foveate.journey.topology_port import TopologyReport
from foveate.observe.labels import ScaleDecision
from foveate.observe.logging import get_logger
from foveate.observe.observer import Observer
from foveate.observe.records import Topology

log = get_logger(__name__)

DRAIN_SECONDS_MAX: Final = 30.0
"""How long an encode worker that goes may take for the two batches it holds; pictures of one that takes longer are moved."""


FAILED_SECONDS: Final = 30.0
"""How long none is added after one could not start."""


class _Shape(msgspec.Struct, frozen=True):
    """A topology with its numbers; ``prefill`` and ``decode`` as in :meth:`Topologies.set`."""

    kind: Topology
    encoders: int
    prefill: int | None = None
    decode: int | None = None


class Topologies:
    """Implements :class:`foveate.journey.topology_port.TopologyOperator` over the versions that serve."""

    def __init__(
        self, roll_out: RollOut, observer: Observer, scale: ScaleTerms | None = None, *, encoders: int = 1
    ) -> None:
        """With ``scale`` the number of encode workers follows the queue from now on, until an operator sets it.

        ``encoders``: how many were configured.
        """
        self._configured = encoders
        self._roll_out = roll_out
        self._observer = observer
        self._kind: Topology = observer.topology
        self._lock = asyncio.Lock()
        self._changing: set[asyncio.Task[None]] = set()
        self._scaling = None if scale is None else Scaling(scale)
        if scale is not None:
            self._begin(self._follow(), "follow the encoders' queue")

    def report(self) -> TopologyReport:
        """See the port."""
        pools = self._pools()
        engines = self._roll_out.stable.engine.report()
        staying = [one.role for one in engines if not one.leaving]
        return TopologyReport(
            kind=self._kind,
            encoders=self._roll_out.encode_workers(),
            waiting=sum(pool.waiting for pool in pools),
            local=any(pool.encodes_locally for pool in pools),
            local_pictures=self._roll_out.local_pictures,
            workers=tuple(report for pool in pools for report in pool.report()),
            encoders_max=0 if self._scaling is None else self._scaling.terms.workers_max,
            prefill=staying.count("p"),
            decode=staying.count("d"),
            engines=engines,
        )

    async def set(
        self, kind: Topology, encoders: int | None = None, *, prefill: int | None = None, decode: int | None = None
    ) -> TopologyReport:
        """See the port. Once begun it is finished, whether or not whoever asked still waits."""
        there = self._roll_out.encode_workers() or self._configured
        wanted = _Shape(kind, 0 if kind == "agg" else encoders or there, prefill, decode)
        self._check(wanted)
        self._scaling = None
        change = self._begin(self._change(wanted), "change the topology")
        self._roll_out.topology_changes.add(change)
        change.add_done_callback(self._roll_out.topology_changes.discard)
        try:
            await asyncio.shield(change)
        except (StartupError, OSError) as error:
            public = error.public if isinstance(error, FoveateError) else f"{error.strerror}."
            raise TopologyRefused(f"Processes cannot start: {public}", detail=str(error)) from error
        return self.report()

    def _check(self, wanted: _Shape) -> None:
        """Raise TopologyRefused for what cannot be."""
        pools = self._pools()
        if not pools:
            raise TopologyRefused("No vision encoder runs here: the servers behind this one encode.")
        if self._roll_out.loading:
            raise TopologyRefused("A new version of the model is loading. Change the topology when it is there.")
        numbered = wanted.prefill is not None or wanted.decode is not None
        if numbered and wanted.kind != "e-p-d":
            raise TopologyRefused("Only with e-p-d there are prefill workers and token-decode workers.")
        if self._roll_out.stable.roles is not None:
            return
        if (wanted.kind == "e-p-d") != (self._kind == "e-p-d") or numbered:
            raise TopologyRefused(
                "This engine's processes have their roles, and what connects them, from their start. Restart the server with "
                f"{_flags(wanted)}."
            )
        if not wanted.encoders and not all(pool.encodes_locally for pool in pools):
            raise TopologyRefused(
                "The engine's process holds no vision tower (topology.fallback is off), so one encode worker has to stay."
            )

    async def aclose(self) -> None:
        """Give up a change under way, and follow the queue no more."""
        for task in self._changing:
            task.cancel()
        await asyncio.gather(*self._changing, return_exceptions=True)

    def _begin(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._changing.add(task)
        task.add_done_callback(self._changing.discard)
        return task

    async def _follow(self) -> None:
        """Have as many encode workers as the queue asks for."""
        while self._scaling is not None:
            await asyncio.sleep(LOOK_SECONDS)
            pool = self._roll_out.stable.encoders
            if pool is None or self._scaling is None:
                continue
            wanted = self._scaling.look(pool.wanted, pool.totals(), now())
            if wanted != pool.wanted:
                self._decided("more" if wanted > pool.wanted else "fewer")
                try:
                    await self._resize(wanted)
                except (StartupError, OSError) as error:
                    log.error("the number of encode workers stays as it is", wanted=wanted, error=str(error))
                    self._decided("failed")
                    await asyncio.sleep(FAILED_SECONDS)

    def _decided(self, decision: ScaleDecision) -> None:
        self._observer.metrics.count("foveate_scaling_decisions_total", decision)

    async def _resize(self, encoders: int) -> None:
        """Have so many encode workers, and all else as it is."""
        async with self._lock:
            for serving in self._versions():
                if serving.encoders is not None:
                    await serving.encoders.resize(encoders, drain_seconds_max=DRAIN_SECONDS_MAX)
            log.info("the number of encode workers has changed", encoders=encoders)

    async def _change(self, wanted: _Shape) -> None:
        """Change every version that takes requests; where one cannot, all go back to what they had."""
        async with self._lock:
            before = self._shape()
            try:
                for serving in self._versions():
                    await self._apply_if_it_serves(serving, wanted)
            except (StartupError, OSError):
                for serving in self._versions():
                    await _give_back(serving, before)
                raise
            self._kind = self._observer.topology = wanted.kind
            there = msgspec.structs.asdict(self._shape())
            log.info(
                "the topology has changed", before=before.kind, **{name: one for name, one in there.items() if one}
            )

    async def _apply_if_it_serves(self, serving: Serving, wanted: _Shape) -> None:
        """Give a version a topology, unless it takes no requests any more: it may be ended meanwhile, which stops no change of others."""
        if serving not in self._versions():
            return
        try:
            await _apply(serving, wanted)
        except (StartupError, OSError):
            if serving in self._versions():
                raise

    def _shape(self) -> _Shape:
        roles = self._roll_out.stable.roles
        prefill, decode = (None, None) if roles is None else (roles.count("p") or None, roles.count("d") or None)
        return _Shape(self._kind, self._roll_out.encode_workers(), prefill, decode)

    def _versions(self) -> list[Serving]:
        """Those that take requests; others end with what they began."""
        return [serving for serving in self._roll_out.all if serving not in self._roll_out.retiring]

    def _pools(self) -> list[EncoderPool]:
        return [serving.encoders for serving in self._roll_out.all if serving.encoders is not None]


def _flags(wanted: _Shape) -> str:
    """Return what a server is started with for it, as far as it was asked for."""
    numbers = (("--prefill-workers", wanted.prefill), ("--decode-workers", wanted.decode))
    return " ".join([f"--topology {wanted.kind}", *(f"{flag} {number}" for flag, number in numbers if number)])


async def _give_back(serving: Serving, before: _Shape) -> None:
    """Have one version go back, so that one which cannot keeps no other from it, nor hides why the change failed."""
    try:
        await _apply(serving, before)
    except (StartupError, OSError) as error:
        log.error("a version keeps a part of a topology that was given up", model=serving.name, error=str(error))


async def _apply(serving: Serving, wanted: _Shape) -> None:
    """Give one version a topology. Whoever is to encode is there before whoever encoded goes. Raises StartupError, OSError."""
    pool, roles = serving.encoders, serving.roles
    assert pool is not None, "checked"
    if wanted.encoders:
        await pool.resize(wanted.encoders, drain_seconds_max=DRAIN_SECONDS_MAX)
    if roles is not None:
        await roles.change(wanted.kind, prefill=wanted.prefill, decode=wanted.decode)
        pool.step_in(roles.encodes)
    if not wanted.encoders:
        await pool.resize(0, drain_seconds_max=DRAIN_SECONDS_MAX)
