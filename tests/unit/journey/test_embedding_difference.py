"""What two embeddings of one picture are compared by."""

import numpy as np
import pytest

from foveate.journey.embedding_difference import ROWS_AT_ONCE, difference, is_finite

rng = np.random.default_rng(7)


def rows(count: int = 10, width: int = 8) -> np.ndarray:
    return rng.normal(size=(count, width)).astype(np.float32)


def test_equal_embeddings_do_not_differ() -> None:
    tensor = rows(3 * ROWS_AT_ONCE + 5)
    found = difference({"rows": tensor}, {"rows": tensor.copy()})
    assert (found.finite, found.same_shape) == (True, True)
    assert found.cosine == pytest.approx(1.0)
    assert found.norm_ratio == pytest.approx(1.0)


def test_direction_and_length_are_told_apart() -> None:
    tensor = rows()
    found = difference({"rows": tensor}, {"rows": tensor * 3})
    assert found.cosine == pytest.approx(1.0)
    assert found.norm_ratio == pytest.approx(3.0)
    assert difference({"rows": tensor}, {"rows": -tensor}).cosine == pytest.approx(-1.0)


def test_rows_count_alike_and_levels_with_them() -> None:
    one, other = np.array([[1.0, 0], [0, 1.0]], np.float32), np.array([[1.0, 0], [1.0, 0]], np.float32)
    assert difference({"rows": one}, {"rows": other}).cosine == pytest.approx(0.5)
    assert difference({"rows": one, "deep0": one}, {"rows": one, "deep0": other}).cosine == pytest.approx(0.75)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_one_value_that_is_not_finite_is_found(bad: float) -> None:
    tensor = rows(2 * ROWS_AT_ONCE)
    broken = tensor.copy()
    broken[-1, -1] = bad
    assert not difference({"rows": tensor}, {"rows": broken}).finite
    assert not is_finite({"rows": broken})
    turned = difference({"rows": broken}, {"rows": tensor})
    assert turned.finite  # the old one's fault is not the new one's
    assert turned.cosine is None


@pytest.mark.parametrize("other", [{"rows": rows(9)}, {"rows": rows(10, 7)}, {"rows": rows(), "deep0": rows()}, {}])
def test_other_shapes_are_not_compared(other: dict[str, np.ndarray]) -> None:
    found = difference({"rows": rows()}, other)
    assert (found.finite, found.same_shape, found.cosine, found.norm_ratio) == (True, False, None, None)


def test_rows_of_nothing_equal_each_other_only() -> None:
    nothing, something = np.zeros((1, 4), np.float32), np.ones((1, 4), np.float32)
    assert difference({"rows": nothing}, {"rows": nothing}).cosine == 1.0
    assert difference({"rows": nothing}, {"rows": something}).cosine == 0.0


def test_bfloat16_is_read_as_what_it_is() -> None:
    tensor = rows()
    carried = (tensor.view(np.uint32) >> 16).astype(np.uint16)
    found = difference({"rows": tensor}, {"rows": carried})
    assert found.cosine == pytest.approx(1.0, abs=1e-3)
    assert found.norm_ratio == pytest.approx(1.0, abs=1e-2)
    assert not is_finite({"rows": np.full((1, 2), 0x7F80, np.uint16)})  # +Inf
