"""Tokens to text as they come, never splitting a character.

A byte-level vocabulary (GPT-2, Qwen, Llama 3) maps every token to bytes, so an incremental UTF-8 decoder is exact and
costs nothing. Other vocabularies (SentencePiece with byte fallback) join tokens by rules of their own: there the
tokenizer decodes a short window with and without the new tokens, and the difference is the new text.

Special tokens give no text. Bytes that never become a character give U+FFFD, but only once it is certain (more text, or
the end).
"""

from __future__ import annotations

import codecs
from pathlib import Path
from typing import Any, Protocol

from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel

_REPLACEMENT = "�"

_PENDING_MAX = 8
"""A character is at most four byte-fallback tokens: a longer run that still ends in U+FFFD will never become one."""


class Detokenizer(Protocol):
    """The text of one choice."""

    def feed(self, token_id: int) -> str:
        """Return the text that is certain now and was not returned before; often empty."""
        ...

    def flush(self) -> str:
        """Return what is left at the end, incomplete characters as U+FFFD."""
        ...


def _byte_of_character() -> dict[str, int]:
    """GPT-2's table (``bytes_to_unicode`` in its encoder.py): printable bytes stand for themselves, the others for
    U+0100 and up."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + place): byte for place, byte in enumerate(others)}


_BYTES = _byte_of_character()


class Vocabulary:
    """What a tokenizer knows of single tokens. Shared by all choices; one thread at a time."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._byte_level = isinstance(tokenizer.decoder, ByteLevel)
        self._special = {number for number, token in tokenizer.get_added_tokens_decoder().items() if token.special}
        self._known: dict[int, bytes] = {}

    @classmethod
    def load(cls, directory: Path) -> Vocabulary:
        """Read the tokenizer of a model directory."""
        path = directory / "tokenizer.json"
        if path.exists():
            return cls(Tokenizer.from_file(str(path)))
        from transformers import AutoTokenizer  # only a directory without tokenizer.json needs the slow conversion

        return cls(AutoTokenizer.from_pretrained(directory, local_files_only=True).backend_tokenizer)

    def detokenizer(self) -> Detokenizer:
        """Return a fresh detokenizer for one choice."""
        return _ByteDetokenizer(self) if self._byte_level else _WindowDetokenizer(self._tokenizer)

    def is_special(self, token_id: int) -> bool:
        """Tell whether the token gives no text."""
        return token_id in self._special

    def token_bytes(self, token_id: int) -> bytes:
        """Return the token's own bytes, possibly part of a character; empty for an id outside the vocabulary."""
        known = self._known.get(token_id)
        if known is None:
            known = self._known[token_id] = self._spell(self._tokenizer.id_to_token(token_id))
        return known

    def token_text(self, token_id: int) -> str:
        """Return the token's own text, parts of characters as U+FFFD."""
        return self.token_bytes(token_id).decode("utf-8", errors="replace")

    def _spell(self, token: str | None) -> bytes:
        if token is None:
            return b""
        if self._byte_level:
            mapped = [_BYTES.get(character) for character in token]
            # An added token may hold characters outside the table; the tokenizer's decoder takes it as plain text then.
            return token.encode() if None in mapped else bytes(byte for byte in mapped if byte is not None)
        if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
            return bytes([int(token[3:5], 16)])
        return token.replace("▁", " ").encode()


class _ByteDetokenizer:
    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._utf8: Any = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def feed(self, token_id: int) -> str:
        if self._vocabulary.is_special(token_id):
            return ""
        text: str = self._utf8.decode(self._vocabulary.token_bytes(token_id))
        return text

    def flush(self) -> str:
        text: str = self._utf8.decode(b"", final=True)
        return text


class _WindowDetokenizer:
    """The two-offset method of text-generation-inference and vLLM: ``_window`` starts with tokens whose text is sent
    already."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._window: list[int] = []
        self._sent = 0

    def feed(self, token_id: int) -> str:
        self._window.append(token_id)
        return self._advance(final=len(self._window) - self._sent > _PENDING_MAX)

    def flush(self) -> str:
        return self._advance(final=True)

    def _advance(self, *, final: bool) -> str:
        before: str = self._tokenizer.decode(self._window[: self._sent], skip_special_tokens=True)
        after: str = self._tokenizer.decode(self._window, skip_special_tokens=True)
        if len(after) <= len(before) or (after.endswith(_REPLACEMENT) and not final):
            return ""
        self._window, self._sent = self._window[self._sent :], len(self._window) - self._sent
        return after[len(before) :]
