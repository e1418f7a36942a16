from __future__ import annotations

import msgspec
import pytest

from foveate.caches.keys import EncoderKey, ProcessorKey
from foveate.core.media import ImageOptions

DIGEST = "0123456789abcdef" * 4
OPTIONS = ImageOptions(pixels_max=1000, several=True)
ENCODER = EncoderKey(DIGEST, "processor-1", OPTIONS, "encoder-1")


@pytest.mark.parametrize(
    "change",
    [
        {"digest": "f" * 64},
        {"processor_version": "processor-2"},
        {"options": ImageOptions(pixels_max=1001, several=True)},
        {"options": ImageOptions(pixels_max=1000)},
        {"encoder_version": "encoder-2"},
        {"scope": "acme"},
    ],
)
def test_whatever_changes_the_result_changes_the_key(change: dict[str, object]) -> None:
    other = msgspec.structs.replace(ENCODER, **change)
    assert other != ENCODER
    assert other.name() != ENCODER.name()


def test_equal_contents_have_equal_keys_and_names() -> None:
    again = EncoderKey(DIGEST, "processor-1", ImageOptions(several=True, pixels_max=1000), "encoder-1")
    assert again == ENCODER
    assert hash(again) == hash(ENCODER)
    assert again.name() == ENCODER.name()
    assert len(ENCODER.name()) == 64


def test_an_encoder_key_knows_its_processor_key_and_they_share_no_name() -> None:
    key = ENCODER.processor_key
    assert key == ProcessorKey(DIGEST, "processor-1", OPTIONS)
    assert key.name() != ENCODER.name()


def test_a_scope_holds_for_the_inputs_as_for_the_embeddings() -> None:
    key = msgspec.structs.replace(ENCODER, scope="acme").processor_key
    assert key == ProcessorKey(DIGEST, "processor-1", OPTIONS, "acme")
    assert key.name() != ENCODER.processor_key.name()


def test_fields_cannot_run_into_each_other() -> None:
    one = EncoderKey(DIGEST, "ab", OPTIONS, "c")
    other = EncoderKey(DIGEST, "a", OPTIONS, "bc")
    assert one.name() != other.name()


def test_a_truncated_digest_or_a_missing_version_is_refused() -> None:
    with pytest.raises(ValueError, match="64 characters"):
        ProcessorKey(DIGEST[:16], "processor-1", OPTIONS)
    with pytest.raises(ValueError, match="every version"):
        ProcessorKey(DIGEST, "", OPTIONS)
    with pytest.raises(ValueError, match="every version"):
        EncoderKey(DIGEST, "processor-1", OPTIONS, "")
