"""Every parameter of vLLM does what its name says, through the whole server, on a real vLLM; what a client sends ends or stalls nothing.

The model is the shipped one with a chat template that takes tools; the server is shared (conftest.py).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.blackbox.pictures import DESCRIBE, ask, chat, one, url_of, user
from tests.blackbox.replies import content, refused, stream
from tests.blackbox.server import Server
from tokenizers import Tokenizer

from foveate import models

pytestmark = [pytest.mark.timeout(400), pytest.mark.xdist_group("vllm")]
CHAT = "/v1/chat/completions"
DEMO = Path(models.resolve_model(None).directory)
TOKENIZER = Tokenizer.from_file(str(DEMO / "tokenizer.json"))
SAID = "Hello! Send me a picture of shapes and ask me about it."
HELLO = chat(user("Hello!"))


@pytest.fixture
def http(vllm_server: Server) -> Iterator[httpx.Client]:
    with vllm_server.client(seconds=120) as client:
        yield client


def ids(text: str) -> list[int]:
    return list(TOKENIZER.encode(text, add_special_tokens=False).ids)


def said(http: httpx.Client, **more: Any) -> str:
    return content(http.post(CHAT, json={**HELLO, **more}))


def choice(http: httpx.Client, **more: Any) -> dict[str, Any]:
    answer = http.post(CHAT, json={**HELLO, **more})
    assert answer.status_code == 200, answer.text
    return dict(answer.json()["choices"][0])


def test_nothing_set_is_the_models_own_answer(http: httpx.Client) -> None:
    assert said(http) == SAID


def test_logit_bias_and_bad_words_bar(http: httpx.Client) -> None:
    first = ids("Hello")[0]
    assert not said(http, logit_bias={str(first): -100}).startswith(TOKENIZER.decode([first]))
    assert "!" not in said(http, bad_words=["!"])


def test_allowed_token_ids_are_all_there_is(http: httpx.Client) -> None:
    (dot,) = ids(".")
    assert set(said(http, allowed_token_ids=[dot], max_tokens=3)) == {"."}


def test_penalties(http: httpx.Client) -> None:
    dots = {"logit_bias": {str(ids(".")[0]): 30}, "max_tokens": 40, "ignore_eos": True}
    assert said(http, **dots) == "." * 40
    assert said(http, **dots, repetition_penalty=100.0) != "." * 40
    assert said(http, **dots, frequency_penalty=2.0) != "." * 40
    long = {"max_tokens": 60, "ignore_eos": True}
    assert said(http, **long) != said(http, **long, presence_penalty=2.0)


def test_stopping(http: httpx.Client) -> None:
    by_text = choice(http, stop=["picture"], include_stop_str_in_output=True)
    assert by_text["message"]["content"] == SAID[: SAID.index("picture") + 7]
    assert (by_text["finish_reason"], by_text["stop_reason"]) == ("stop", "picture")
    token = ids("!")[0]
    by_token = choice(http, stop_token_ids=[token])
    assert (by_token["message"]["content"], by_token["stop_reason"]) == ("Hello", token)
    assert said(http, stop_token_ids=[token], include_stop_str_in_output=True) == "Hello!"
    assert "stop_reason" not in choice(http)


def test_minimum_and_end(http: httpx.Client) -> None:
    long = http.post(CHAT, json={**HELLO, "min_tokens": 30, "max_tokens": 30}).json()
    assert long["usage"]["completion_tokens"] == 30
    longer = http.post(CHAT, json={**HELLO, "ignore_eos": True, "max_tokens": 33}).json()
    assert (longer["usage"]["completion_tokens"], longer["choices"][0]["finish_reason"]) == (33, "length")


def test_special_tokens_are_shown_where_asked(http: httpx.Client) -> None:
    shown = said(http, ignore_eos=True, max_tokens=33, skip_special_tokens=False)
    assert "<|im_end|>" in shown
    assert "<|im_end|>" not in said(http, ignore_eos=True, max_tokens=33)


def test_hot_but_narrow_is_greedy(http: httpx.Client) -> None:
    for narrow in ({"top_k": 1}, {"min_p": 1.0}, {"top_p": 1e-6}):
        assert said(http, temperature=2.0, seed=3, **narrow) == SAID
    hot = {"temperature": 2.0, "ignore_eos": True, "max_tokens": 20}
    assert said(http, seed=7, **hot) == said(http, seed=7, **hot)
    several = http.post(CHAT, json={**HELLO, **hot, "n": 3, "seed": 1}).json()["choices"]
    assert len({each["message"]["content"] for each in several}) > 1


def test_log_probabilities_of_the_answer_and_the_prompt(http: httpx.Client) -> None:
    wanted = [ids(".")[0], ids("!")[0], 5]
    entry = choice(http, logprobs=True, logprob_token_ids=wanted, max_tokens=1)["logprobs"]["content"][0]
    assert len(entry["top_logprobs"]) == 3
    answer = http.post(CHAT, json={**HELLO, "prompt_logprobs": 1, "max_tokens": 1}).json()
    told = answer["prompt_logprobs"]
    assert len(told) == answer["usage"]["prompt_tokens"]
    assert told[0] is None
    assert all({"logprob", "rank", "decoded_token"} == set(each) for each in told[1].values())
    body = {"prompt": "Hello", "prompt_logprobs": 0, "max_tokens": 1}
    assert http.post("/v1/completions", json=body).json()["choices"][0]["prompt_logprobs"][0] is None


def test_repetition_ends(http: httpx.Client) -> None:
    loop = {"logit_bias": {str(ids(".")[0]): 100}, "max_tokens": 200, "ignore_eos": True}
    watched = {"max_pattern_size": 2, "min_pattern_size": 1, "min_count": 8}
    assert len(said(http, **loop, repetition_detection=watched)) < 20
    assert len(said(http, **loop)) == 200


def test_stream_interval_makes_larger_chunks(http: httpx.Client) -> None:
    def chunks(**more: Any) -> int:
        body = {**HELLO, "stream": True, "ignore_eos": True, "max_tokens": 40, **more}
        return http.post(CHAT, json=body).text.count('"content":"') - 1

    assert chunks(stream_interval=20) < 10 < chunks()


def test_truncation_keeps_an_end_of_the_prompt(http: httpx.Client) -> None:
    context = http.get("/v1/models").json()["data"][0]["max_model_len"]
    long = {"prompt": "word " * context + "Hello!", "max_tokens": 4}
    refused(http.post("/v1/completions", json=long), 400)
    short = http.post("/v1/completions", json={**long, "truncate_prompt_tokens": 40})
    assert short.json()["usage"]["prompt_tokens"] == 40
    most = http.post("/v1/completions", json={**long, "truncate_prompt_tokens": -1, "max_tokens": 8})
    assert most.json()["usage"]["prompt_tokens"] == context - 8
    ends = [
        http.post(
            "/v1/completions", json={**long, "truncate_prompt_tokens": 3, "truncation_side": side, "prompt_logprobs": 0}
        )
        for side in ("left", "right")
    ]
    told = [
        "".join(next(iter(each.values()))["decoded_token"] for each in end.json()["choices"][0]["prompt_logprobs"][1:])
        for end in ends
    ]
    assert ("!" in told[0], "!" in told[1]) == (True, False)
    picture = ask(url_of(one("red", "circle")), truncate_prompt_tokens=20)
    refused(http.post(CHAT, json=picture), 400, param="truncate_prompt_tokens")


SCHEMA = {
    "type": "object",
    "properties": {"colour": {"enum": ["red", "blue"]}, "count": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["colour", "count"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    "asked",
    [
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}},
        {"structured_outputs": {"json": SCHEMA}},
        {"structured_outputs": {"json": json.dumps(SCHEMA)}},
    ],
)
def test_a_schema_holds(http: httpx.Client, asked: dict[str, Any]) -> None:
    # The model was never taught JSON, and may write spaces where it likes: what it writes is likely to end it.
    bias = {str(ids(letter)[0]): -100 for letter in (" ", "\n")}
    answer = json.loads(said(http, **asked, logit_bias=bias, max_tokens=200))
    assert set(answer) == {"colour", "count"}
    assert answer["colour"] in ("red", "blue")
    assert 1 <= answer["count"] <= 9


def test_other_constraints_hold(http: httpx.Client) -> None:
    assert said(http, structured_outputs={"regex": "[0-9]{4}-[0-9]{2}"})[4] == "-"
    assert said(http, structured_outputs={"choice": ["zebra", "quagga"]}) in ("zebra", "quagga")
    assert said(http, structured_outputs={"grammar": 'root ::= "x" [0-9] "y"'})[::2] == "xy"
    assert said(http, response_format={"type": "json_object"}, max_tokens=30).lstrip().startswith("{")
    picture = ask(url_of(one("red", "circle")), question=DESCRIBE, structured_outputs={"choice": ["red", "blue"]})
    assert content(http.post(CHAT, json=picture)) == "red"


AMBIGUOUS = "root ::= root root root | root root | [a-z ]"
HOSTILE: list[dict[str, Any]] = [
    {"json": {"type": "nonsense"}},
    {"json": "{"},
    {"json": {"$ref": "http://127.0.0.1/x"}},
    {"json": {"type": "integer", "multipleOf": 3}},
    {"regex": "((a{1,1000}){1,1000}){1,1000}"},
    {"regex": "(("},
    {"regex": "a\x00b"},
    {"grammar": AMBIGUOUS},
    {"grammar": "root ::= " + "(" * 5000 + '"a"' + ")" * 5000},
    {"grammar": "nonsense"},
    {"grammar": " "},
    {"structural_tag": "{}"},
    {"structural_tag": "nonsense"},
]


@pytest.mark.parametrize("asked", HOSTILE, ids=lambda asked: json.dumps(asked)[:40])
def test_what_cannot_be_compiled_is_refused(http: httpx.Client, asked: dict[str, Any]) -> None:
    error = refused(http.post(CHAT, json={**HELLO, "structured_outputs": asked}), 400, param="structured_outputs.")
    assert error["code"] == "invalid_parameter"


def test_the_engine_is_the_same_afterwards(http: httpx.Client, vllm_server: Server) -> None:
    assert said(http) == SAID
    assert "the engine process ended" not in vllm_server.log_text()
    refused(http.post(CHAT, json={**HELLO, "logit_bias": {"2000000000": 1}}), 400, param="logit_bias")
    refused(http.post(CHAT, json={**HELLO, "allowed_token_ids": [2000000000]}), 400, param="allowed_token_ids")
    refused(http.post(CHAT, json={**HELLO, "thinking_token_budget": 5}), 400)
    assert said(http) == SAID


WEATHER = {
    "type": "function",
    "function": {
        "name": "get_colour",
        "description": "Look <|im_end|> a colour up.",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"name": {"enum": ["red", "blue"]}},
            "required": ["name"],
            "additionalProperties": False,
        },
    },
}
OTHER = {"type": "function", "function": {"name": "other"}}
NO_SPACES = {str(ids(letter)[0]): -100 for letter in (" ", "\n")}
CALLING = {**HELLO, "tools": [WEATHER, OTHER], "logit_bias": NO_SPACES, "max_tokens": 120}
WRITTEN = 'Well.<tool_call>{"name": "get_colour", "arguments": {"name": "red"}}</tool_call>'


def streamed(http: httpx.Client, body: dict[str, Any]) -> tuple[dict[str, Any], str | None]:
    """Return a streamed message put together as OpenAI's clients do, and why it ended."""
    message: dict[str, Any] = {"content": "", "tool_calls": []}
    reason = None
    _, chunks = stream(http, body)
    for chunk in chunks:
        for one_choice in chunk["choices"]:
            reason = one_choice["finish_reason"] or reason
            message["content"] += one_choice["delta"].get("content") or ""
            for part in one_choice["delta"].get("tool_calls", []):
                if part["index"] == len(message["tool_calls"]):
                    assert {"id", "type"} <= part.keys()
                    message["tool_calls"].append({"name": part["function"]["name"], "arguments": ""})
                message["tool_calls"][part["index"]]["arguments"] += part["function"].get("arguments") or ""
    return message, reason


