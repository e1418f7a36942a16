"""Text to token ids, with control tokens that a user spelt kept as ordinary text.

A *control token* is a token that steers the model: every special token, every token the processor names (``<image>``,
``<row_1_col_1>``) and every other added token that the chat template's source contains (``<tool_call>``), whitespace
excepted; the rule is that of transformers' ``PreTrainedTokenizerBase._get_control_tokens``. Other added tokens (Gemma's
``<b>``) are vocabulary like any other.

Only the Rust tokenizer is used, on private copies that nobody reconfigures: transformers' Python wrapper changes
truncation and padding on each call, which fails with "Already borrowed" when two threads meet. Does not cover
detokenisation.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

from foveate.core.errors import PromptInvalid, StartupError

_SHORT_CHARACTERS = 2048
_ANCHOR = "\n"


class ControlTokens:
    """Finds the control tokens in a text."""

    def __init__(self, spellings: Iterable[str]) -> None:
        longest_first = sorted(set(spellings), key=lambda spelling: (-len(spelling), spelling))
        self._pattern = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")
        self._reach = max((len(spelling) - 1 for spelling in longest_first), default=0)

    def found(self, text: str) -> bool:
        """Tell whether ``text`` spells a control token."""
        return self._pattern.search(text) is not None

    def split(self, text: str) -> list[str]:
        """Return ``text`` in pieces: even ones are free of control tokens, odd ones are control tokens."""
        pieces: list[str] = []
        end = 0
        for match in self._pattern.finditer(text):
            pieces += (text[end : match.start()], match.group())
            end = match.end()
        pieces.append(text[end:])
        return pieces

    def end_of(self, text: str) -> str:
        """Return as much of the end of ``text`` as a token that begins in it and ends behind it may have."""
        return text[max(len(text) - self._reach, 0) :]

    def spans(self, before: str, after: str) -> bool:
        """Tell whether a control token begins in ``before`` and ends in ``after``, which follows it.

        Looks at no more of each than the longest token has, however long the texts are.
        """
        before = self.end_of(before)
        around, place = before + after[: self._reach], len(before)
        for start in range(place):
            match = self._pattern.match(around, start)
            if match is not None and match.end() > place:
                return True
        return False


def control_tokens(processor: Any, template: str) -> ControlTokens:
    """Collect the control tokens of a checkpoint (see the module) for a chat template's source."""
    named = {
        value for name, value in vars(processor).items() if name.endswith(("_token", "_tag")) and isinstance(value, str)
    }
    spellings = {
        token.content
        for token in processor.tokenizer.added_tokens_decoder.values()
        if token.special or (not token.content.isspace() and (token.content in template or token.content in named))
    }
    return ControlTokens(spelling for spelling in spellings | named if spelling)


