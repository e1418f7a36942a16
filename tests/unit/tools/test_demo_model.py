"""The tools that make the demonstration model: forward pass, questions and tokenizer."""

from __future__ import annotations

import random
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

sys.path.insert(0, str(Path(__file__).parents[3] / "tools" / "demo_model"))

import architecture  # noqa: E402
import fast_forward  # noqa: E402
import packing  # noqa: E402
import questions  # noqa: E402
import scenes  # noqa: E402
import stages  # noqa: E402
import train  # noqa: E402


@pytest.fixture(scope="module")
def tokenizer():
    return architecture.train_tokenizer()


@pytest.fixture(scope="module")
def model(tokenizer):
    torch.set_num_threads(1)
    return architecture.random_model(architecture.configuration(tokenizer), seed=3).eval()


def library_logits(model, batch, sample, image_id):
    """Logits of one sample by the library's own forward pass, positions worked out by the library too."""
    length = len(sample.ids)
    pixels, grids = [], []
    for grid, index in batch.picture_order:
        patches = batch.pixels[grid][index].view(-1, 3, 1, 14, 14).expand(-1, 3, 2, 14, 14)
        pixels.append(patches.reshape(len(patches), -1))
        rows, columns = batch.grids[grid]
        grids.append([1, rows * 2, columns * 2])
    ids = batch.ids[:, :length]
    with torch.no_grad():
        return model(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            mm_token_type_ids=(ids == image_id).int(),
            pixel_values=torch.cat(pixels),
            image_grid_thw=torch.tensor(grids),
        ).logits[0]


@pytest.mark.parametrize(("pictures", "grids"), [(1, [(4, 4)] * 2), (1, [(9, 5)] * 2), (2, [(4, 6), (6, 5)])])
def test_fast_forward_equals_library(model, tokenizer, pictures, grids):
    encoder = packing.Encoder(tokenizer)
    sample = packing.make_sample(random.Random(pictures), encoder, grids, pictures, branches=1, stage=stages.STAGES[0])
    batch = packing.collate([sample], grids)
    with torch.no_grad():
        hidden, _ = fast_forward.hidden_states(model, batch, encoder.image_id)
        ours = model.lm_head(hidden)[0, : len(sample.ids)]
    torch.testing.assert_close(ours, library_logits(model, batch, sample, encoder.image_id), atol=1e-4, rtol=1e-4)


def test_branches_do_not_see_one_another(model, tokenizer):
    """Changing a token of the first branch leaves the logits of the others as they were."""
    encoder = packing.Encoder(tokenizer)
    grids = [(4, 4), (4, 4)]
    rng = random.Random(0)
    sample = packing.make_sample(rng, encoder, grids, 1, branches=3, stage=stages.STAGES[0])
    while max(sample.branches) < 3:
        sample = packing.make_sample(rng, encoder, grids, 1, branches=3, stage=stages.STAGES[0])
    batch = packing.collate([sample], grids)
    branches = torch.full(batch.ids.shape[1:], -1)
    branches[: len(sample.ids)] = torch.tensor(sample.branches)
    with torch.no_grad():
        before, _ = fast_forward.hidden_states(model, batch, encoder.image_id)
        batch.ids[0, (branches == 1).nonzero()[0, 0]] += 1
        after, _ = fast_forward.hidden_states(model, batch, encoder.image_id)
    assert not torch.equal(before[0, branches == 1], after[0, branches == 1])
    torch.testing.assert_close(before[0, branches > 1], after[0, branches > 1])


def test_questions_before_pictures_equal_the_library(model, tokenizer):
    """Each branch repeats the pictures after its question; alone, it is a conversation the library reads the same."""
    encoder = packing.Encoder(tokenizer)
    grids = [(4, 6), (6, 5)]
    stage = replace(stages.STAGES[0], text_first=1.0)
    sample = packing.make_sample(random.Random(2), encoder, grids, 2, branches=3, stage=stage)
    batch = packing.collate([sample], grids)
    assert max(sample.branches) == 3
    assert sample.shown == [0, 1] * 3
    assert sum(len(pixels) for pixels in batch.pixels.values()) == 2  # each picture is encoded once
    with torch.no_grad():
        hidden, _ = fast_forward.hidden_states(model, batch, encoder.image_id)
        ours = model.lm_head(hidden)[0, : len(sample.ids)]
    branches = torch.tensor(sample.branches)
    for branch in range(1, 4):
        rows = ((branches == 0) | (branches == branch)).nonzero()[:, 0]
        alone = packing.Sample(encoder, ids=[sample.ids[i] for i in rows])
        one = SimpleNamespace(
            ids=batch.ids[:, rows], picture_order=batch.picture_order[:2], pixels=batch.pixels, grids=grids
        )
        theirs = library_logits(model, one, alone, encoder.image_id)
        torch.testing.assert_close(ours[rows], theirs, atol=1e-4, rtol=1e-4)


