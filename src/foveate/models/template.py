"""A conversation to the text a model was trained on, by the checkpoint's own chat template.

Rules, in order:

1. Each turn's content is given as a list of ``{"type": "text"}`` and ``{"type": "image"}`` entries, the client's order
   kept. Templates that want a string for a role (found once for each role, by rendering a probe) get the texts joined
   by newlines, a picture being the family's own placeholder text.
2. When the template still fails, it is tried once more with every turn of texts alone as a string.
3. A checkpoint without a chat template gets :data:`FALLBACK`: one line a turn, ``Role: text``, and ``Assistant:`` at
   the end.

Control tokens that users wrote are replaced by nonces before the template runs and split out after it, so that a
template can trim, test and move text, but no text becomes a token. The same holds for a token spelt across two parts.
Tools and calls go to the template as transformers does it (``tools``, and ``tool_calls`` and ``tool_call_id`` of a message); a template
that shows nothing of them is found out by their names, which are then missing in the text. Does not cover documents or a reply to be
continued: a prompt for a new assistant turn is always added.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from typing import Any

from foveate.core.errors import PromptInvalid, UnsupportedParameter
from foveate.core.request import TextPart, Turn
from foveate.core.tool_use import ToolUse
from foveate.models.port import RenderedPrompt
from foveate.models.tokens import ControlTokens

FALLBACK = (
    "{% for message in messages %}{{ message['role'] | capitalize }}: {% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}{{ picture }}{% else %}{{ part['text'] }}{% endif %}{% endfor %}"
    "{{ '\\n' }}{% endfor %}Assistant:"
)
_PROBE = "foveateprobe"
_CONTENT_ROLES = 64


def template_of(processor: Any) -> str:
    """Return the source of a checkpoint's chat template; :data:`FALLBACK` when it has none."""
    found = getattr(processor, "chat_template", None) or getattr(processor.tokenizer, "chat_template", None)
    if isinstance(found, dict):
        found = found.get("default")
    return found or FALLBACK


class _Marks:
    """The nonces of one rendering, and the user's spellings they stand for."""

    def __init__(self, controls: ControlTokens) -> None:
        self._controls = controls
        self._nonce = secrets.token_hex(8)
        self._spellings: list[str] = []

    def mark(self, spelling: str) -> str:
        self._spellings.append(spelling)
        return f"{self._nonce}x{len(self._spellings) - 1}y"

    def within(self, value: Any) -> Any:
        """Return a JSON value with control tokens marked in every text of it, names included."""
        if isinstance(value, str):
            pieces = self._controls.split(value)
            return "".join(self.mark(piece) if index % 2 else piece for index, piece in enumerate(pieces))
        if isinstance(value, dict):
            return {self.within(name): self.within(held) for name, held in value.items()}
        return [self.within(held) for held in value] if isinstance(value, list) else value

    def texts(self, turn: Turn) -> list[str | None]:
        """Return the turn's parts with control tokens marked; ``None`` for a picture."""
        found: list[str | None] = []
        before = ""
        for part in turn.parts:
            if not isinstance(part, TextPart):
                found.append(None)
                before = ""
                continue
            pieces = self._controls.split(part.text)
            text = "".join(self.mark(piece) if index % 2 else piece for index, piece in enumerate(pieces))
            if self._controls.spans(before, part.text):
                text = self.mark("") + text
            found.append(text)
            # Only the end matters to the next part: to keep all of it would cost the square of the conversation's length.
            before = self._controls.end_of(before + part.text)
        return found

    def split(self, rendered: str) -> tuple[str, ...]:
        # Nearly always: and a pattern of this nonce alone would have to be compiled, for longer than all the rest takes.
        if not self._spellings:
            return (rendered,)
        pieces = re.split(f"{self._nonce}x([0-9]+)y", rendered)
        return tuple(self._spellings[int(piece)] if index % 2 else piece for index, piece in enumerate(pieces))


def _beside(turn: Turn, marks: _Marks) -> dict[str, Any]:
    """Return what a message has beside its role and content. A turn of calls alone has no list of parts but no text."""
    found: dict[str, Any] = {}
    if turn.tool_calls:
        found["tool_calls"] = [
            marks.within(
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            )
            for call in turn.tool_calls
        ]
        if not turn.parts:
            found["content"] = ""
    if turn.tool_call_id:
        found["tool_call_id"] = marks.within(turn.tool_call_id)
    return found


def _check_tools(rendered: str, turns: Sequence[Turn], tool_use: ToolUse | None) -> None:
    for place, turn in enumerate(turns):
        if any(call.name not in rendered for call in turn.tool_calls):
            raise PromptInvalid(
                "The model's chat template does not take tool calls.", param=f"messages[{place}].tool_calls"
            )
    # A call that is forced is held to its form whatever the model was told; without a choice there is nothing to tell.
    if tool_use is None or tool_use.choice != "auto":
        return
    if any(tool["function"]["name"] not in rendered for tool in tool_use.tools):
        raise UnsupportedParameter(
            "The model's chat template does not take tools, so it cannot choose among them.", param="tools"
        )


