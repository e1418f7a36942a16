"""Change where the vision encoder runs while requests run."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final

from foveate.core.clock import now
from foveate.core.errors import StartupError, TopologyRefused
from foveate.decisions.scaling import ScaleTerms
from foveate.encoders.pool import EncoderPool
from foveate.journey.roll_out import RollOut
from foveate.journey.scaling import LOOK_SECONDS, Scaling
from foveate.journey.topology_port import Kind, TopologyReport
from foveate.observe.labels import ScaleDecision
from foveate.observe.logging import get_logger
from foveate.observe.observer import Observer

log = get_logger(__name__)

DRAIN_SECONDS_MAX: Final = 30.0
"""How long a worker that goes may take for the two batches it holds; pictures of one that takes longer are moved."""


FAILED_SECONDS: Final = 30.0
"""How long none is added after one could not start."""


class Topologies:
    """Implements :class:`foveate.journey.topology_port.TopologyOperator` over the versions that serve."""

    def __init__(self, roll_out: RollOut, observer: Observer, scale: ScaleTerms | None = None) -> None:
        """With ``scale`` the number of encode workers follows the queue from now on, until an operator sets it."""
        self._roll_out = roll_out
        self._observer = observer
        self._with_encoders: Kind = "e-p-d" if observer.topology == "e-p-d" else "e-pd"
        self._lock = asyncio.Lock()
        self._changing: set[asyncio.Task[None]] = set()
        self._scaling = None if scale is None else Scaling(scale)
        if scale is not None:
            self._begin(self._follow(), "follow the encoders' queue")

    def report(self) -> TopologyReport:
        """See the port."""
        pools, encoders = self._pools(), self._roll_out.encode_workers()
        return TopologyReport(
            kind=self._kind(encoders),
            encoders=encoders,
            waiting=sum(pool.waiting for pool in pools),
            local=any(pool.encodes_locally for pool in pools),
            local_pictures=sum(pool.local_pictures for pool in pools),
            workers=tuple(report for pool in pools for report in pool.report()),
            encoders_max=0 if self._scaling is None else self._scaling.terms.workers_max,
        )

    async def set(self, kind: Kind, encoders: int) -> TopologyReport:
        """See the port. Once begun it is finished, whether or not whoever asked still waits."""
        wanted = 0 if kind == "agg" else encoders
        pools = self._pools()
        if not pools:
            raise TopologyRefused("No vision encoder runs here: the servers behind this one encode.")
        if kind != "agg" and kind != self._with_encoders:
            apart = "apart" if self._with_encoders == "e-p-d" else "together"
            raise TopologyRefused(
                f"Prefill and token decode run {apart} since the start: choose {self._with_encoders}, or restart."
            )
        if not wanted and self._with_encoders == "e-p-d":
            raise TopologyRefused("With e-p-d one encode worker has to stay.")
        if not wanted and not all(pool.encodes_locally for pool in pools):
            raise TopologyRefused(
                "The engine's process holds no vision tower (topology.fallback is off), so one encode worker has to stay."
            )
        self._scaling = None
        try:
            await asyncio.shield(self._begin(self._resize(wanted), "change the topology"))
        except StartupError as error:
            raise TopologyRefused(f"The encode workers cannot start: {error.public}", detail=error.detail) from error
        return self.report()

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

    async def _resize(self, wanted: int) -> None:
        async with self._lock:
            before = self._roll_out.encode_workers()
            for pool in self._pools():
                await pool.resize(wanted, drain_seconds_max=DRAIN_SECONDS_MAX)
            self._observer.topology = self._kind(wanted)
            log.info("the topology has changed", encoders=wanted, before=before)

    def _kind(self, encoders: int) -> Kind:
        return self._with_encoders if encoders else "agg"

    def _pools(self) -> list[EncoderPool]:
        return [serving.encoders for serving in self._roll_out.all if serving.encoders is not None]
