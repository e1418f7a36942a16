"""The engine's loop: the same tokens alone and in any company, fair chunks, and every request's end."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import torch
from tests.unit.engines.embedded.driver import GREEDY, Driver
from tests.unit.models.loaded import Loaded, conversation, encode, generate, joint_call, pixels, process, prompt_ids

from foveate.core.clock import now
from foveate.core.request import Sampling
from foveate.decisions.batching import BatchLimits
from foveate.engines.port import PictureInput

SHORT = BatchLimits(16, 16, 65536)
ModelOf = Callable[[str], Loaded]


def prompt(
    driver: Driver, sizes: list[tuple[int, int]], question: str, seed: int = 0
) -> tuple[list[int], list[PictureInput]]:
    """Return the token ids and pictures of a question about pictures of ``sizes``."""
    model = driver.model
    processed = process(model, [pixels(*size, seed + index) for index, size in enumerate(sizes)])
    named = enumerate(encode(model, processed), seed)
    pictures = [driver.picture(picture, f"{seed}, {sizes[number - seed]}") for number, picture in named]
    return prompt_ids(model, conversation(len(sizes), question), processed), pictures


def text_prompt(driver: Driver, question: str = "what is this?") -> list[int]:
    return prompt(driver, [], question)[0]


@pytest.mark.parametrize("family", ["demo", "qwen3_vl", "gemma3"])
@pytest.mark.parametrize("chunk_tokens", [512, 16])
def test_the_same_tokens_as_transformers(model_of: ModelOf, family: str, chunk_tokens: int) -> None:
    model = model_of(family)
    sizes = [(150, 100), (90, 120)]
    expected, _ = generate(
        model, joint_call(model, conversation(2), [pixels(*size, i) for i, size in enumerate(sizes)]), 12
    )
    driver = Driver(model, limits=BatchLimits(16, chunk_tokens, 65536))
    ids, pictures = prompt(driver, sizes, "what is in this image?")
    assert driver.answer(ids, GREEDY, *pictures).tokens[0][: len(expected)] == expected


@pytest.mark.parametrize("family", ["demo", "gemma3"])
@pytest.mark.parametrize("prefix_bytes_max", [0, 1 << 20], ids=["nothing kept", "prefixes kept"])
def test_the_same_tokens_alone_and_in_any_batch(model_of: ModelOf, family: str, prefix_bytes_max: int) -> None:
    """Requests join and leave at random steps, some are cancelled; whoever is answered hears the same as alone."""
    driver = Driver(model_of(family), limits=BatchLimits(5, 96, 65536), prefix_bytes_max=prefix_bytes_max)
    chance = random.Random(4)
    jobs: dict[str, tuple[list[int], list[PictureInput], Sampling]] = {}
    for index in range(14):
        sizes = [
            (40 + 30 * chance.randrange(5), 60 + 20 * chance.randrange(4)) for _ in range(chance.choice([0, 0, 1, 2]))
        ]
        sampling = msgspec.structs.replace(GREEDY, tokens_max=chance.choice([1, 9, 30, 60]))
        question = "what " * chance.randint(1, 40)
        jobs[f"job-{index}"] = (*prompt(driver, sizes, question, seed=10 * index), sampling)
    alone = {
        name: driver.answer(ids, sampling, *pictures).tokens[0] for name, (ids, pictures, sampling) in jobs.items()
    }
    cancelled = set(chance.sample(sorted(jobs), 3))
    pending = list(jobs)
    together: set[int] = set()
    while pending or not all(driver.heard[name].ended for name in jobs if name not in cancelled):
        while pending and chance.random() < 0.4:
            name = pending.pop()
            ids, pictures, sampling = jobs[name]
            driver.submit(name, ids, pictures, sampling)
        for name in cancelled:
            if chance.random() < 0.1:
                driver.cancel(name)
        if driver.loop.busy:
            driver.iterate()
        together.add(driver.loop.rows)
    for name in jobs:
        heard = driver.heard[name].tokens[0]
        assert heard == alone[name][: len(heard)]
        assert name in cancelled or heard == alone[name]
    assert max(together) >= 4, "the batch was nearly full at times"
    while driver.loop.busy:
        driver.iterate()
    assert driver.loop.kv_tokens_used == 0


def test_running_streams_wait_for_one_chunk_at_most(demo: Loaded) -> None:
    driver = Driver(demo, limits=SHORT)
    long_prompt = text_prompt(driver, "what " * 90)
    driver.submit("stream", text_prompt(driver, "hi"), sampling=Sampling(40, temperature=0, ignore_eos=True))
    while not driver.heard["stream"].events:
        driver.iterate()
    driver.submit("long", long_prompt)
    iterations = 0
    while not driver.heard["long"].events:
        before = len(driver.heard["stream"].events)
        driver.iterate()
        iterations += 1
        assert len(driver.heard["stream"].events) == before + 1, "a token in every iteration"
    assert iterations >= len(long_prompt) // SHORT.chunk_tokens


def test_a_short_prompt_is_not_held_up_by_a_long_one(demo: Loaded) -> None:
    driver = Driver(demo, limits=BatchLimits(16, 32, 65536))
    driver.submit("long", text_prompt(driver, "what " * 200))
    driver.iterate()
    driver.submit("short", text_prompt(driver, "hi"))
    while not driver.heard["short"].events:
        driver.iterate()
    assert not driver.heard["long"].events
    assert len(driver.finish("long")[0].tokens[0]) == GREEDY.tokens_max


def test_first_event_carries_its_spans(demo: Loaded) -> None:
    driver = Driver(demo, limits=SHORT)
    before = now()
    heard = driver.answer(text_prompt(driver, "what " * 30))
    queue, prefill = heard.events[0].spans
    assert (queue.stage, prefill.stage) == ("llm_queue", "llm_prefill")
    assert before <= queue.start <= queue.end == prefill.start < prefill.end <= now()
    assert all(event.spans == () for event in heard.events[1:])


def test_end_of_sequence_and_length(demo: Loaded) -> None:
    driver = Driver(demo)
    ids = text_prompt(driver, "Hello, who are you?")
    whole = driver.answer(ids, Sampling(60, temperature=0))
    finish = whole.finishes[0]
    assert (finish.reason, finish.output_tokens) == ("stop", len(whole.tokens[0]))
    assert whole.tokens[0][-1] in demo.language.eos_token_ids
    assert "<|" not in whole.text[0]
    cut = driver.answer(ids, Sampling(3, temperature=0))
    assert (cut.finishes[0].reason, cut.tokens[0]) == ("length", whole.tokens[0][:3])
    longer = driver.answer(ids, Sampling(60, temperature=0, tokens_min=len(whole.tokens[0]) + 4))
    assert len(longer.tokens[0]) > len(whole.tokens[0]) + 4


def test_stop_strings_end_the_text_before_them(demo: Loaded) -> None:
    driver = Driver(demo)
    ids = text_prompt(driver, "Hello, who are you?")
    text = driver.answer(ids, Sampling(60, temperature=0)).text[0]
    stop = text[4:9]
    heard = driver.answer(ids, Sampling(60, temperature=0, stop=("never said", stop)))
    assert heard.text[0] == text[: text.index(stop)]
    assert heard.finishes[0].reason == "stop"
    held = driver.answer(ids, Sampling(60, temperature=0, stop=(text[-3:] + "!!",)))
    assert held.text[0] == text, "what was held back comes at the end"


def test_seeds_are_reproducible_and_choices_differ(demo: Loaded) -> None:
    driver = Driver(demo)
    ids = text_prompt(driver)
    wild = Sampling(12, temperature=3.0, seed=7, n=3, ignore_eos=True)
    first, again = driver.answer(ids, wild), driver.answer(ids, wild)
    assert first.tokens == again.tokens
    assert first.tokens[0] != first.tokens[1]
    second = driver.answer(ids, msgspec.structs.replace(wild, seed=8, n=1))
    assert second.tokens[0] == first.tokens[1], "choice i draws with seed + i"
    unseeded = msgspec.structs.replace(wild, seed=None, n=1)
    assert driver.answer(ids, unseeded).tokens != driver.answer(ids, unseeded).tokens
    for name in ("a", "b"):
        driver.submit(name, ids, sampling=wild)
    assert [heard.tokens for heard in driver.finish("a", "b")] == [first.tokens, first.tokens], "in any company"


def test_several_choices_are_prefilled_once(demo: Loaded) -> None:
    driver = Driver(demo)
    ids = text_prompt(driver)
    calls: list[int] = []
    real = demo.language.prefill

    class Counting:
        def __getattr__(self, name: str) -> Any:
            return getattr(demo.language, name)

        def prefill(self, *arguments: Any) -> torch.Tensor:
            calls.append(1)
            return real(*arguments)

    driver = Driver(demo, language=Counting())
    heard = driver.answer(ids, msgspec.structs.replace(GREEDY, n=4))
    assert len(calls) == 1
    assert {tuple(tokens) for tokens in heard.tokens.values()} == {tuple(heard.tokens[0])}
    assert [finish.last for finish in heard.finishes] == [False, False, False, True]
    assert sum(bool(event.spans) for event in heard.events) == 1


def test_logprobs_are_the_models_own(demo: Loaded) -> None:
    driver = Driver(demo)
    ids = text_prompt(driver)
    heard = driver.answer(ids, Sampling(5, temperature=0, logprobs=3, presence_penalty=1.5, ignore_eos=True))
    assert all(len(event.steps) == 1 and len(event.steps[0].top) == 3 for event in heard.events)
    positions = demo.language.positions(ids, [])
    logits = demo.language.prefill(ids, [], positions, demo.language.new_cache(), 0, len(ids))
    expected = torch.log_softmax(logits, -1)
    step = heard.events[0].steps[0]
    assert step.chosen.logprob == pytest.approx(float(expected[step.chosen.token_id]), abs=1e-5)
    assert [entry.token_id for entry in step.top] == expected.topk(3).indices.tolist()
    assert step.chosen.bytes_.decode() == step.chosen.text == heard.events[0].text
    only_chosen = driver.answer(ids, Sampling(2, temperature=0, logprobs=0))
    assert only_chosen.events[0].steps[0].top == []


def test_cancel_frees_everything_at_every_place(demo: Loaded) -> None:
    driver = Driver(demo, limits=BatchLimits(2, 16, 65536))
    long_prompt = text_prompt(driver, "what " * 30)
    forever = Sampling(1000, temperature=0, ignore_eos=True)
    driver.submit("running", text_prompt(driver, "hi"), sampling=forever)
    while not driver.heard["running"].events:
        driver.iterate()
    driver.submit("prefilling", long_prompt, sampling=forever)
    driver.submit("waiting", long_prompt, sampling=forever)
    driver.iterate()
    assert driver.loop.kv_tokens_used > len(driver.heard["running"].events)
    for name in ("prefilling", "waiting", "running", "never heard of"):
        driver.cancel(name)
    driver.iterate()
    assert (driver.loop.kv_tokens_used, driver.loop.busy) == (0, False)
    assert not driver.heard["prefilling"].events
    assert driver.answer(text_prompt(driver, "hi")).finishes, "and the engine goes on"


def test_queue_full_is_an_answer(demo: Loaded) -> None:
    driver = Driver(demo, limits=BatchLimits(1, 512, 65536), queue_depth_max=1)
    ids = text_prompt(driver, "hi")
    for name in ("a", "b", "c"):
        driver.submit(name, ids)
    a, b, c = driver.finish("a", "b", "c")
    assert c.failure is not None
    assert c.failure.error.code == "queue_full"
    assert (c.failure.error.limit_name, c.failure.error.limit, c.failure.error.actual) == (
        "engine.queue_depth_max",
        1,
        2,
    )
    assert a.tokens == b.tokens
    assert driver.answer(ids).tokens == a.tokens, "places come back"


def test_a_queue_full_of_pictures_takes_texts_in_turn(demo: Loaded) -> None:
    driver = Driver(demo, limits=BatchLimits(1, 512, 65536), queue_depth_max=2)
    ids, pictures = prompt(driver, [(64, 64)], "what is in this image?")
    for name in ("p1", "p2", "p3", "p4"):
        driver.submit(name, ids, pictures)
    driver.submit("text", text_prompt(driver, "hi"))
    driver.listen()
    failure = driver.heard["p4"].failure
    assert failure is not None
    assert failure.error.limit_name == "engine.queue_depth_max"
    [text] = driver.finish("text")
    assert text.finishes
    assert not driver.heard["p3"].events, "the text came after one prompt with pictures that waited, not after all"
    assert all(heard.finishes for heard in driver.finish("p1", "p2", "p3"))


def test_a_request_waits_for_kv_and_one_that_never_fits_is_refused(demo: Loaded) -> None:
    driver = Driver(demo)
    ids = text_prompt(driver, "hi")
    need = 2 * len(ids) + 20
    driver = Driver(demo, limits=BatchLimits(8, 512, need))
    sampling = Sampling(20, temperature=0, ignore_eos=True)
    driver.submit("a", ids, sampling=sampling)
    driver.submit("b", ids, sampling=sampling)
    driver.iterate()
    assert not driver.heard["b"].events
    a, b = driver.finish("a", "b")
    assert a.tokens == b.tokens
    driver.submit("c", ids, sampling=Sampling(21))
    driver.listen()
    failure = driver.heard["c"].failure
    assert failure is not None
    assert failure.error.code == "invalid_parameter"
    assert (failure.error.limit_name, failure.error.limit) == ("engine.kv_tokens_max", need)


@pytest.mark.parametrize("place", ["waiting", "running"])
def test_deadline(demo: Loaded, place: str) -> None:
    driver = Driver(demo)
    deadline = now() + 0.3 if place == "running" else now() - 1
    driver.submit(
        "late", text_prompt(driver, "hi"), sampling=Sampling(3000, temperature=0, ignore_eos=True), deadline=deadline
    )
    failure = driver.finish("late")[0].failure
    assert failure is not None
    assert failure.error.code == "deadline_exceeded"
    assert bool(driver.heard["late"].events) is (place == "running")
    assert (driver.loop.kv_tokens_used, driver.loop.busy) == (0, False)


def _with_rows(given: PictureInput, rows: int) -> PictureInput:
    return msgspec.structs.replace(given, rows=rows)


def _with_ref(given: PictureInput, **changes: Any) -> PictureInput:
    ref = msgspec.structs.replace(given.embeddings.tensors[0], **changes)
    return msgspec.structs.replace(given, embeddings=msgspec.structs.replace(given.embeddings, tensors=(ref,)))


@pytest.mark.parametrize(
    "spoil",
    [
        lambda given: _with_rows(given, given.rows - 1),
        lambda given: _with_ref(given, shape=(given.rows, 96)),
        lambda given: _with_ref(given, shape=(given.rows, 10**9)),
        lambda given: _with_ref(given, dtype="int32"),
        lambda given: _with_ref(given, dtype="no such type"),
        lambda given: _with_ref(given, name="other"),
        lambda given: _with_ref(given, shape=(given.rows - 1, 192)),
        lambda given: msgspec.structs.replace(given, meta={}),
    ],
)
def test_bad_embeddings_fail_alone(demo: Loaded, spoil: Callable[[PictureInput], PictureInput]) -> None:
    driver = Driver(demo)
    ids, (given,) = prompt(driver, [(100, 100)], "what is this?")
    expected = driver.answer(ids, GREEDY, given).tokens
    driver.submit("good", ids, [given])
    driver.submit("bad", ids, [spoil(given)])
    good, bad = driver.finish("good", "bad")
    assert good.tokens == expected
    assert bad.failure is not None
    assert bad.failure.error.code == "engine_failed"
    assert bad.failure.error.detail
    assert driver.loop.kv_tokens_used == 0


def test_non_finite_embeddings_fail_alone(demo: Loaded) -> None:
    driver = Driver(demo)
    ids, (given,) = prompt(driver, [(100, 100)], "what is this?")
    driver.outbox.arena.view(given.embeddings.slot)[0:4] = b"\xff\xff\xff\xff"
    failure = driver.answer(ids, GREEDY, given).failure
    assert failure is not None
    assert "NaN" in failure.error.detail


class _Broken:
    """A language model whose ``decode`` does as the test says."""

    def __init__(self, real: Any) -> None:
        self.real = real
        self.spoil: Callable[[torch.Tensor], torch.Tensor] = lambda logits: logits

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def decode(self, *arguments: Any) -> torch.Tensor:
        return self.spoil(self.real.decode(*arguments))


def test_non_finite_logits_fail_one_row(demo: Loaded) -> None:
    broken = _Broken(demo.language)
    driver = Driver(demo, language=broken)
    ids = text_prompt(driver, "hi")
    expected = driver.answer(ids).tokens
    for name in ("a", "b", "c"):
        driver.submit(name, ids)
    driver.iterate()

    def spoil(logits: torch.Tensor) -> torch.Tensor:
        spoilt = logits.clone()
        spoilt[1] = float("nan")
        return spoilt

    broken.spoil = spoil
    driver.iterate()
    broken.spoil = lambda logits: logits
    a, b, c = driver.finish("a", "b", "c")
    assert a.tokens == c.tokens == expected
    assert b.failure is not None


def test_a_failing_step_fails_who_runs_and_the_loop_goes_on(demo: Loaded) -> None:
    broken = _Broken(demo.language)
    driver = Driver(demo, language=broken)
    ids = text_prompt(driver, "hi")
    expected = driver.answer(ids).tokens
    for name in ("a", "b"):
        driver.submit(name, ids)
    driver.iterate()

    def fail(logits: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("device lost")

    broken.spoil = fail
    a, b = driver.finish("a", "b")
    assert a.failure is not None
    assert b.failure is not None
    assert "device lost" in a.failure.error.detail
    broken.spoil = lambda logits: logits
    assert driver.loop.kv_tokens_used == 0
    assert driver.answer(ids).tokens == expected


def test_text_never_splits_a_character(model_of: ModelOf) -> None:
    """A random model emits arbitrary bytes; every event's text is whole, together they are the tokenizer's decoding."""
    model = model_of("qwen3_vl")
    driver = Driver(model)
    ids = text_prompt(driver)
    pieces = 0
    for seed in range(6):
        heard = driver.answer(ids, Sampling(80, temperature=2.0, seed=seed, ignore_eos=True))
        own = model.their_processor.tokenizer.decode(heard.tokens[0], skip_special_tokens=True)
        assert heard.text[0] == own
        pieces += sum(event.text == "" for event in heard.events)
    assert pieces > 0, "some tokens were only parts of characters"
