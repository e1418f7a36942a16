"""What this server does with every parameter of the OpenAI and vLLM request bodies that its schema does not declare.

A parameter that could change the answer and is not supported is refused by name, never ignored. One that cannot change
it is accepted: these tables are the whole list, and the OpenAPI document is written from them. ``null`` is accepted
everywhere, as OpenAI's clients send it for "not set". A name that is in no table is refused too, with the nearest known
name.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from foveate.core.errors import FoveateError, InvalidParameter, InvalidPart, UnsupportedParameter

_NAME_CHARACTERS_MAX: Final = 64

Accepts = Callable[[Any], bool]


def _never(_value: Any) -> bool:
    return False


def _always(_value: Any) -> bool:
    return True


def _empty(value: Any) -> bool:
    return isinstance(value, list | dict) and not value


def _only(*values: Any) -> Accepts:
    """Accept exactly these values; ``1`` and ``True`` are different values, ``1`` and ``1.0`` are not."""

    def accepts(value: Any) -> bool:
        return any(value == allowed and isinstance(value, bool) == isinstance(allowed, bool) for allowed in values)

    accepts.__doc__ = ", ".join(f"`{value!r}`" for value in values)
    return accepts


BODY: Final[Mapping[str, Accepts]] = {
    # Accounting, tracing and cache hints: they never change the answer.
    "user": _always,
    "safety_identifier": _always,
    "metadata": _always,
    "prompt_cache_key": _always,
    "prompt_cache_retention": _always,
    # Values that ask for what happens anyway.
    "store": _only(False),
    "service_tier": _only("auto", "default"),
    "modalities": _only(["text"]),
    "functions": _empty,
    "function_call": _only("none"),
    "reasoning_effort": _only("none"),
    "include_reasoning": _only(True),
    "verbosity": _only("medium"),
    "best_of": _only(1),
    "echo": _only(False),
    "suffix": _only(""),
    "use_beam_search": _only(False),
    "length_penalty": _only(1),
    "early_stopping": _only(False),
    "add_generation_prompt": _only(True),
    "continue_final_message": _only(False),
    "chat_template_kwargs": _empty,
    "mm_processor_kwargs": _empty,
    "media_io_kwargs": _empty,
    "return_tokens_as_token_ids": _only(False),
    "return_token_ids": _only(False),
    "priority": _only(0),
    # Refused whatever their value.
    "add_special_tokens": _never,
    "audio": _never,
    "cache_salt": _never,
    "chat_template": _never,
    "documents": _never,
    "ec_transfer_params": _never,
    "guided_choice": _never,
    "guided_decoding_backend": _never,
    "guided_grammar": _never,
    "guided_json": _never,
    "guided_regex": _never,
    "guided_whitespace_pattern": _never,
    "kv_transfer_params": _never,
    "logits_processors": _never,
    "moderation": _never,
    "prediction": _never,
    "prompt_embeds": _never,
    "request_id": _never,
    "structural_tag": _never,
    "thinking": _never,
    "vllm_xargs": _never,
    "web_search_options": _never,
}
"""Top-level parameters."""

STREAM_OPTIONS: Final[Mapping[str, Accepts]] = {
    "include_obfuscation": _only(False),
}

MESSAGE: Final[Mapping[str, Accepts]] = {
    "cache_control": _always,
    "annotations": _empty,
    "name": _never,
    "refusal": _never,
    "audio": _never,
    "function_call": _never,
    "reasoning": _never,
    "reasoning_content": _never,
}
"""Fields of a message beside ``role`` and ``content``."""

PART: Final[Mapping[str, Accepts]] = {"cache_control": _always}
"""Fields of a content part beside its own."""

IMAGE_URL: Final[Mapping[str, Accepts]] = {}
"""Fields of an ``image_url`` object beside its own."""

VIDEO_URL: Final[Mapping[str, Accepts]] = {}
"""Fields of a ``video_url`` object beside its own."""

# The bytes tell the format.
INPUT_VIDEO: Final[Mapping[str, Accepts]] = {"format": _always}
"""Fields of an ``input_video`` object beside its own."""

MEDIA_IO: Final[Mapping[str, Accepts]] = {"image": _empty, "audio": _empty}
"""Fields of ``media_io_kwargs`` beside ``video``."""


PROCESSOR: Final[Mapping[str, Accepts]] = {
    "crop_to_patches": _never,
    "do_image_splitting": _never,
    "do_normalize": _never,
    "do_pan_and_scan": _never,
    "do_rescale": _never,
    "do_resize": _never,
    "fps": _never,
    "max_dynamic_patch": _never,
    "max_image_size": _never,
    "max_patches": _never,
    "min_dynamic_patch": _never,
    "min_patches": _never,
    "num_crops": _never,
    "num_frames": _never,
    "truncation": _never,
    "use_audio_in_video": _never,
}
"""Fields of ``mm_processor_kwargs`` beside those that are allowed."""


def check_extras(
    extras: Mapping[str, Any] | None, table: Mapping[str, Accepts], *, own: Iterable[str], at: str = ""
) -> None:
    """Refuse the first of ``extras`` that ``table`` does not accept.

    ``own`` are the names that the schema declares (for the hint), ``at`` is the path of the object they stand in, with
    its final dot. Raises UnsupportedParameter for a known name and InvalidParameter (InvalidPart inside a content part)
    for an unknown one.
    """
    for name, value in (extras or {}).items():
        param = at + name[:_NAME_CHARACTERS_MAX]
        accepts = table.get(name)
        if accepts is None:
            raise _unknown(name, param, [*own, *table])
        if value is not None and not accepts(value):
            raise UnsupportedParameter(f"{param} is not supported by this server with this value.", param=param)


def _unknown(name: str, param: str, known: list[str]) -> FoveateError:
    nearest = difflib.get_close_matches(name[:_NAME_CHARACTERS_MAX], known, n=1, cutoff=0.6)
    hint = f" Did you mean {nearest[0]}?" if nearest else ""
    refusal = InvalidPart if ".content[" in param else InvalidParameter
    return refusal(f"{param} is not a parameter of this API.{hint}", param=param)


def accepted_without_effect() -> list[str]:
    """Return one line of documentation for each top-level parameter that is accepted and changes nothing."""
    lines = []
    for name, accepts in sorted(BODY.items()):
        if accepts is _always:
            lines.append(f"`{name}`: any value")
        elif accepts is _empty:
            lines.append(f"`{name}`: only empty")
        elif accepts is not _never:
            lines.append(f"`{name}`: only {accepts.__doc__}")
    return lines


def refused() -> list[str]:
    """Return the top-level parameters that are refused whatever their value."""
    return sorted(name for name, accepts in BODY.items() if accepts is _never)