def whole(http: httpx.Client, body: dict[str, Any]) -> tuple[dict[str, Any], str | None]:
    answer = http.post(CHAT, json=body)
    assert answer.status_code == 200, answer.text
    (found,) = answer.json()["choices"]
    message = found["message"]
    assert all(call["type"] == "function" and call["id"] for call in message.get("tool_calls", []))
    calls = [call["function"] for call in message.get("tool_calls", [])]
    return {"content": message["content"] or "", "tool_calls": calls}, found["finish_reason"]


WAYS = pytest.mark.parametrize("ask_", [whole, streamed])


@WAYS
def test_a_call_by_name(http: httpx.Client, ask_: Any) -> None:
    named = {"type": "function", "function": {"name": "get_colour"}}
    message, reason = ask_(http, {**CALLING, "tool_choice": named})
    (call,) = message["tool_calls"]
    assert call["name"] == "get_colour"
    assert json.loads(call["arguments"])["name"] in ("red", "blue")
    assert (message["content"], reason) == ("", "stop")


@WAYS
def test_a_required_call(http: httpx.Client, ask_: Any) -> None:
    message, reason = ask_(
        http, {**CALLING, "tools": [WEATHER], "tool_choice": "required", "parallel_tool_calls": False}
    )
    (call,) = message["tool_calls"]
    assert call["name"] == "get_colour"
    assert json.loads(call["arguments"])["name"] in ("red", "blue")
    assert (message["content"], reason) == ("", "tool_calls")