class Tokenization:
    """Token ids of texts whose user-written control tokens are set apart. Thread-safe.

    ``picture_id`` is the special token that stands for one embedding row; a picture has up to thousands of it in a run.
    """

    def __init__(self, tokenizer: Any, picture_id: int) -> None:
        from tokenizers import Tokenizer

        if not getattr(tokenizer, "is_fast", False):
            raise StartupError("The model has no tokenizer.json; convert its tokenizer to the fast format first.")
        source = tokenizer.backend_tokenizer.to_str()
        self._full = Tokenizer.from_str(source)
        self._full.no_truncation()
        self._full.no_padding()
        self._full.encode_special_tokens = False
        bare = json.loads(source)
        self._added = frozenset(int(token["id"]) for token in bare["added_tokens"])
        bare.update(added_tokens=[], post_processor=None, truncation=None, padding=None)
        self._bare = Tokenizer.from_str(json.dumps(bare))
        self._picture_id = picture_id
        self._picture: str = tokenizer.convert_ids_to_tokens(picture_id)
        self._runs = re.compile(f"(?:{re.escape(self._picture)})+")
        self._bos: str = tokenizer.bos_token or ""
        self._before, self._after = self._surroundings()
        self._characters_a_token = _characters_a_token(bare)

    def _surroundings(self) -> tuple[list[int], list[int]]:
        """Return the ids that the tokenizer itself puts before and after a text (often one that begins a sequence)."""
        inside = self._full.encode("a", add_special_tokens=False).ids
        whole = self._full.encode("a", add_special_tokens=True).ids
        for start in range(len(whole) - len(inside) + 1):
            if whole[start : start + len(inside)] == inside:
                return whole[:start], whole[start + len(inside) :]
        raise StartupError("The model's tokenizer rewrites the text it adds special tokens to; it cannot be served.")

    def least(self, segments: Sequence[str]) -> int:
        """Return a number of tokens that the text has at least, from its length alone; 0 when nothing can be said."""
        if self._characters_a_token is None:
            return 0
        return sum(map(len, segments)) // self._characters_a_token

    def ids(self, segments: Sequence[str]) -> list[int]:
        """Return the ids of alternating segments (see :class:`foveate.models.port.RenderedPrompt`).

        Raises PromptInvalid when a picture token is not one in the tokenizer's eyes. With one segment this is what
        transformers returns for the text: its tokenizer adds special tokens unless the text begins with the
        beginning-of-sequence token (the rule of ``ProcessorMixin.apply_chat_template``).
        """
        surround = not (self._bos and segments[0].startswith(self._bos))
        found: list[int] = list(self._before) if surround else []
        for index, segment in enumerate(segments):
            if not segment:
                continue
            if index % 2:
                found += self._ordinary(segment)
            elif index == 0:
                found += self._template(segment, inside=False)
            else:
                found += self._template(segment, inside=True)
        return found + self._after if surround else found

    def _template(self, segment: str, *, inside: bool) -> list[int]:
        """Encode template text. Each run of picture tokens goes through the tokenizer as one: 16,000 take it 80 ms."""
        runs = [len(run.group()) // len(self._picture) for run in self._runs.finditer(segment)]
        short = self._runs.sub(lambda run: self._picture, segment)
        found = self._inside(self._full, short) if inside else _ids(self._full, short)
        if found.count(self._picture_id) != len(runs):
            raise PromptInvalid(
                param="messages", detail=f"{found.count(self._picture_id)} picture tokens, {len(runs)} runs"
            )
        waiting = iter(runs)
        expanded: list[int] = []
        for token in found:
            expanded += [token] * next(waiting) if token == self._picture_id else [token]
        return expanded

    def _inside(self, tokenizer: Any, text: str) -> list[int]:
        """Encode ``text`` as the continuation of another, without the space some tokenizers put at a beginning."""
        anchor = _ids(tokenizer, _ANCHOR)
        anchored = _ids(tokenizer, _ANCHOR + text)
        if anchored[: len(anchor)] == anchor:
            return anchored[len(anchor) :]
        return _ids(tokenizer, text)

    def _ordinary(self, spelling: str) -> list[int]:
        found = self._inside(self._bare, spelling)
        if self._added.isdisjoint(found):
            return found
        # The vocabulary itself holds the spelling as one piece: no single character of it can.
        return [token for character in spelling for token in self._inside(self._bare, character)]


def _ids(tokenizer: Any, text: str) -> list[int]:
    if len(text) <= _SHORT_CHARACTERS:
        short: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
        return short
    # Only the batch call lets other threads run meanwhile: the plain one holds the interpreter for seconds on a megabyte.
    long: list[int] = tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids
    return long


def _characters_a_token(source: dict[str, Any]) -> int | None:
    """Return how many characters of text one token covers at most, or ``None`` when the text is rewritten first.

    A vocabulary entry has at least one character for each of the text's that it covers (byte-level vocabularies have one for each
    byte). Canonical composition (NFC) makes at most three characters one (Unicode Standard Annex 15, section 9.1 on growth).
    """
    composed = source.get("normalizer")
    if composed is not None and composed.get("type") != "NFC":
        return None
    model = source["model"]
    vocabulary = model.get("vocab", ())
    spellings = vocabulary if isinstance(vocabulary, dict) else (entry[0] for entry in vocabulary)
    longest = max(map(len, spellings), default=0)
    return longest * (3 if composed else 1) or None
