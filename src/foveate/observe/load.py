"""How much work waits at the media workers, the vision encoders and the language model, and how busy the encoders are.

Written by the gateway's sides of these processes, whichever and however many there are, and read by gauges: one object for the whole
server, so that versions and workers may come and go. Lives on the event loop; a scrape in another thread reads whole numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from foveate.core import clock
from foveate.observe.metrics import Metrics

WINDOW_SECONDS: Final = 60.0
_CELLS: Final = 12
_CELL_SECONDS: Final = WINDOW_SECONDS / _CELLS


class EncoderLoad:
    """What one vision encoder has to do. ``Load.encoder`` makes it."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._waiting: set[int] = set()
        self._running: set[int] = set()
        self._began_at = 0.0

    @property
    def waiting(self) -> int:
        """Pictures that were handed to it and that no batch has."""
        return len(self._waiting)

    def submitted(self, job: int) -> None:
        """A picture was handed to it."""
        self._waiting.add(job)

    def began(self, jobs: list[int]) -> None:
        """It began a batch of these pictures; the one before has ended."""
        self._idle()
        self._waiting.difference_update(jobs)
        self._running = set(jobs)
        self._began_at = self._load.now()
        self._load.batch(len(jobs))

    def ended(self, job: int) -> None:
        """A picture was answered, whatever the answer."""
        self._waiting.discard(job)
        self._running.discard(job)
        if not self._running:
            self._idle()

    def gone(self) -> None:
        """The process ended: nothing of what it had is there any more."""
        self._waiting.clear()
        self._running.clear()
        self._idle()

    def busy_since(self) -> float | None:
        """When the batch that is running began, in monotonic seconds; None where there is none."""
        return self._began_at or None

    def _idle(self) -> None:
        if self._began_at:
            self._load.was_busy(self._began_at, self._load.now())
        self._began_at = 0.0


class Load:
    """The whole server's load. Without ``metrics`` it only keeps count."""

    def __init__(self, metrics: Metrics | None = None, now: Callable[[], float] = clock.now) -> None:
        self.llm_waiting = 0
        """Requests at the language model before their first token."""
        self.llm_running = 0
        """Requests whose tokens the language model is drawing."""
        self.now = now
        self._metrics = metrics
        self._encoders: list[EncoderLoad] = []
        self._cells: dict[int, float] = {}

    def encoder(self) -> EncoderLoad:
        """Return the load of one more encoder; :meth:`forget` it when it is gone for good."""
        made = EncoderLoad(self)
        self._encoders.append(made)
        return made

    def forget(self, encoder: EncoderLoad) -> None:
        """An encoder is there no more."""
        encoder.gone()
        if encoder in self._encoders:
            self._encoders.remove(encoder)

    @property
    def encoder_waiting(self) -> int:
        """Pictures that wait at all encoders."""
        return sum(encoder.waiting for encoder in tuple(self._encoders))

    def encoders_busy(self) -> float:
        """Return how many encoders were busy on average over the last minute: 1.0 is one that never paused."""
        now = self.now()
        first = int(now // _CELL_SECONDS) - _CELLS + 1
        # The newest cell has only begun: the window is what the cells that count have had time for.
        window = now - first * _CELL_SECONDS
        busy = sum(seconds for cell, seconds in tuple(self._cells.items()) if cell >= first)
        for encoder in tuple(self._encoders):
            since = encoder.busy_since()
            busy += 0.0 if since is None else now - max(since, first * _CELL_SECONDS)
        return busy / window

    def handed_on(self, size: int) -> None:
        """A prompt's K/V of ``size`` bytes lie ready for the process that draws its tokens."""
        if self._metrics is not None:
            self._metrics.count("foveate_kv_handed_on_total")
            self._metrics.count("foveate_kv_handed_on_bytes_total", amount=size)

    def kv_lost(self) -> None:
        """A prompt's K/V could not be read by the process that draws its tokens, which has computed them anew."""
        if self._metrics is not None:
            self._metrics.count("foveate_kv_lost_total")

    def media_waited(self, seconds: float) -> None:
        """A job waited so long for a media worker."""
        if self._metrics is not None:
            self._metrics.observe("foveate_media_queue_seconds", value=seconds)

    def batch(self, pictures: int) -> None:
        """An encoder began a batch."""
        if self._metrics is not None:
            self._metrics.observe("foveate_encoder_batch_pictures", value=pictures)

    def was_busy(self, start: float, end: float) -> None:
        """An encoder was busy from ``start`` to ``end``, in monotonic seconds."""
        if self._metrics is not None:
            self._metrics.count("foveate_encoder_busy_seconds_total", amount=max(end - start, 0.0))
        last = int(end // _CELL_SECONDS)
        for cell in range(max(int(start // _CELL_SECONDS), last - _CELLS), last + 1):
            begins, ends = cell * _CELL_SECONDS, (cell + 1) * _CELL_SECONDS
            self._cells[cell] = self._cells.get(cell, 0.0) + max(min(end, ends) - max(start, begins), 0.0)
        for cell in [old for old in self._cells if old <= last - _CELLS]:
            del self._cells[cell]
