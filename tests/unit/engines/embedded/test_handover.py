"""A prompt that one loop prefills and another goes on with: the same tokens, and the slot between them free exactly once."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import msgspec
import pytest
import torch
from tests.unit.engines.embedded.driver import GREEDY, Driver, Heard
from tests.unit.engines.embedded.test_loop import prompt, text_prompt
from tests.unit.models.loaded import Loaded

from foveate.core.clock import now
from foveate.core.memory import Slot
from foveate.core.request import Sampling
from foveate.decisions.batching import BatchLimits
from foveate.engines.embedded.messages import Prefill, Prefilled, TokenDecode
from foveate.engines.embedded.process import warm_up
from foveate.engines.port import EngineWork

ModelOf = Callable[[str], Loaded]


class Pair:
    """A loop that prefills, and one that draws the tokens."""

    def __init__(self, model: Loaded, **given: object) -> None:
        self.first = Driver(model, **given)  # type: ignore[arg-type]
        self.second = Driver(model, arena=self.first.outbox.arena)
        self._sizes = warm_up(model.language, torch.device("cpu"))

    def slot(self, work: EngineWork) -> Slot:
        each, once = self._sizes
        return self.first.outbox.arena.allocate(each * len(work.token_ids) + once)

    def prefill(self, work: EngineWork) -> Heard:
        self.first.loop.submit(Prefill(work, now(), self.slot(work)))
        return self.first.finish(work.request_id)[0]

    def go_on(self, work: EngineWork, prefilled: Prefilled) -> Heard:
        self.second.loop.submit(TokenDecode(work, prefilled.started_at, prefilled))
        return self.second.finish(work.request_id)[0]


@pytest.mark.parametrize("family", ["demo", "qwen3_vl", "gemma3"])
@pytest.mark.parametrize("sampling", [GREEDY, Sampling(9, temperature=1.3, seed=5, n=2)], ids=["greedy", "drawn"])
def test_the_same_tokens_as_in_one_loop(model_of: ModelOf, family: str, sampling: Sampling) -> None:
    pair = Pair(model_of(family), prefix_bytes_max=1 << 20, limits=BatchLimits(16, 64, 65536))
    ids, pictures = prompt(pair.first, [(150, 100), (90, 120)], "what is in this image?")
    expected = pair.first.answer(ids, sampling, *pictures)
    # What the first kept of the same prompt is handed on as well as what it prefills.
    for request_id, scope in (("anew", "other"), ("kept", "")):
        work = Driver.work(request_id, ids, pictures, sampling, scope=scope)
        heard = pair.prefill(work)
        assert heard.prefilled is not None
        assert bool(heard.prefilled.cached_tokens) == (request_id == "kept")
        slot = heard.prefilled.kv.slot
        assert heard.prefilled.kv.used <= slot.size
        answer = pair.go_on(work, heard.prefilled)
        assert answer.tokens == expected.tokens
        assert answer.finishes[-1].cached_tokens == heard.prefilled.cached_tokens
        assert (heard.slot_free, answer.slot_free) == (0, 1)
        spans = answer.events[0].spans
        assert [span.stage for span in spans] == ["llm_queue", "llm_prefill", "llm_queue", "llm_prefill"]
        assert all(one.end == other.start for one, other in pairwise(spans))


def test_what_lies_in_the_slot_is_not_read_after_it_is_free(model_of: ModelOf) -> None:
    """Other requests write to it while the tokens are drawn."""
    pair = Pair(model_of("demo"))
    ids = text_prompt(pair.first)
    expected = pair.first.answer(ids).tokens
    work = Driver.work("handed", ids)
    heard = pair.prefill(work)
    assert heard.prefilled is not None
    pair.second.loop.submit(TokenDecode(work, now(), heard.prefilled))
    while not pair.second.heard["handed"].slot_free:
        pair.second.iterate()
    assert not pair.second.heard["handed"].ended
    pair.second.outbox.arena.view(heard.prefilled.kv.slot)[:] = b"\xff" * heard.prefilled.kv.slot.size
    assert pair.second.finish("handed")[0].tokens == expected


@pytest.mark.parametrize("waits", [True, False], ids=["in the inbox", "half prefilled"])
def test_a_prefill_that_is_cancelled_says_when_its_slot_is_free(model_of: ModelOf, waits: bool) -> None:
    pair = Pair(model_of("demo"), limits=BatchLimits(16, 16, 65536))
    ids, pictures = prompt(pair.first, [(90, 120)], "what is in this image?")
    work = Driver.work("dropped", ids, pictures)
    pair.first.loop.submit(Prefill(work, now(), pair.slot(work)))
    if not waits:
        pair.first.iterate()
    pair.first.cancel("dropped")
    pair.first.iterate()
    heard = pair.first.heard["dropped"]
    assert (heard.slot_free, heard.cancelled, heard.prefilled, heard.failure) == (1, 1, None, None)
    assert not pair.first.loop.busy


def test_failures_free_the_slot_too(model_of: ModelOf) -> None:
    pair = Pair(model_of("demo"), queue_depth_max=1, limits=BatchLimits(1, 512, 65536))
    ids = text_prompt(pair.first)
    small = Driver.work("small", ids)
    pair.first.loop.submit(Prefill(small, now(), pair.first.outbox.arena.allocate(64)))
    assert pair.first.finish("small")[0].failure is not None
    late = Driver.work("late", ids, deadline=now() - 1)
    assert pair.prefill(late).failure is not None
    for number in range(3):
        work = Driver.work(f"many-{number}", ids)
        pair.first.loop.submit(Prefill(work, now(), pair.slot(work)))
    heard = pair.first.finish("many-0", "many-1", "many-2")
    assert [bool(one.failure) for one in heard] == [False, False, True]
    torn = heard[0].prefilled
    assert torn is not None
    short = msgspec.structs.replace(torn, kv=msgspec.structs.replace(torn.kv, tensors=torn.kv.tensors[:-1]))
    assert pair.go_on(Driver.work("torn", ids), short).failure is not None
    other = msgspec.structs.replace(torn, request_id="other")
    assert pair.go_on(Driver.work("other", [*ids, *ids]), other).failure is not None
    frees = [pair.first.heard[name].slot_free for name in ("small", "late", "many-0", "many-2")]
    assert frees == [1, 1, 0, 1]
    assert [pair.second.heard[name].slot_free for name in ("torn", "other")] == [1, 1]
    assert not pair.first.loop.busy
    assert not pair.second.loop.busy


def test_prompts_that_are_only_prefilled_take_no_rows(model_of: ModelOf) -> None:
    pair = Pair(model_of("demo"), limits=BatchLimits(1, 512, 65536))
    ids = text_prompt(pair.first)
    pair.first.submit("long", ids, sampling=Sampling(400, temperature=0, ignore_eos=True))
    pair.first.iterate()
    heard = pair.prefill(Driver.work("handed", ids))
    assert heard.prefilled is not None
    assert not pair.first.heard["long"].ended


def test_sizes_are_of_what_is_written(model_of: ModelOf) -> None:
    pair = Pair(model_of("gemma3"))
    ids, pictures = prompt(pair.first, [(90, 120)], "what?")
    heard = pair.prefill(Driver.work("one", ids, pictures))
    assert heard.prefilled is not None
    assert 0 <= heard.prefilled.kv.slot.size - heard.prefilled.kv.used < 64 * 64
