"""What runs next in the language model and in the vision encoder: pure choices over a view.

Covers: which waiting prompts may start (their whole KV need is reserved at the start, so nothing that runs is ever
evicted), which chunks of prompts are prefilled between two token-decode steps, and which pictures are encoded together.
A prompt that waits for a picture is *held*: it takes only what nobody else wants, and gives it back when somebody does.
Does not cover: reuse of KV between requests (:mod:`foveate.engines.embedded.prefixes`), which enters as tokens that are done.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Sequence
from itertools import islice

import msgspec

SKIPS_MAX = 3
"""How often shorter prompts may overtake a prompt whose prefill has begun before it goes first."""

PICTURE_ROWS_SHARE = 0.75
"""Of the rows decoded together, at most this share are answers about pictures: however long those are, a text finds a row free."""

_CHUNK_SHARE_MIN = 8
"""A leftover of the chunk budget smaller than 1/8 is not worth a forward pass unless it completes a prompt."""


class BatchLimits(msgspec.Struct, frozen=True):
    """``sequences_max`` rows are decoded together; ``chunk_tokens`` are prefilled at most between two steps (more only
    where a model allows no earlier border); ``kv_tokens_max`` is the KV capacity in tokens, padding included."""

    sequences_max: int
    chunk_tokens: int
    kv_tokens_max: int


class PromptView(msgspec.Struct, frozen=True):
    """A prompt that waits or whose prefill has begun.

    ``done`` of its ``prompt_tokens`` are prefilled; ``choices`` rows will each draw up to ``tokens_max`` tokens;
    ``skipped`` counts the plans that gave it no chunk; ``borders`` are the allowed chunk ends in rising order, ``None``
    for every place; ``pictures`` tells whether it has any. ``ready`` is the border up to which it may be prefilled before a picture that
    it waits for is there; ``None``: it waits for none.
    """

    prompt_tokens: int
    tokens_max: int
    choices: int = 1
    done: int = 0
    skipped: int = 0
    borders: Sequence[int] | None = None
    pictures: bool = False
    ready: int | None = None

    @property
    def held(self) -> bool:
        """Whether it waits for a picture."""
        return self.ready is not None

    @property
    def end(self) -> int:
        """How far it may be prefilled now."""
        return self.prompt_tokens if self.ready is None else self.ready

    @property
    def tokens_total(self) -> int:
        """KV tokens of one finished row."""
        return self.prompt_tokens + self.tokens_max


class BatchView(msgspec.Struct, frozen=True):
    """The engine at one moment: prompts in the order in which they may start, and the running rows with the KV tokens the longest of
    them may reach. ``picture_rows`` of the rows belong to prompts with pictures."""

    waiting: Sequence[PromptView]
    prefilling: Sequence[PromptView]
    rows: int
    row_tokens_max: int
    picture_rows: int = 0


class Chunk(msgspec.Struct, frozen=True):
    """Prefill tokens ``start`` .. ``end`` of prompt ``index``, which counts the prefilling prompts and after them the
    admitted ones."""

    index: int
    start: int
    end: int


class StepPlan(msgspec.Struct, frozen=True):
    """Take back what the prefilling prompts ``gives_way`` hold, which wait again; start the waiting prompts ``admit`` (places in the line,
    rising), run ``chunks`` in this order, then one token-decode step."""

    admit: tuple[int, ...]
    chunks: tuple[Chunk, ...]
    gives_way: tuple[int, ...] = ()


def fits_ever(prompt: PromptView, limits: BatchLimits) -> bool:
    """Tell whether an idle engine could take the prompt."""
    kv_tokens = _kv_tokens(prompt.choices, prompt.tokens_total, prompt.prompt_tokens)
    return prompt.choices <= limits.sequences_max and kv_tokens <= limits.kv_tokens_max


def plan_step(view: BatchView, limits: BatchLimits) -> StepPlan:
    """Decide one iteration of the engine.

    Prompts start strictly in the order in which they wait (:func:`place_in_line`): one that does not fit holds back those
    behind it, so that none starves. Only texts pass a prompt with pictures that waits for a row of pictures' share.
    Among started prompts the one with the least left to prefill goes first (a short text prompt overtakes a long one
    with pictures), except that a prompt passed over :data:`SKIPS_MAX` times goes before all others.

    Held prompts come behind all others: they start when nobody else waits, get what others leave of the chunk budget, and give way, the
    one that started last first, as soon as another prompt could start in their place.
    """
    admit, gives_way = _admissible(view, limits)
    prompts = [*view.prefilling, *(view.waiting[place] for place in admit)]
    order = sorted(set(range(len(prompts))).difference(gives_way), key=lambda index: _urgency(prompts[index], index))
    budget = limits.chunk_tokens
    chunks: list[Chunk] = []
    for index in order:
        prompt = prompts[index]
        end = _chunk_end(prompt, budget, first=not chunks)
        if end <= prompt.done or (end < prompt.prompt_tokens and budget * _CHUNK_SHARE_MIN < limits.chunk_tokens):
            continue
        chunks.append(Chunk(index, prompt.done, end))
        budget -= end - prompt.done
        if budget <= 0:
            break
    return StepPlan(admit, tuple(chunks), gives_way)


def place_in_line(texts: Sequence[bool], text: bool) -> int:
    """Return where a new prompt stands among those that wait; ``texts`` tells of each whether it is a text without pictures.

    A text stands behind all texts that wait, but behind one prompt with pictures at most: the two kinds take turns, so
    that neither a hundred pictures delay a text by more than one of them, nor texts keep pictures waiting.
    """
    if not text:
        return len(texts)
    last = max((place for place, other in enumerate(texts) if other), default=-1)
    return min(last + 2, len(texts))


def choose_encode_batch(
    shapes: Sequence[Hashable], pictures_max: int, *, tokens: Sequence[int] = (), tokens_max: int = 0
) -> tuple[int, ...]:
    """Return the indices to encode together: the first picture and, in order, those of its shape, at most ``pictures_max``.

    ``tokens`` are the pictures' visual tokens; where they are given, a batch has at most ``tokens_max`` unless its first picture has more.
    """
    if not shapes:
        return ()
    alike = tuple(islice((index for index, shape in enumerate(shapes) if shape == shapes[0]), pictures_max))
    if not tokens:
        return alike
    # Pictures of one shape have equally many tokens.
    return alike[: max(1, tokens_max // max(1, tokens[0]))]


def _kv_tokens(rows: int, row_tokens_max: int, prefill_tokens: int) -> int:
    """KV tokens that may be allocated: the padded batch, and the caches of prompts in prefill that are copied into
    it."""
    return rows * row_tokens_max + prefill_tokens


def _admissible(view: BatchView, limits: BatchLimits) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return who may start, and which held prompts give way for it: no more of them than it takes."""
    admit = _startable(view, limits)
    if len(admit) == sum(not prompt.held for prompt in view.waiting):
        return _startable(view, limits, held_too=True), ()
    held = [index for index, prompt in enumerate(view.prefilling) if prompt.held]
    wanted = _startable(view, limits, gone=held)
    gone: list[int] = []
    while admit != wanted:
        gone.append(held.pop())
        admit = _startable(view, limits, gone=gone)
    return admit, tuple(gone)


