"""The engine's loop run by the test itself, iteration by iteration, on a real arena and a real model."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import torch
from tests.unit.models.loaded import Loaded

from foveate.core.clock import now
from foveate.core.memory import Slot
from foveate.core.request import Sampling
from foveate.decisions.batching import BatchLimits
from foveate.encoders.tensors import write_embeddings
from foveate.engines.embedded.detokenize import Vocabulary
from foveate.engines.embedded.loop import GenerationLoop
from foveate.engines.embedded.messages import Prefilled, SlotFree
from foveate.engines.messages import Cancel, Cancelled, Generate, PictureReady
from foveate.engines.port import NOT_THERE, EngineWork, FailEvent, FinishEvent, PictureInput, TokenEvent
from foveate.models.port import Picture
from foveate.runtime.arena import Arena

GREEDY = Sampling(12, temperature=0, ignore_eos=True)


class Outbox:
    """What a worker's threads see of their process: an arena, and messages that go into a list."""

    def __init__(self, arena: Arena | None = None) -> None:
        self.arena = arena or Arena(16 << 20)
        self.sent: list[Any] = []
        self.changed = threading.Condition()

    def send(self, message: Any) -> None:
        with self.changed:
            self.sent.append(message)
            self.changed.notify_all()

    def wait_for(self, wanted: Callable[[list[Any]], bool]) -> list[Any]:
        """Return everything sent once it is as ``wanted``."""
        with self.changed:
            assert self.changed.wait_for(lambda: wanted(self.sent), timeout=30), self.sent
            return list(self.sent)


class Heard:
    """What a client would have been told of one request."""

    def __init__(self) -> None:
        self.tokens: dict[int, list[int]] = defaultdict(list)
        self.text: dict[int, str] = defaultdict(str)
        self.events: list[TokenEvent] = []
        self.finishes: list[FinishEvent] = []
        self.failure: FailEvent | None = None
        self.prefilled: Prefilled | None = None
        self.slot_free = 0
        """How often its slot was said to be free, and"""
        self.cancelled = 0
        """how often it was said to be dropped."""

    @property
    def ended(self) -> bool:
        return bool(self.failure or self.prefilled) or any(finish.last for finish in self.finishes)


def absent(picture: PictureInput) -> PictureInput:
    """The picture before it is encoded."""
    return msgspec.structs.replace(picture, embeddings=NOT_THERE)


class Driver:
    """Submits requests and runs iterations. ``limits`` default to what no test reaches."""

    def __init__(
        self,
        model: Loaded,
        *,
        limits: BatchLimits = BatchLimits(16, 512, 65536),  # noqa: B008 - frozen
        queue_depth_max: int = 64,
        language: Any = None,
        prefix_bytes_max: int = 0,
        arena: Arena | None = None,
    ) -> None:
        """``arena``: another driver's, when prompts go from one to the other."""
        self.model = model
        self.outbox = Outbox(arena)
        self.loop = GenerationLoop(
            language or model.language,
            Vocabulary.load(model.directory),
            self.outbox,
            limits=limits,
            queue_depth_max=queue_depth_max,
            embedding_bytes_per_row=model.tower.embedding_bytes_per_row,
            device=torch.device("cpu"),
            threads=1,
            prefix_bytes_max=prefix_bytes_max,
        )
        self._read = 0
        self.heard: dict[str, Heard] = defaultdict(Heard)

    def picture(self, picture: Picture, content: str = "") -> PictureInput:
        """Put a picture's embeddings into the arena, as the encoder does, and name them."""
        embeddings = picture.embeddings
        rows = embeddings.rows.shape[0]
        size = (rows * self.model.tower.embedding_bytes_per_row) + 64 * (1 + len(embeddings.deep))
        slot: Slot = self.outbox.arena.allocate(size)
        return PictureInput(write_embeddings(self.outbox.arena, slot, embeddings), rows, picture.meta, content)

    def submit(
        self,
        request_id: str,
        token_ids: Sequence[int],
        pictures: Sequence[PictureInput] = (),
        sampling: Sampling = GREEDY,
        deadline: float | None = None,
        scope: str = "",
    ) -> None:
        self.loop.submit(Generate(self.work(request_id, token_ids, pictures, sampling, deadline, scope), now()))

    @staticmethod
    def work(
        request_id: str,
        token_ids: Sequence[int],
        pictures: Sequence[PictureInput] = (),
        sampling: Sampling = GREEDY,
        deadline: float | None = None,
        scope: str = "",
    ) -> EngineWork:
        until = now() + 60 if deadline is None else deadline
        return EngineWork(request_id, list(token_ids), list(pictures), sampling, until, scope)

    def cancel(self, request_id: str) -> None:
        self.loop.tell(Cancel(request_id))

    def arrive(self, request_id: str, index: int, picture: PictureInput, out: Slot | None = None) -> None:
        """A picture that the request was submitted without is there."""
        self.loop.tell(PictureReady(request_id, index, picture, out))

    def stall(self) -> None:
        """Run until all that is left waits for pictures."""
        self.iterate()
        while not self.loop.stalled:
            self.iterate()

    def iterate(self) -> None:
        """Run one iteration; something must be under way or have arrived."""
        with torch.inference_mode():
            assert self.loop.iterate()
        self.listen()

    def listen(self) -> None:
        for event in self.outbox.sent[self._read :]:
            heard = self.heard[event.request_id]
            if isinstance(event, SlotFree):
                heard.slot_free += 1
                continue
            if isinstance(event, Cancelled):
                heard.cancelled += 1
                continue
            assert not heard.ended, "nothing follows the end"
            match event:
                case Prefilled():
                    heard.prefilled = event
                case TokenEvent():
                    heard.tokens[event.choice] += event.token_ids
                    heard.text[event.choice] += event.text
                    heard.events.append(event)
                case FinishEvent():
                    heard.finishes.append(event)
                case FailEvent():
                    heard.failure = event
        self._read = len(self.outbox.sent)

    def finish(self, *request_ids: str) -> list[Heard]:
        """Run until all named requests have ended."""
        self.listen()
        while not all(self.heard[request_id].ended for request_id in request_ids):
            self.iterate()
        return [self.heard[request_id] for request_id in request_ids]

    def answer(self, token_ids: Sequence[int], sampling: Sampling = GREEDY, *pictures: PictureInput) -> Heard:
        """Run one request alone."""
        request_id = f"alone-{len(self.heard)}"
        self.submit(request_id, token_ids, pictures, sampling)
        return self.finish(request_id)[0]
