from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from foveate.core.memory import Slot, TensorBundle, TensorRef
from foveate.runtime.tensors import SlotTooSmall, bundle_size, read_bundle, write_bundle

DTYPES = st.sampled_from(["float32", "float16", "int64", "int32", "uint8", "bool"])
ANY_ARRAY = DTYPES.flatmap(
    lambda dtype: arrays.arrays(dtype, arrays.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5))
)


@settings(max_examples=40, deadline=None)
@given(st.dictionaries(st.text(min_size=1, max_size=5), ANY_ARRAY, max_size=5))
def test_what_is_written_is_read_after_a_trip_through_a_message(given_arrays: dict[str, np.ndarray]) -> None:
    size = bundle_size(given_arrays)
    view = memoryview(bytearray(b"\xaa" * (size + 8)))
    bundle = write_bundle(view[:size], Slot(0, size), given_arrays)
    assert bundle.used == size
    assert bytes(view[size:]) == b"\xaa" * 8, "wrote beyond its slot"
    assert all(ref.offset % 64 == 0 for ref in bundle.tensors)
    bundle = msgspec.msgpack.decode(msgspec.msgpack.encode(bundle), type=TensorBundle)
    read = read_bundle(view[:size], bundle)
    assert list(read) == list(given_arrays)
    for name, array in given_arrays.items():
        assert read[name].dtype == array.dtype
        assert read[name].shape == array.shape
        assert read[name].tobytes() == array.tobytes()


def test_reading_makes_no_copy() -> None:
    view = memoryview(bytearray(64))
    bundle = write_bundle(view, Slot(0, 64), {"a": np.zeros(4, np.int64)})
    read_bundle(view, bundle)["a"][2] = 7
    assert np.frombuffer(view, np.int64)[2] == 7


def test_strided_arrays_are_written_in_their_own_order() -> None:
    array = np.arange(24).reshape(4, 6)[::-1, ::2].T
    view = memoryview(bytearray(bundle_size({"a": array})))
    read = read_bundle(view, write_bundle(view, Slot(0, len(view)), {"a": array}))
    np.testing.assert_array_equal(read["a"], array)


def test_bfloat16_travels_under_its_name() -> None:
    bits = np.array([[0x3F80, 0x4000]], np.uint16)  # 1.0 and 2.0
    view = memoryview(bytearray(64))
    bundle = write_bundle(view, Slot(0, 64), {"rows": bits}, {"rows": "bfloat16"})
    assert bundle.tensors == (TensorRef("rows", "bfloat16", (1, 2), 0),)
    np.testing.assert_array_equal(read_bundle(view, bundle)["rows"], bits)
    with pytest.raises(ValueError, match="cannot carry bfloat16"):
        write_bundle(view, Slot(0, 64), {"rows": bits.astype(np.float32)}, {"rows": "bfloat16"})


def test_too_small_a_slot_is_left_untouched() -> None:
    view = memoryview(bytearray(127))
    arrays_ = {"a": np.ones(1, np.uint8), "b": np.ones(8, np.int64)}
    with pytest.raises(SlotTooSmall) as caught:
        write_bundle(view, Slot(0, 127), arrays_)
    assert (caught.value.bytes_needed, caught.value.bytes_available) == (128, 127)
    assert not any(view)


def test_a_tensor_beyond_its_slot_is_not_read() -> None:
    bundle = TensorBundle(Slot(0, 64), (TensorRef("a", "int64", (9,), 0),), 72)
    with pytest.raises(ValueError, match="buffer is smaller"):
        read_bundle(memoryview(bytearray(64)), bundle)