def _startable(
    view: BatchView, limits: BatchLimits, *, gone: Sequence[int] = (), held_too: bool = False
) -> tuple[int, ...]:
    """Return who may start when the prefilling prompts ``gone`` hold nothing; ``held_too``: those as well that can be prefilled in part."""
    prefilling = [prompt for index, prompt in enumerate(view.prefilling) if index not in gone]
    rows = view.rows + sum(prompt.choices for prompt in prefilling)
    pictures = view.picture_rows + sum(prompt.choices for prompt in prefilling if prompt.pictures)
    longest = max([view.row_tokens_max, *(prompt.tokens_total for prompt in prefilling)])
    prefill = sum(prompt.prompt_tokens for prompt in prefilling)
    admit: list[int] = []
    share_is_full = False
    for place in sorted(range(len(view.waiting)), key=lambda place: view.waiting[place].held):
        prompt = view.waiting[place]
        if prompt.held and not (held_too and prompt.end > prompt.done):
            continue
        if prompt.pictures:
            # One that alone is more than the share starts when no other has pictures: it must start some time.
            within = pictures + prompt.choices <= max(1, int(limits.sequences_max * PICTURE_ROWS_SHARE))
            share_is_full = share_is_full or (pictures > 0 and not within)
            if share_is_full:
                continue
        longest_then = max(longest, prompt.tokens_total)
        then = _kv_tokens(rows + prompt.choices, longest_then, prefill + prompt.prompt_tokens)
        if rows + prompt.choices > limits.sequences_max or then > limits.kv_tokens_max:
            break
        rows, longest, prefill = rows + prompt.choices, longest_then, prefill + prompt.prompt_tokens
        pictures += prompt.choices if prompt.pictures else 0
        admit.append(place)
    return tuple(sorted(admit))


def _urgency(prompt: PromptView, index: int) -> tuple[bool, bool, int, int]:
    overdue = prompt.skipped >= SKIPS_MAX
    return prompt.held, not overdue, 0 if overdue else prompt.prompt_tokens - prompt.done, index


def _chunk_end(prompt: PromptView, budget: int, *, first: bool) -> int:
    """Return where the prompt's next chunk ends; not beyond ``prompt.done`` when it cannot have one within ``budget``.

    The ``first`` chunk of a plan may exceed the budget up to the next border: waiting longer would not make it smaller.
    """
    wanted = min(prompt.done + budget, prompt.end)
    if prompt.borders is None or wanted == prompt.end:
        return wanted
    place = bisect_right(prompt.borders, wanted)
    if place and prompt.borders[place - 1] > prompt.done:
        return prompt.borders[place - 1]
    if not first:
        return prompt.done
    later = prompt.borders[place:]
    return later[0] if later else prompt.prompt_tokens