def scene(*items):
    return [scenes.Item(colour, shape, x, y, 20.0) for colour, shape, x, y in items]


TWO = scene(("red", "circle", 40, 150), ("blue", "star", 160, 60))


def answers(kind, shown, times=200):
    rng = random.Random(0)
    asked = [questions.ask(rng, kind, shown) for _ in range(times)]
    return {(q.text, q.answer) for q in asked if q}


def test_description_goes_left_to_right():
    assert questions.description(TWO) == "A red circle and a blue star."
    assert questions.description([]) == "There are no shapes in the image."


def test_position_answers():
    expected = {"left": "red circle", "right": "blue star", "top": "blue star", "bottom": "red circle"}
    sides = {text: side for side, texts in questions.POSITION.items() for text in texts}
    found = answers("position", [TWO])
    assert {sides[text] for text, _ in found} == set(expected)
    assert all(answer == f"The {expected[sides[text]]}." for text, answer in found)


def test_position_is_asked_only_where_clear():
    level = scene(("red", "circle", 40, 100), ("blue", "star", 160, 110))
    assert {answer for _, answer in answers("position", [level])} == {"The red circle.", "The blue star."}
    assert all(t not in questions.POSITION["top"] for t, _ in answers("position", [level]))
    assert not answers("position", [TWO[:1]])


def test_colour_is_asked_only_of_a_unique_shape():
    twins = scene(("red", "circle", 40, 100), ("blue", "circle", 100, 100), ("green", "star", 160, 100))
    assert {answer for _, answer in answers("colour", [twins])} == {"The star is green."}


def test_count_and_yes_no_answers():
    counts = {a for text, a in answers("count", [TWO]) if text in questions.COUNT}
    assert counts == {"There are two shapes."}
    for text, answer in answers("yesno", [TWO]):
        said = answer.removeprefix("Yes, there is ").removeprefix("No, there is no ").rstrip(".")
        name = said.removeprefix("an ").removeprefix("a ")
        assert answer.startswith("Yes") == any(name in (o.name, o.shape) for o in TWO), (text, answer)
        assert name in text


def test_two_picture_answers():
    other = scene(("green", "square", 60, 60))
    assert {a for _, a in answers("two_describe", [TWO, other])} == {
        "First image: a red circle and a blue star. Second image: a green square."
    }
    for text, answer in answers("two_one", [TWO, other]):
        assert answer == questions.description(TWO if "first" in text else other)
    assert {a for _, a in answers("two_which", [TWO, other])} == {
        "The first image has the red circle.",
        "The first image has the blue star.",
        "The second image has the green square.",
    }


def test_ranks_in_the_labels():
    image = scenes.token_labels(TWO, 200, 200, 8, 8)
    at = {name: image[i] for i, name in enumerate(scenes.LABEL_ROWS)}
    star = at["shape"] == scenes.SHAPES.index("star") + 1
    assert star.any()
    assert set(at["from_left"][star]) == {2}
    assert set(at["from_right"][star]) == {1}
    assert set(at["from_top"][star]) == {1}
    assert set(at["from_bottom"][star]) == {2}
    assert at["centre"].sum() == 2


def test_tokenizer_does_not_depend_on_question_weights(tokenizer, monkeypatch):
    only_position = stages.Stage(0, dict.fromkeys(questions.ALL_TYPES, 0.001) | {"position": 1.0}, (0, 0, 1, 0))
    monkeypatch.setattr(stages, "STAGES", [only_position])
    assert architecture.train_tokenizer().get_vocab() == tokenizer.get_vocab()


def test_resumed_training_is_the_same_training(tokenizer, tmp_path, monkeypatch):
    monkeypatch.setattr(train, "PATCHES", 100)
    whole = train.Trainer(tokenizer, 0, 10, tmp_path)
    whole.one_step()
    whole.save()
    whole.one_step()
    part = train.Trainer(tokenizer, 0, 10, tmp_path)
    part.resume()
    part.one_step()
    assert part.step == whole.step == 2
    for ours, theirs in zip(part.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_total_steps_matter_only_in_the_last_cycle():
    rate = train.learning_rate_factor
    last, peak = train.RESTARTS[-1]
    for step in range(0, last, 100):
        assert rate(step, last + 100) == rate(step, train.STEPS)
    assert rate(train.FIRST_CYCLE - 1, train.STEPS) == train.FLOOR
    starts = [start for start, _ in train.RESTARTS]
    for (start, top), end in zip(train.RESTARTS, [*starts[1:], train.STEPS], strict=True):
        assert rate(start, train.STEPS) == top
        assert rate((start + end) // 2, train.STEPS) == pytest.approx(top / 2, rel=0.01)
        assert rate(end - 1, train.STEPS) == top * train.FLOOR
    assert peak <= train.RESTARTS[0][1]