class ChatTemplate:
    """Renders conversations. Thread-safe: holds nothing but what it found out about roles."""

    def __init__(self, processor: Any, controls: ControlTokens, wrap: tuple[str, str]) -> None:
        self._source = template_of(processor)
        self._controls = controls
        self._placeholder: str = processor.image_token
        self._picture = wrap[0] + self._placeholder + wrap[1]
        self._variables = {**processor.tokenizer.special_tokens_map, "picture": self._picture}
        self._strings: dict[str, bool] = {}

    def render(self, turns: Sequence[Turn], tool_use: ToolUse | None = None) -> RenderedPrompt:
        """Apply the template.

        Raises PromptInvalid when it refuses the turns or loses a picture or a call, UnsupportedParameter when it does not show the tools
        among which the model is to choose.
        """
        if not turns:
            raise PromptInvalid("The conversation has no messages.", param="messages")
        for turn in turns:
            if self._controls.found(turn.role):
                raise PromptInvalid("A message's role is not valid.", param="messages", detail=f"role {turn.role!r}")
        marks = _Marks(self._controls)
        texts = [marks.texts(turn) for turn in turns]
        beside = [_beside(turn, marks) for turn in turns]
        tools = None if tool_use is None else marks.within(tool_use.tools)
        rendered = self._apply([turn.role for turn in turns], texts, beside, tools)
        _check_tools(rendered, turns, tool_use)
        return self._checked(marks.split(rendered), turns)

    def plain(self, text: str) -> RenderedPrompt:
        """Wrap a text without a template."""
        return RenderedPrompt(tuple(self._controls.split(text)), 0)

    def _checked(self, segments: tuple[str, ...], turns: Sequence[Turn]) -> RenderedPrompt:
        wanted = sum(not isinstance(part, TextPart) for turn in turns for part in turn.parts)
        placed = sum(segment.count(self._placeholder) for segment in segments[::2])
        if placed != wanted:
            raise PromptInvalid(
                "The model's chat template does not take pictures where this conversation has them.",
                param="messages",
                detail=f"{wanted} pictures, {placed} placeholders",
            )
        return RenderedPrompt(segments, placed)

    def _apply(
        self,
        roles: Sequence[str],
        texts: Sequence[Sequence[str | None]],
        beside: Sequence[dict[str, Any]],
        tools: list[dict[str, Any]] | None,
    ) -> str:
        given = list(zip(roles, texts, beside, strict=True))
        as_given = [self._message(role, parts, self._wants_string(role)) | more for role, parts, more in given]
        try:
            return self._render(as_given, tools)
        except Exception as error:
            first = error
        # A template is the checkpoint's code and may fail in any way; whatever it raises, the messages do not suit it.
        strings = [
            self._message(role, parts, self._wants_string(role) or None not in parts) | more
            for role, parts, more in given
        ]
        if strings != as_given:
            try:
                return self._render(strings, tools)
            except Exception as error:
                first = error
        reason = str(first).strip().split("\n")[0][:200]
        raise PromptInvalid(
            f"{PromptInvalid.sentence} It says: {reason}"
            if type(first).__module__.startswith("jinja2") and reason
            else None,
            param="messages",
            detail=f"{type(first).__name__}: {first}",
        ) from first

    def _message(self, role: str, parts: Sequence[str | None], string: bool) -> dict[str, Any]:
        if string:
            return {"role": role, "content": "\n".join(self._picture if part is None else part for part in parts)}
        return {
            "role": role,
            "content": [{"type": "image"} if part is None else {"type": "text", "text": part} for part in parts],
        }

    def _render(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None = None) -> str:
        from transformers.utils.chat_template_utils import render_jinja_template

        rendered, _ = render_jinja_template(
            conversations=[messages],
            tools=tools,
            chat_template=self._source,
            add_generation_prompt=True,
            **self._variables,
        )
        text: str = rendered[0]
        return text

    def _wants_string(self, role: str) -> bool:
        known = self._strings.get(role)
        if known is None:
            known = self._probe(role)
            if len(self._strings) < _CONTENT_ROLES:
                self._strings[role] = known
        return known

    def _probe(self, role: str) -> bool:
        """Find out whether the template drops or prints a list where it stands, and takes a string."""
        around: tuple[list[dict[str, Any]], list[dict[str, Any]]] = ([], [])
        if role != "user":
            user = self._message("user", ["question"], self._wants_string("user"))
            around = (
                ([], [user]) if role in ("system", "developer") else ([user], [user] if role == "assistant" else [])
            )
        for string in (False, True):
            try:
                text = self._render([*around[0], self._message(role, [_PROBE], string), *around[1]])
            except Exception:  # Templates raise what they like at a form they do not know; that is the answer.
                continue
            if _PROBE in text and "'type'" not in text:
                return string
        return False
