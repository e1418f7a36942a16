"""What an answer's text is made of: reasoning, content and calls of tools, found by vLLM's own parsers.

As in vLLM's server, a request whose answer is streamed is parsed as it comes, and any other at its end, by another function of the parser.
A call that is forced (``required``, or by name) needs no parser for the model: it is held to the tools' schemas, so that it is JSON.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.parser import ParserManager
from vllm.parser.abstract_parser import DelegatingParser, Parser
from vllm.renderers.chat_utils import make_tool_call_id
from vllm.sampling_params import StructuredOutputsParams
from vllm.tool_parsers.abstract_tool_parser import ToolParser
from vllm.v1.engine.async_llm import AsyncLLM

from foveate.core.errors import InvalidParameter, StartupError
from foveate.core.tool_use import ToolCallDelta
from foveate.engines.port import EngineWork
from foveate.engines.vllm.config import VllmConfig
from foveate.engines.vllm.sampling import outputs_params


class Piece(msgspec.Struct):
    """New output of a choice, by what it is."""

    text: str = ""
    reasoning: str = ""
    calls: list[ToolCallDelta] = []


class _Forced(DelegatingParser):  # type: ignore[misc]
    """For models whose calls nothing here can read: those that are held to a schema."""

    tool_parser_cls = ToolParser


class Parsers:
    """The parsers of one model."""

    def __init__(self, engine: AsyncLLM, config: VllmConfig) -> None:
        """Raises StartupError for a parser that vLLM does not have or that does not suit the model."""
        self._tokenizer = engine.get_tokenizer()
        self._model_config = engine.model_config
        self._reasoning = bool(config.reasoning_parser)
        try:
            found = ParserManager.get_parser(
                tool_parser_name=config.tool_call_parser or None,
                reasoning_parser_name=config.reasoning_parser or None,
                enable_auto_tools=bool(config.tool_call_parser),
                model_name=config.model,
                tokenizer=self._tokenizer,
            )
        except (TypeError, ValueError, KeyError) as error:
            raise StartupError(f"vLLM cannot parse this model's answers so: {error}", detail=repr(error)) from error
        if found is None:
            found = _Forced
        elif found.tool_parser_cls is None:
            found = type("ForcedParser", (found,), {"tool_parser_cls": ToolParser})
        self._kind: type[Parser] = found

    def open(self, work: EngineWork) -> Parsing | None:
        """Return what parses a request's answer; None where its text is its content. Raises InvalidParameter."""
        calling = work.tool_use is not None and work.tool_use.choice != "none"
        if not calling and not (self._reasoning and work.chat):
            return None
        try:
            return Parsing(self._new, work)
        except (ValueError, KeyError, TypeError) as error:
            raise InvalidParameter(
                "The tools cannot be used together with the other parameters.", param="tools", detail=repr(error)
            ) from error

    def _new(self, request: ChatCompletionRequest) -> Parser:
        return self._kind(self._tokenizer, request.tools, chat_template_kwargs={}, model_config=self._model_config)


class Parsing:
    """One request's parsers, one for each choice."""

    def __init__(self, new: Any, work: EngineWork) -> None:
        constraint = work.sampling.structured_outputs
        self._use = work.tool_use
        request = _request(work)
        if constraint is not None:
            request.structured_outputs = outputs_params(constraint)
        first = new(request)
        # What the model's way of calling needs of vLLM: a schema of the calls, or special tokens in the text.
        self.request: ChatCompletionRequest = first.adjust_request(request)
        self._prompt = work.token_ids
        self._whole = work.whole
        self._new = new
        self._parsers: dict[int, Parser] = {0: first}
        self._texts: dict[int, list[str]] = {}
        self._tokens: dict[int, list[int]] = {}
        self._called: set[int] = set()

    @property
    def outputs(self) -> StructuredOutputsParams | None:
        """What the answer is held to."""
        found: StructuredOutputsParams | None = self.request.extract_structured_outputs()
        return found

    @property
    def forced(self) -> bool:
        """Whether a call of one function was asked for by name, which OpenAI does not count as a reason to finish."""
        return self._use is not None and self._use.choice == "named"

    def reasoning_ended(self) -> bool | None:
        """Return whether what the answer is held to holds from its first token on; None: vLLM finds out."""
        found: bool | None = self.request.resolve_reasoning_ended(self._parsers[0], self._prompt)
        return found

    def called(self, choice: int) -> bool:
        """Whether the choice has a call so far."""
        return choice in self._called

    def feed(self, choice: int, text: str, token_ids: Sequence[int], *, finished: bool) -> Piece:
        """Take new output of a choice; return what is certain of it now."""
        parser = self._parsers.get(choice)
        if parser is None:
            parser = self._parsers[choice] = self._new(self.request)
        piece = (self._at_end if self._whole else self._as_it_comes)(parser, choice, (text, list(token_ids), finished))
        if piece.calls:
            if self._use is not None and not self._use.parallel:
                piece.calls = [call for call in piece.calls if call.index == 0]
            self._called.add(choice)
        return piece

    def _as_it_comes(self, parser: Parser, choice: int, new: tuple[str, list[int], bool]) -> Piece:
        text, token_ids, finished = new
        delta = parser.parse_delta(text, token_ids, self.request, self._prompt, finished=finished)
        if delta is None:
            return Piece()
        calls = [
            ToolCallDelta(
                call.index,
                call.id,
                call.function.name if call.function else None,
                (call.function.arguments if call.function else None) or "",
            )
            for call in delta.tool_calls or ()
        ]
        return Piece(delta.content or "", delta.reasoning or "", calls)

    def _at_end(self, parser: Parser, choice: int, new: tuple[str, list[int], bool]) -> Piece:
        text, token_ids, finished = new
        texts, tokens = self._texts.setdefault(choice, []), self._tokens.setdefault(choice, [])
        texts.append(text)
        tokens += token_ids
        if not finished:
            return Piece()
        parser.set_prompt_token_ids(self._prompt)
        reasoning, content, calls = parser.parse(
            "".join(texts), self.request, enable_auto_tools=True, model_output_token_ids=tokens
        )
        found = [
            ToolCallDelta(index, call.id or make_tool_call_id(), call.name, call.arguments)
            for index, call in enumerate(calls or ())
        ]
        return Piece(content or "", reasoning or "", found)


def _request(work: EngineWork) -> ChatCompletionRequest:
    """Return as much of the request in vLLM's form as its parsers look at."""
    use = work.tool_use
    given: dict[str, Any] = {"messages": [{"role": "user", "content": ""}]}
    if use is not None:
        given |= {
            "tools": use.tools,
            "tool_choice": {"type": "function", "function": {"name": use.name}}
            if use.choice == "named"
            else use.choice,
            "parallel_tool_calls": use.parallel,
        }
    return ChatCompletionRequest(**given, skip_special_tokens=work.sampling.skip_special_tokens)
