"""Embeddings that clients computed themselves, on real workers: the answers of the pictures they were made of, the same prices, and no way
to stand for another's.
"""

import base64
import io
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace as changed
from tests.journeys.asking import BLUE, RED, ask, by, data_of, picture, request, settled

from foveate.core.errors import (
    EmbeddingsInvalid,
    EmbeddingsRefused,
    MediaIdConflict,
    MediaNotHeld,
    MediaTooLarge,
    MediaTotalTooLarge,
)
from foveate.core.media import DataRef, EmbedsRef, NamedRef
from foveate.core.request import Request
from foveate.journey.service import Journey
from foveate.models.files import DEMO_DIRECTORY
from foveate.models.reference import reference

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(300)]
ROWS = 64
"""Of a picture of 224 x 224 pixels."""


@cache
def computed(colour: tuple[int, int, int]) -> tuple[torch.Tensor, tuple[int, ...]]:
    """What a client would compute with transformers."""
    from PIL import Image

    pixels = np.asarray(Image.open(io.BytesIO(data_of(picture(colour, 240)))).convert("RGB"))
    made = reference(str(DEMO_DIRECTORY), pixels, "?")
    return made.embeddings.rows, tuple(made.meta["image_grid_thw"])


def saved(tensor: torch.Tensor) -> str:
    stream = io.BytesIO()
    torch.save(tensor, stream)
    return base64.b64encode(stream.getvalue()).decode()


def embeds(tensor: torch.Tensor, grid: Any) -> EmbedsRef:
    return EmbedsRef(DataRef(f"data:;base64,{saved(tensor)}"), grid)


def of(colour: tuple[int, int, int]) -> EmbedsRef:
    return embeds(*computed(colour))


def named(asked: Request, name: str) -> Request:
    (turn,) = asked.turns
    first, *others = turn.parts
    return changed(asked, turns=(changed(turn, parts=(changed(first, uuid=name), *others)),))


async def test_they_answer_as_their_pictures_do(service: Journey) -> None:
    for colour in (RED, BLUE):
        by_picture = await ask(service, request(picture(colour, 240)))
        by_embeddings = await ask(service, request(of(colour)))
        assert by_embeddings.text == by_picture.text
        assert (by_embeddings.images, by_embeddings.visual_tokens) == (1, ROWS) == (1, by_picture.visual_tokens)
        assert "vision_encode" not in by_embeddings.timing
        assert by_embeddings.timing["media_decode"] > 0
    await settled(service)


async def test_beside_a_picture_and_in_half_the_precision_and_with_a_grid_as_a_tensor(service: Journey) -> None:
    rows, grid = computed(RED)
    mixed = await ask(service, request(picture(BLUE, 240), embeds(rows.bfloat16(), saved(torch.tensor(grid)))))
    assert mixed.text == (await ask(service, request(picture(BLUE, 240), picture(RED, 240)))).text
    await settled(service)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda rows, grid: (rows[:-1], grid), "not that of 63 rows"),
        (lambda rows, grid: (rows[:, :-1], grid), "[rows, 192]"),
        (lambda rows, grid: (rows * float("nan"), grid), "NaN"),
        (lambda rows, grid: (rows, ()), "need image_grid_thw"),
        (lambda rows, grid: (rows, (1, 16, 15)), "not that of 64 rows"),
        (lambda rows, grid: (rows, (1, -16, -16)), "not that of 64 rows"),
        (lambda rows, grid: (rows, (4, 8, 8)), "not that of 64 rows"),
        (lambda rows, grid: (rows.to_sparse(), grid), "one dense tensor"),
    ],
)
async def test_what_is_not_right_is_refused_before_the_engine_sees_it(service: Journey, change: Any, said: str) -> None:
    with pytest.raises(EmbeddingsInvalid) as refused:
        await ask(service, request(embeds(*change(*computed(RED)))))
    assert said in refused.value.public
    assert (refused.value.part, refused.value.param) == (0, "messages[0].content[0].image_url")
    assert (await ask(service, request(of(RED)))).visual_tokens == ROWS
    await settled(service)


async def test_budgets_hold(service: Journey) -> None:
    with pytest.raises(MediaTooLarge):
        await ask(service, by(request(of(RED)), max_item_bytes=1000))
    with pytest.raises(MediaTotalTooLarge):
        await ask(service, by(request(of(RED), of(BLUE)), max_visual_tokens=100))
    with pytest.raises(EmbeddingsInvalid, match="1 to 63"):
        await ask(service, by(request(of(RED)), max_visual_tokens=63))
    fitted = await ask(
        service,
        by(request(picture(BLUE, 240), of(RED)), max_visual_tokens=100, on_excess={"max_visual_tokens": "fit"}),
    )
    assert fitted.visual_tokens <= 100
    await settled(service)


async def test_an_estimate_tells_the_price(service: Journey) -> None:
    found = await service.estimate(request(of(RED)), None)
    assert (found.admitted, found.complete, found.visual_tokens, found.pixels) == (True, True, ROWS, 0)
    assert (found.items[0].kind, found.items[0].visual_tokens, found.items[0].encoder_cached) == (
        "image_embeds",
        ROWS,
        False,
    )
    await settled(service)


async def test_they_are_in_no_cache_and_never_a_pictures(service: Journey) -> None:
    before = service.tools.encoder_cache.stats().entries
    await ask(service, request(of(RED)))
    assert service.tools.encoder_cache.stats().entries == before
    rows, grid = computed(RED)
    # The same bytes with another grid, and for another tenant, are other contents.
    one = await ask(service, by(request(embeds(rows, grid)), "tenant-a"))
    other = await ask(service, by(request(embeds(rows, (1, 8, 32))), "tenant-a"))
    assert one.visual_tokens == other.visual_tokens
    await settled(service)


async def test_names_are_bound_but_nothing_is_held_by_them(service: Journey) -> None:
    await ask(service, named(request(of(RED)), "mine"))
    await ask(service, named(request(of(RED)), "mine"))
    for other in (request(of(BLUE)), request(picture(RED))):
        with pytest.raises(MediaIdConflict):
            await ask(service, named(other, "mine"))
    for ref in (EmbedsRef(NamedRef("mine")), NamedRef("mine")):
        with pytest.raises(MediaNotHeld):
            await ask(service, named(request(ref), "mine"))
    await settled(service)


async def test_they_are_refused_unread_unless_the_operator_accepts_them(service: Journey) -> None:
    strict = Journey(
        replace(service.tools, limits=replace(service.tools.limits, client_embeddings=False)), models=("m",)
    )
    garbage = EmbedsRef(DataRef("data:;base64,AAAA"))
    with pytest.raises(EmbeddingsRefused) as refused:
        await ask(strict, request(picture(RED), garbage))
    assert refused.value.part == 1
    estimate = await strict.estimate(request(garbage), None)
    assert [refusal.code for refusal in estimate.refusals] == ["embeddings_not_accepted"]
    await settled(service)
