"""Streaming detokenisation equals the tokenizer's own decoding, for byte-level and byte-fallback vocabularies."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from foveate.engines.embedded.detokenize import Vocabulary
from foveate.models.files import DEMO_DIRECTORY

TEXT = "Grüße, 世界! naïve café 🙂👩‍🚀 and 'quoted' text\n\tend"


@pytest.fixture(scope="module")
def byte_level() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=290,
        special_tokens=["<end>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([TEXT], trainer)
    tokenizer.add_tokens([AddedToken("<tool call>", special=False)])
    return tokenizer


@pytest.fixture(scope="module")
def byte_fallback() -> Tokenizer:
    """A SentencePiece-like vocabulary: words, and every byte as ``<0xNN>`` (as Llama 2, Gemma)."""
    pieces = ["<unk>", "<end>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "▁Hello", "▁world", "s", "▁the", ","]
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(["<end>"])
    return tokenizer


def stream(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    detokenizer = Vocabulary(tokenizer).detokenizer()
    return [*(detokenizer.feed(token) for token in ids), detokenizer.flush()]


def test_text_of_many_bytes_a_character(byte_level: Tokenizer) -> None:
    ids = byte_level.encode(TEXT).ids
    pieces = stream(byte_level, ids)
    assert "".join(pieces) == TEXT
    assert all("�" not in piece for piece in pieces)
    assert "" in pieces[:-1], "a character of several tokens comes with its last"


@pytest.mark.parametrize("seed", range(20))
def test_any_bytes_equal_the_tokenizers_decoding(byte_level: Tokenizer, seed: int) -> None:
    chance = random.Random(seed)
    ids = [chance.randrange(byte_level.get_vocab_size()) for _ in range(60)]
    assert "".join(stream(byte_level, ids)) == byte_level.decode(ids, skip_special_tokens=True)


def test_an_incomplete_character_is_replaced_only_at_the_end(byte_level: Tokenizer) -> None:
    ids = [byte_level.token_to_id(token) for token in ("Ã", "ð", "Ł")]  # 0xC3, then 0xF0 0x9F: two begun characters
    assert stream(byte_level, ids) == ["", "�", "", "�"]


def test_special_tokens_give_no_text_and_added_ones_do(byte_level: Tokenizer) -> None:
    end, added = byte_level.token_to_id("<end>"), byte_level.token_to_id("<tool call>")
    assert stream(byte_level, [end, added, end]) == ["", "<tool call>", "", ""]
    assert stream(byte_level, [10**6]) == ["", ""], "an id outside the vocabulary"


def test_byte_fallback_words_and_characters(byte_fallback: Tokenizer) -> None:
    names = ["▁Hello", ",", "▁world", "s", "▁", *(f"<0x{byte:02X}>" for byte in "🙂".encode()), "▁the"]
    ids = [byte_fallback.token_to_id(name) for name in names]
    pieces = stream(byte_fallback, ids)
    assert "".join(pieces) == byte_fallback.decode(ids) == "Hello, worlds 🙂 the"
    assert pieces[5:9] == ["", "", "", "🙂"]


@pytest.mark.parametrize("seed", range(20))
def test_byte_fallback_of_any_bytes_ends_and_stays_bounded(byte_fallback: Tokenizer, seed: int) -> None:
    chance = random.Random(seed)
    words = [byte_fallback.token_to_id(name) for name in ("▁Hello", "▁the", "s")]
    ids = [chance.randrange(2, 258) if chance.random() < 0.8 else chance.choice(words) for _ in range(80)]
    pieces = stream(byte_fallback, ids)
    # The tokenizer gives up a whole run of bytes when one of them is wrong. A stream cannot take that back: it may say
    # more, never less.
    spoken = iter("".join(pieces))
    assert all(character in spoken for character in byte_fallback.decode(ids).replace("�", ""))
    silent = max(len(run) for run in "".join("." if piece == "" else " " for piece in pieces).split(" "))
    assert silent <= 12


def test_special_tokens_of_byte_fallback(byte_fallback: Tokenizer) -> None:
    end = byte_fallback.token_to_id("<end>")
    ids = [byte_fallback.token_to_id("▁Hello"), end, byte_fallback.token_to_id("▁the"), end]
    assert "".join(stream(byte_fallback, ids)) == "Hello the"


def test_token_bytes(byte_level: Tokenizer, byte_fallback: Tokenizer) -> None:
    vocabulary = Vocabulary(byte_level)
    assert vocabulary.token_bytes(byte_level.token_to_id("Ã")) == b"\xc3"
    assert vocabulary.token_text(byte_level.token_to_id("Ã")) == "�"
    assert vocabulary.token_bytes(10**6) == b""
    fallback = Vocabulary(byte_fallback)
    assert fallback.token_bytes(byte_fallback.token_to_id("<0xF0>")) == b"\xf0"
    assert fallback.token_text(byte_fallback.token_to_id("▁the")) == " the"


def test_load_reads_a_model_directory(tmp_path: Path) -> None:
    vocabulary = Vocabulary.load(DEMO_DIRECTORY)
    assert vocabulary.is_special(2)
    assert not vocabulary.is_special(100)