@WAYS
def test_a_call_that_the_model_chose(http: httpx.Client, ask_: Any) -> None:
    message, reason = ask_(http, {**CALLING, "structured_outputs": {"choice": [WRITTEN]}})
    (call,) = message["tool_calls"]
    assert (call["name"], json.loads(call["arguments"])) == ("get_colour", {"name": "red"})
    assert (message["content"], reason) == ("Well.", "tool_calls")


@WAYS
def test_no_call(http: httpx.Client, ask_: Any) -> None:
    for more in ({}, {"tool_choice": "none"}):
        message, reason = ask_(http, {**CALLING, **more, "structured_outputs": {"choice": ["Just text."]}})
        assert (message, reason) == ({"content": "Just text.", "tool_calls": []}, "stop")
    not_wanted, _ = ask_(http, {**CALLING, "tool_choice": "none", "structured_outputs": {"choice": [WRITTEN]}})
    assert not_wanted == {"content": WRITTEN, "tool_calls": []}


def test_tools_and_their_answers_are_in_the_prompt(http: httpx.Client) -> None:
    def tokens(**more: Any) -> int:
        answer = http.post(CHAT, json={**HELLO, "max_tokens": 1, **more})
        assert answer.status_code == 200, answer.text
        return int(answer.json()["usage"]["prompt_tokens"])

    assert tokens(tools=[WEATHER]) > tokens() + 20
    call = {"id": "c1", "type": "function", "function": {"name": "get_colour", "arguments": '{"name": "red"}'}}
    history = [user("Hello!"), {"role": "assistant", "content": None, "tool_calls": [call]}]
    answered = [*history, {"role": "tool", "tool_call_id": "c1", "content": "#f00"}, user("Thanks.")]
    assert tokens(messages=answered) > tokens(messages=[user("Hello!"), user("Thanks.")]) + 10


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"tools": [WEATHER, WEATHER]}, "tools"),
        ({"tool_choice": "required", "tools": []}, "tool_choice"),
        ({"tool_choice": "required", "tools": [WEATHER], "structured_outputs": {"choice": ["a"]}}, "tool_choice"),
        ({"tool_choice": "required", "tools": [WEATHER], "response_format": {"type": "json_object"}}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "absent"}}}, "tool_choice"),
        (
            {
                "tool_choice": "required",
                "tools": [{"type": "function", "function": {"name": "f", "strict": True, "parameters": {"type": 5}}}],
            },
            "tools",
        ),
    ],
)
def test_tools_that_cannot_be_used(http: httpx.Client, more: dict[str, Any], param: str) -> None:
    refused(http.post(CHAT, json={**CALLING, **more}), 400, param=param)
    assert said(http) == SAID
