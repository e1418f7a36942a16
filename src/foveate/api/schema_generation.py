"""What both kinds of request have in common: the model, the stream, and how tokens are drawn.

The bounds of lists are below what vLLM's workers have room for (its GPU model runner 0.32: 1024 biases, 1024 allowed ids, 128 stop ids,
128 bad words of 1024 tokens together), as one more raises in a worker and ends the engine.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Discriminator, Field, Tag

from foveate.api.schema_base import Open, Whole, string_or_list
from foveate.api.schema_structured import ResponseFormat, StructuredOutputs

STOP_MAX: Final = 16
STOP_CHARACTERS_MAX: Final = 1024
CHOICES_MAX: Final = 8
TOKENS_MAX: Final = 2**31 - 1
SEED_MIN: Final = -(2**63)
SEED_MAX: Final = 2**63 - 1
STOP_IDS_MAX: Final = 64
"""Half of vLLM's, which counts the model's own end tokens too."""
BIASES_MAX: Final = 1024
ALLOWED_IDS_MAX: Final = 1024
SCORED_IDS_MAX: Final = 128
BAD_WORDS_MAX: Final = 64
BAD_WORDS_BYTES_MAX: Final = 448
"""Of UTF-8, together. A token has a byte at least, and vLLM bars each word twice, alone and after a space: 2 x (448 + 64) tokens."""
ALTERNATIVES_MAX: Final = 20
PATTERN_TOKENS_MAX: Final = 256


TokenId = Annotated[Whole, Field(ge=0, le=TOKENS_MAX)]


class StreamOptions(Open):
    """What a stream carries beside the tokens."""

    include_usage: bool | None = Field(None, description="Send one last chunk with empty `choices` and the `usage`.")
    continuous_usage_stats: bool | None = Field(
        None, description="With `include_usage`: also tell in every chunk the `usage` so far, as vLLM does."
    )


Stop = Annotated[
    Annotated[str, Field(min_length=1, max_length=STOP_CHARACTERS_MAX), Tag("$string")]
    | Annotated[
        list[Annotated[str, Field(min_length=1, max_length=STOP_CHARACTERS_MAX)]],
        Field(fail_fast=True, max_length=STOP_MAX),
        Tag("$list"),
    ],
    Discriminator(
        string_or_list, custom_error_type="shape", custom_error_message="should be a string or a list of strings"
    ),
]


class Repetition(Open):
    """When an answer repeats itself so much that it should end (vLLM's)."""

    max_pattern_size: Whole = Field(
        0, ge=0, le=PATTERN_TOKENS_MAX, description="Tokens of the longest pattern; 0: off."
    )
    min_pattern_size: Whole = Field(0, ge=0, le=PATTERN_TOKENS_MAX)
    min_count: Whole = Field(0, ge=0, le=TOKENS_MAX, description="So many times in a row, 2 or more.")


class Generation(Open):
    """What both kinds of request have in common: the model, the stream, and how tokens are drawn."""

    model: str | None = Field(None, description="One of `/v1/models`; the server's first model if absent.")
    stream: bool | None = Field(None, description="Answer as server-sent events.")
    stream_options: StreamOptions | None = None
    max_tokens: Whole | None = Field(None, ge=1, le=TOKENS_MAX)
    temperature: float | None = Field(None, ge=0, le=2, allow_inf_nan=False, description="0 is greedy. Default 1.")
    top_p: float | None = Field(None, gt=0, le=1, allow_inf_nan=False)
    top_k: Whole | None = Field(None, ge=-1, le=TOKENS_MAX, description="-1 and 0: off.")
    min_p: float | None = Field(None, ge=0, le=1, allow_inf_nan=False)
    seed: Whole | None = Field(None, ge=SEED_MIN, le=SEED_MAX)
    stop: Stop | None = None
    n: Whole | None = Field(None, ge=1, le=CHOICES_MAX)
    presence_penalty: float | None = Field(None, ge=-2, le=2, allow_inf_nan=False)
    frequency_penalty: float | None = Field(None, ge=-2, le=2, allow_inf_nan=False)
    min_tokens: Whole | None = Field(None, ge=0, le=TOKENS_MAX)
    ignore_eos: bool | None = None
    repetition_penalty: float | None = Field(None, ge=0.01, le=100, allow_inf_nan=False, description="1: off.")
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100, allow_inf_nan=False)]] | None = Field(
        None, max_length=BIASES_MAX, description="Token ids, as text, and what is added to their logits."
    )
    stop_token_ids: list[TokenId] | None = Field(None, max_length=STOP_IDS_MAX)
    bad_words: list[Annotated[str, Field(min_length=1)]] | None = Field(
        None, max_length=BAD_WORDS_MAX, description=f"Never written. At most {BAD_WORDS_BYTES_MAX} bytes together."
    )
    allowed_token_ids: list[TokenId] | None = Field(None, min_length=1, max_length=ALLOWED_IDS_MAX)
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = Field(None, description="Default true.")
    spaces_between_special_tokens: bool | None = Field(None, description="Default true.")
    prompt_logprobs: Whole | None = Field(
        None, ge=0, le=ALTERNATIVES_MAX, description="Not in a stream. The answer has `prompt_logprobs`, as vLLM's."
    )
    logprob_token_ids: list[TokenId] | None = Field(
        None, max_length=SCORED_IDS_MAX, description="Reported in place of the likeliest tokens. Needs `logprobs`."
    )
    thinking_token_budget: Whole | None = Field(None, ge=-1, le=TOKENS_MAX, description="-1: off.")
    repetition_detection: Repetition | None = None
    stream_interval: Whole | None = Field(
        None, ge=1, le=1024, description="Tokens in each chunk of a stream, at least."
    )
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    truncate_prompt_tokens: Whole | None = Field(
        None,
        ge=-1,
        le=TOKENS_MAX,
        description="Keep so many tokens of a prompt without media; -1: as many as there is room for.",
    )
    truncation_side: Literal["left", "right"] | None = Field(
        None, description="Where tokens are dropped; default left."
    )
