"""What a request may ask of each family's picture processor, and that the prompt side and the processor then agree."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from tests.unit.models.loaded import Loaded, pixels

from foveate.core.errors import FoveateError, InvalidParameter, UnsupportedParameter
from foveate.core.media import ImageOptions, ProcessorOptions
from foveate.models.families import FAMILIES

ModelOf = Callable[[str], Loaded]
NAMES = list(FAMILIES)
QWEN = {"qwen2_vl", "qwen2_5_vl", "qwen3_vl"}
SIDES = {"pixtral", "mistral3", "smolvlm", "idefics3"}
FIELDS = {
    "min_pixels": QWEN,
    "max_pixels": {*QWEN, *SIDES, "internvl"},
    "shortest_edge": QWEN,
    "longest_edge": {*QWEN, *SIDES},
}


def place(field: str) -> str:
    return f"mm_processor_kwargs.{'size.' if field.endswith('edge') else ''}{field}"


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("name", NAMES)
def test_each_family_takes_what_its_processor_can_be_told(name: str, field: str, model_of: ModelOf) -> None:
    prompt = model_of(name).prompt
    assert prompt.wanted(ProcessorOptions()) == ImageOptions()
    asked = ProcessorOptions(**{field: 100})
    if name in FIELDS[field]:
        assert prompt.wanted(asked) != ImageOptions()
        return
    with pytest.raises(UnsupportedParameter) as refused:
        prompt.wanted(asked)
    assert refused.value.param == place(field)
    assert FAMILIES[name].title in refused.value.public


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("name", NAMES)
def test_nothing_exceeds_the_models_own_limit(name: str, field: str, model_of: ModelOf) -> None:
    with pytest.raises(FoveateError) as refused:
        model_of(name).prompt.wanted(ProcessorOptions(**{field: 10**9}))
    assert refused.value.param == place(field)
    if name in FIELDS[field]:
        assert isinstance(refused.value, InvalidParameter)
        limit = refused.value.limit
        assert limit is not None
        at_limit = int(limit**0.5) if name in SIDES and field == "longest_edge" else int(limit)
        assert model_of(name).prompt.options(model_of(name).prompt.wanted(ProcessorOptions(**{field: at_limit})))


@pytest.mark.parametrize("name", NAMES)
def test_the_price_is_what_the_processor_makes_of_it(name: str, model_of: ModelOf) -> None:
    model = model_of(name)
    values = {"min_pixels": 40_000, "max_pixels": 12_000, "shortest_edge": 40_000, "longest_edge": 12_000}
    if name in SIDES:
        values["longest_edge"] = 110
    for field, value in values.items():
        if name not in FIELDS[field]:
            continue
        options = model.prompt.options(model.prompt.wanted(ProcessorOptions(**{field: value})))
        for size in ((640, 480), (60, 60), (300, 40)):
            estimate = model.prompt.estimate(*size, options)
            made = model.pictures.process(pixels(*size), options)
            assert estimate.rows_max == made.rows
            assert estimate.input_bytes_max == sum(-(-array.nbytes // 64) * 64 for array in made.arrays.values())


@pytest.mark.parametrize("name", sorted(QWEN))
def test_qwen_makes_pictures_as_large_as_asked(name: str, model_of: ModelOf) -> None:
    model = model_of(name)
    plain = model.prompt.estimate(60, 60, ImageOptions()).tokens
    for asked in (ProcessorOptions(min_pixels=40_000), ProcessorOptions(shortest_edge=40_000)):
        options = model.prompt.wanted(asked)
        assert model.prompt.estimate(60, 60, options).tokens > plain
    bounds = [
        model.prompt.wanted(asked) for asked in (ProcessorOptions(max_pixels=9000), ProcessorOptions(longest_edge=9000))
    ]
    assert bounds[0] == bounds[1]
    assert model.prompt.estimate(640, 480, bounds[0]).tokens < model.prompt.estimate(640, 480, ImageOptions()).tokens


def test_equal_wishes_have_equal_keys(model_of: ModelOf) -> None:
    prompt = model_of("qwen2_5_vl").prompt
    plain = prompt.options(ImageOptions())
    for pixels_min in (0, 1):
        reduced = prompt.options(ImageOptions(pixels_min=pixels_min))
        assert prompt.options(reduced) == reduced
        assert (reduced == plain) == (pixels_min == 0)
    both = ImageOptions(pixels_max=500, pixels_min=800)
    assert prompt.options(both) == prompt.options(msgspec.structs.replace(both, pixels_min=900))


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        (ProcessorOptions(max_pixels=5000, longest_edge=6000), "mm_processor_kwargs.max_pixels"),
        (ProcessorOptions(min_pixels=5000, shortest_edge=6000), "mm_processor_kwargs.min_pixels"),
        (ProcessorOptions(min_pixels=6000, max_pixels=5000), "mm_processor_kwargs.min_pixels"),
        (ProcessorOptions(shortest_edge=6000, longest_edge=5000), "mm_processor_kwargs.size.shortest_edge"),
    ],
)
def test_what_contradicts_itself_is_refused(asked: ProcessorOptions, param: str, model_of: ModelOf) -> None:
    with pytest.raises(InvalidParameter) as refused:
        model_of("qwen2_5_vl").prompt.wanted(asked)
    assert refused.value.param == param
    same = ProcessorOptions(max_pixels=5000, longest_edge=5000)
    assert model_of("qwen2_5_vl").prompt.wanted(same).pixels_max == 5000
