"""Where requests enter the language-model thread: a bounded set of open ones and an inbox between two threads.

Texts, prompts with pictures and prompts that wait for some of theirs are bounded apart, so that a queue full of pictures never refuses a
text, and one full of prompts that came early none whose time has come.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence

from foveate.core.clock import now
from foveate.core.errors import InvalidParameter, QueueFull
from foveate.decisions.batching import BatchLimits, fits_ever
from foveate.engines.embedded.messages import Starts, TokenDecode
from foveate.engines.embedded.requests import prompt_view
from foveate.engines.messages import Cancel, PictureReady

Told = Cancel | PictureReady
"""What is told of a request that was sent."""


class Intake:
    """Open requests and what is to be done about them.

    The receiving thread calls :meth:`submit`, :meth:`tell` and :meth:`close`; the language-model thread the rest.
    """

    def __init__(self, limits: BatchLimits, queue_depth_max: int) -> None:
        self._limits = limits
        self._open_max = limits.sequences_max + queue_depth_max
        self._queue_depth_max = queue_depth_max
        self._open: dict[str, str] = {}
        """Each open request, and what it was when it came."""
        self._inbox: deque[Starts | Told] = deque()
        self._changed = threading.Condition()
        self._closing = False

    @property
    def busy(self) -> bool:
        """Whether any request is open."""
        return bool(self._open)

    def submit(self, message: Starts) -> None:
        """Take a request. Raises QueueFull, or InvalidParameter when even an idle engine could not hold it."""
        work = message.work
        if not fits_ever(prompt_view(message, None), self._limits):
            raise InvalidParameter(
                "The prompt and its answers together need more memory than this server gives one request.",
                detail=f"{len(work.token_ids)}+{work.sampling.tokens_max} tokens x {work.sampling.n}: {self._limits}",
                limit_name="engine.kv_tokens_max",
                limit=self._limits.kv_tokens_max,
                actual=len(work.token_ids) + work.sampling.tokens_max * work.sampling.n,
            )
        kind = "without pictures" if not work.pictures else "with pictures"
        if not isinstance(message, TokenDecode) and not all(picture.there for picture in work.pictures):
            kind = "that wait for pictures"
        with self._changed:
            alike = sum(other == kind for other in self._open.values())
            if alike >= self._open_max:
                raise QueueFull(
                    detail=f"{alike} requests {kind} are running or waiting",
                    limit_name="engine.queue_depth_max",
                    limit=self._queue_depth_max,
                    actual=alike - self._limits.sequences_max + 1,
                )
            self._open[work.request_id] = kind
            self._inbox.append(message)
            self._changed.notify()

    def tell(self, message: Told) -> None:
        """Pass on what concerns a request; for one that has ended it is ignored."""
        with self._changed:
            if message.request_id in self._open:
                self._inbox.append(message)
                self._changed.notify()

    def close(self) -> None:
        """Have :meth:`take` return ``None`` from now on."""
        with self._changed:
            self._closing = True
            self._changed.notify()

    def take(self, *, until: float | None) -> Sequence[Starts | Told] | None:
        """Return what arrived, in order, nothing if nothing did by ``until`` (monotonic seconds; None: for ever). ``None`` when closing."""
        with self._changed:
            while not self._inbox and not self._closing:
                left = None if until is None else until - now()
                if left is not None and left <= 0:
                    break
                self._changed.wait(left)
            if self._closing:
                return None
            arrived, self._inbox = self._inbox, deque()
            return arrived

    def is_open(self, request_id: str) -> bool:
        """Tell whether the request has still to be answered."""
        return request_id in self._open

    def end(self, request_id: str) -> None:
        """Give the request's place back."""
        with self._changed:
            self._open.pop(request_id, None)
