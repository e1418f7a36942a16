"""Answers taken apart by vLLM's parsers, whole and as they come. The parsers here need no special tokens of a model."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm")

from transformers import AutoTokenizer

from foveate import models
from foveate.core.errors import StartupError
from foveate.core.request import Sampling
from foveate.core.tool_use import ToolUse
from foveate.engines.port import EngineWork
from foveate.engines.vllm.config import VllmConfig
from foveate.engines.vllm.parsing import Parsers, Piece

DEMO = models.resolve_model(None)
TOKENIZER = AutoTokenizer.from_pretrained(DEMO.directory, local_files_only=True)
ENGINE: Any = SimpleNamespace(
    get_tokenizer=lambda: TOKENIZER, model_config=SimpleNamespace(hf_config=SimpleNamespace(model_type="qwen2_5_vl"))
)
THOUGHT = "Here is my thought process:\nA cat.\nHere is my response:\nIt is a cat."
CALL = 'Well.<tool_call>{"name": "look", "arguments": {"at": "it"}}</tool_call>'
LOOK = ToolUse([{"type": "function", "function": {"name": "look"}}], "auto")


def parsers(**named: str) -> Parsers:
    return Parsers(ENGINE, VllmConfig(DEMO.directory, "demo", "qwen2_5_vl", **named))


def work(*, whole: bool, use: ToolUse | None = None) -> EngineWork:
    return EngineWork("r", [1, 2], [], Sampling(9), 0.0, tool_use=use, chat=True, whole=whole)


def fed(text: str, found: Parsers, work_: EngineWork, *, choice: int = 0) -> Piece:
    """Feed a text token by token; return all that came of it."""
    parsing = found.open(work_)
    assert parsing is not None
    ids = TOKENIZER.encode(text, add_special_tokens=False)
    all_ = Piece()
    for place, token in enumerate(ids):
        piece = parsing.feed(choice, TOKENIZER.decode([token]), [token], finished=place == len(ids) - 1)
        all_.text += piece.text
        all_.reasoning += piece.reasoning
        all_.calls = [*all_.calls, *piece.calls]
    return all_


@pytest.mark.parametrize("whole", [True, False])
def test_reasoning_is_told_apart(whole: bool) -> None:
    piece = fed(THOUGHT, parsers(reasoning_parser="granite"), work(whole=whole))
    assert piece.text.strip() == "It is a cat."
    # This parser of vLLM's, token by token, lets the first word of a marker through.
    assert piece.reasoning.strip().removesuffix("Here").strip() == "A cat."


@pytest.mark.parametrize("whole", [True, False])
def test_calls_are_found_in_each_choice(whole: bool) -> None:
    for choice in (0, 1):
        piece = fed(CALL, parsers(tool_call_parser="hermes"), work(whole=whole, use=LOOK), choice=choice)
        assert piece.text == "Well."
        assert [call.name for call in piece.calls if call.name] == ["look"]
        assert "".join(call.arguments for call in piece.calls) == '{"at": "it"}'
        assert piece.calls[0].id


def test_a_text_is_itself_where_nothing_is_to_be_found() -> None:
    assert parsers().open(work(whole=True)) is None
    assert parsers(tool_call_parser="hermes").open(work(whole=True, use=ToolUse(LOOK.tools, "none"))) is None


def test_a_forced_call_needs_no_parser_for_the_model() -> None:
    parsing = parsers().open(work(whole=True, use=ToolUse(LOOK.tools, "named", "look")))
    assert parsing is not None
    assert parsing.outputs is not None
    assert parsing.forced
    piece = parsing.feed(0, '{"at": 1}', [3], finished=True)
    assert [(call.name, call.arguments) for call in piece.calls] == [("look", '{"at": 1}')]


def test_a_parser_that_does_not_suit_the_model_is_a_refusal_to_start() -> None:
    for named in (
        {"tool_call_parser": "no_such"},
        {"reasoning_parser": "no_such"},
        {"reasoning_parser": "deepseek_r1"},
    ):
        with pytest.raises(StartupError):
            parsers(**named)
