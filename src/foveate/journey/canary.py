"""The life of a new version on trial: loaded beside the one that serves, compared, and promoted or rolled back, by an operator or by the
evidence (:mod:`foveate.decisions.canary`).

Requests in flight end on the version that they began with; its processes are ended when the last has. A version that cannot be loaded
leaves the one that serves untouched.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Literal

import msgspec

from foveate.core.clock import wall
from foveate.core.errors import (
    CanaryNotFound,
    CanaryRefused,
    CanaryRunning,
    EngineUnavailable,
    FoveateError,
)
from foveate.decisions.canary import Thresholds
from foveate.journey.canary_port import CanaryReport, ComparisonReport, VersionReport
from foveate.journey.compare import compare
from foveate.journey.serving import Serving
from foveate.journey.tools import Tools
from foveate.journey.trial import Trial
from foveate.journey.warm_ahead import warm_ahead
from foveate.observe.logging import get_logger
from foveate.observe.records import Role

log = get_logger(__name__)

Load = Callable[[str, str | None], Awaitable[Serving]]
"""Starts the processes of a version of the model, with an operator's own encoder (empty: the model's, None: that of the settings), and
waits until they are ready. Raises StartupError, with none left running."""
Ended = Literal["promoted", "rolled_back", "refused"]

JUDGED_SECONDS: Final = 0.2
"""The evidence is judged so often at most: sorting it takes half a millisecond of the event loop."""
LOOK_SECONDS: Final = 1.0
"""And so often at least, so that a process that died is seen without any request."""


@dataclass(frozen=True)
class Terms:
    """How a version is loaded, and the settings ``canary.*``. ``end_seconds_max``: how long a replaced one may finish what it began."""

    load: Load
    limits: Thresholds
    compared_share: float
    end_seconds_max: float


class Canaries:
    """See :class:`foveate.journey.canary_port.CanaryOperator`. One roll-out at a time."""

    def __init__(self, tools: Tools, terms: Terms | None) -> None:
        """``terms`` are None where the engine cannot be had twice."""
        self._tools = tools
        self._terms = terms
        self._loading: asyncio.Task[Trial] | None = None
        self._loading_model = ""
        self._last: CanaryReport | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._of_trial: list[asyncio.Task[None]] = []

    def report(self) -> CanaryReport:
        """Return the roll-out under way, or how the last one ended."""
        trial = self._tools.roll_out.trial
        if self._loading is not None:
            stable = _version(self._tools.roll_out.stable)
            return self._now(CanaryReport("loading", stable, canary=VersionReport(self._loading_model, "", "")))
        if trial is not None:
            return self._now(_report(trial))
        return self._now(self._last or CanaryReport("none", _version(self._tools.roll_out.stable)))

    async def start(self, model: str, *, share: float, warm: int, encoder: str | None = None) -> CanaryReport:
        """Load ``model`` and let ``share`` of the contents meet it; make at most ``warm`` of them ahead.

        Goes on to its end when the caller goes away. Raises CanaryRunning, CanaryRefused.
        """
        if self._loading is not None or self._tools.roll_out.trial is not None:
            raise CanaryRunning
        if self._terms is None:
            raise CanaryRefused("Only the embedded engine can serve two versions of a model at once.")
        if self._tools.roll_out.topology_changes:
            raise CanaryRefused("The topology is being changed. Try again when that is done.")
        self._loading_model = model
        self._tools.roll_out.loading = True
        loading = self._loading = self._own(self._begin(self._terms, model, share=share, warm=warm, encoder=encoder))
        await asyncio.wait((loading,))
        if loading.cancelled():
            raise CanaryRefused("The roll-out was given up while the new version was loading.")
        return self._now(_report(loading.result()))

    def set_share(self, share: float) -> CanaryReport:
        """Change the share: a larger one moves contents to the new version and none back."""
        trial = self._trial()
        log.info("the canary's share changes", before=trial.share, after=share)
        trial.share = share
        return self.report()

    def promote(self) -> CanaryReport:
        """Let the new version answer all requests that begin from now on."""
        trial = self._trial()
        if not trial.new.engine.ready or not trial.new.media.ready:
            raise EngineUnavailable("The new version is not ready, so it cannot take over.")
        return self._end(trial, "promoted", "operator", "An operator promoted it.")

    async def rollback(self) -> CanaryReport:
        """Let the old version answer all again."""
        loading = self._loading
        if loading is not None:
            # It is under way until its processes have ended: none is loaded beside them, and nothing cuts their end short.
            if not loading.cancelling():
                loading.cancel()
            await asyncio.wait((loading,))
            return self.report()
        return self._end(self._trial(), "rolled_back", "operator", "An operator rolled it back.")

    async def aclose(self) -> None:
        """End whatever is under way."""
        trial = self._tools.roll_out.trial
        if trial is not None:
            trial.close()
        while self._tasks:
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks)
            await asyncio.sleep(0)

    # ----------------------------------------------------------------------------------------------------------- a roll-out

    async def _begin(self, terms: Terms, model: str, *, share: float, warm: int, encoder: str | None) -> Trial:
        started_at, roll_out = wall(), self._tools.roll_out
        log.info("loading a new version", model=model)
        try:
            new = await terms.load(model, encoder)
        except Exception as error:  # Foreign files bring about whatever they do; the one that serves goes on.
            public = _why_refused(error)
            if not isinstance(error, FoveateError | OSError):
                log.exception("a new version could not be started, unexpectedly")
            log.warning("the new version was refused", model=model, reason=public)
            self._tools.metrics.count("foveate_canary_ended_total", "refused")
            self._last = CanaryReport(
                "refused",
                _version(roll_out.stable),
                canary=VersionReport(model, "", ""),
                reason=public,
                started_at=started_at,
                ended_at=wall(),
            )
            raise CanaryRefused(public, detail=str(error)) from error
        finally:
            self._loaded()
        trial = Trial(
            roll_out.stable,
            new,
            share=share,
            compared_share=terms.compared_share,
            limits=terms.limits,
            metrics=self._tools.metrics,
        )
        roll_out.begin(trial)
        log.info("the new version is on trial", model=model, share=share, encoder_version=new.encoder_version)
        self._of_trial = [self._own(self._watch(trial))]
        if warm:
            self._of_trial.append(self._own(warm_ahead(trial, self._tools, warm)))
        return trial

    async def _watch(self, trial: Trial) -> None:
        """Compare samples and judge the evidence until it says that the trial must end."""
        while not trial.closed:
            # Not wait_for: cancelled in the very moment that there is news, it would swallow the cancellation.
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):
                    await trial.news.wait()
            trial.news.clear()
            if trial.samples:
                sample = trial.samples.popleft()
                if trial.samples:
                    trial.news.set()
                try:
                    await compare(sample, trial, self._tools)
                except Exception:
                    # The watch must go on whatever one picture brings.
                    log.exception("a comparison failed unexpectedly")
                    trial.skip()
            found = trial.verdict()
            if found is not None and not trial.closed:
                self._end(trial, "rolled_back", found.fault, found.why)
                return
            await asyncio.sleep(JUDGED_SECONDS)

    def _end(self, trial: Trial, state: Ended, cause: str, why: str) -> CanaryReport:
        last = msgspec.structs.replace(_report(trial), state=state, reason=why, ended_at=wall())
        gone = self._tools.roll_out.end(promoted=state == "promoted")
        for task in self._of_trial:
            if task is not asyncio.current_task():
                task.cancel()
        self._of_trial = []
        self._last = last if state == "rolled_back" else msgspec.structs.replace(last, stable=last.canary)
        self._tools.metrics.count("foveate_canary_ended_total", state if cause == "operator" else cause)
        tell = log.info if cause == "operator" else log.error
        tell(f"the new version was {state.replace('_', ' ')}", cause=cause, reason=why, model=trial.new.name)
        self._own(self._retire(gone))
        return self.report()

    async def _retire(self, gone: Serving) -> None:
        assert self._terms is not None
        try:
            async with asyncio.timeout(self._terms.end_seconds_max):
                await gone.unused()
        except TimeoutError:
            log.warning("a version is ended although requests still use it", model=gone.name, users=gone.users)
        await self._tools.roll_out.stop(gone)
        log.info("a version's processes have ended", model=gone.name)

    def _loaded(self) -> None:
        self._loading = None
        self._tools.roll_out.loading = False

    def _trial(self) -> Trial:
        trial = self._tools.roll_out.trial
        if trial is None:
            raise CanaryNotFound
        return trial

    def _now(self, report: CanaryReport) -> CanaryReport:
        return msgspec.structs.replace(report, still_ending=len(self._tools.roll_out.retiring))

    def _own(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._over)
        return task

    def _over(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if task is self._loading:  # given up before its first step
            self._loaded()
        if task.cancelled():
            return
        error = task.exception()
        if error is not None and not isinstance(error, FoveateError):
            log.error("a part of a roll-out ended unexpectedly", exc_info=error)


def _why_refused(error: Exception) -> str:
    if isinstance(error, FoveateError):
        return error.public
    why = str(error) if isinstance(error, OSError) else f"{type(error).__name__}; the server's log tells where"
    return f"The new version cannot be started: {why}."


def _report(trial: Trial) -> CanaryReport:
    evidence = trial.evidence()
    found = msgspec.structs.asdict(evidence.differences)
    return CanaryReport(
        state="on_trial",
        share=trial.share,
        stable=_version(trial.old, trial, "stable"),
        canary=_version(trial.new, trial, "canary"),
        comparisons=ComparisonReport(**found, skipped=trial.skipped),
        warmed=trial.warmed,
        not_held=trial.not_held,
        started_at=trial.started_at,
    )


def _version(serving: Serving, trial: Trial | None = None, role: Role = "stable") -> VersionReport:
    report = VersionReport(serving.name, serving.processor_version, serving.encoder_version)
    if trial is None:
        return report
    evidence = trial.evidence()
    seen = evidence.old if role == "stable" else evidence.new
    return msgspec.structs.replace(report, **msgspec.structs.asdict(seen))
