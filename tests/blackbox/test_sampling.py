"""Every parameter of generation does what its name says."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from tests.blackbox.pictures import DESCRIBE, ask, chat, one, url_of, user
from tests.blackbox.replies import but_for_kept_kv, content, joined, refused, stream

HELLO = chat(user("Hello!"))
HELLO_SAID = "Hello! Send me a picture of shapes and ask me about it."
HOT = {"temperature": 2.0, "max_tokens": 24, "ignore_eos": True}


def post(http: httpx.Client, body: dict[str, Any], path: str = "/v1/chat/completions") -> dict[str, Any]:
    response = http.post(path, json=body)
    assert response.status_code == 200, response.text
    return dict(response.json())


def test_seed_makes_a_hot_answer_repeatable(http: httpx.Client) -> None:
    same = [content(http.post("/v1/chat/completions", json={**HELLO, **HOT, "seed": 7})) for _ in range(2)]
    assert same[0] == same[1]
    others = {content(http.post("/v1/chat/completions", json={**HELLO, **HOT, "seed": seed})) for seed in range(4)}
    assert len(others) > 1


def test_seed_holds_in_company(http: httpx.Client) -> None:
    alone = content(http.post("/v1/chat/completions", json={**HELLO, **HOT, "seed": 11}))

    def one_of_many(number: int) -> str:
        return content(
            http.post("/v1/chat/completions", json={**HELLO, **HOT, "seed": 11 if number == 5 else number + 100})
        )

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(one_of_many, range(8)))[5] == alone


def test_greedy_is_the_same_alone_and_in_a_batch(http: httpx.Client) -> None:
    bodies = [chat(user("word " * count + "Hello!"), max_tokens=40, ignore_eos=True) for count in (0, 3, 17, 60)]
    bodies += [
        ask(url_of(one(colour, "star", size=(140 + 28 * index, 168))))
        for index, colour in enumerate(("red", "blue", "black"))
    ]
    alone = [content(http.post("/v1/chat/completions", json=body)) for body in bodies]
    with ThreadPoolExecutor(len(bodies) * 2) as pool:
        together = list(pool.map(lambda body: content(http.post("/v1/chat/completions", json=body)), bodies * 2))
    assert together == alone * 2


@pytest.mark.parametrize("narrow", [{"top_k": 1}, {"min_p": 1.0}, {"top_p": 1e-6}], ids=["top_k", "min_p", "top_p"])
def test_a_single_candidate_is_greedy_however_hot(http: httpx.Client, narrow: dict[str, Any]) -> None:
    body = {**HELLO, "temperature": 2.0, "seed": 3, **narrow}
    assert content(http.post("/v1/chat/completions", json=body)) == HELLO_SAID


def test_several_choices(http: httpx.Client) -> None:
    reply = post(http, {**HELLO, "n": 2})
    assert [choice["index"] for choice in reply["choices"]] == [0, 1]
    assert {choice["message"]["content"] for choice in reply["choices"]} == {HELLO_SAID}
    single = post(http, HELLO)
    assert reply["usage"]["completion_tokens"] == 2 * single["usage"]["completion_tokens"]
    assert reply["usage"]["prompt_tokens"] == single["usage"]["prompt_tokens"]
    hot = post(http, {**HELLO, **HOT, "n": 4, "seed": 1})
    assert len({choice["message"]["content"] for choice in hot["choices"]}) > 1


def test_several_choices_about_a_picture_in_a_stream(http: httpx.Client) -> None:
    _, chunks = stream(http, ask(url_of(one("red", "circle")), n=2, stream_options={"include_usage": True}))
    assert [joined(chunks, index) for index in (0, 1)] == ["A red circle."] * 2
    finished = [choice["index"] for chunk in chunks for choice in chunk["choices"] if choice["finish_reason"]]
    assert sorted(finished) == [0, 1]


@pytest.mark.parametrize(
    ("stop", "said"),
    [
        (" picture", "Hello! Send me a"),
        ("me a pic", "Hello! Send "),
        (["zzz", "!"], "Hello"),
        ("e of sh", "Hello! Send me a pictur"),
    ],
)
def test_stop(http: httpx.Client, stop: Any, said: str) -> None:
    whole = post(http, {**HELLO, "stop": stop})["choices"][0]
    assert whole["message"]["content"] == said
    assert whole["finish_reason"] == "stop"
    _, chunks = stream(http, {**HELLO, "stop": stop})
    assert joined(chunks) == said


def test_a_stop_that_never_comes_takes_nothing_away(http: httpx.Client) -> None:
    assert content(http.post("/v1/chat/completions", json={**HELLO, "stop": ["it. But", "about it.."]})) == HELLO_SAID


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_length(http: httpx.Client, name: str) -> None:
    reply = post(http, {"messages": [user("Hello!")], "temperature": 0, name: 2})
    assert reply["choices"][0]["finish_reason"] == "length"
    assert reply["usage"]["completion_tokens"] == 2
    assert HELLO_SAID.startswith(reply["choices"][0]["message"]["content"])


def test_min_tokens_and_ignore_eos(http: httpx.Client) -> None:
    natural = post(http, HELLO)["usage"]["completion_tokens"]
    longer = post(http, {**HELLO, "min_tokens": natural + 5, "max_tokens": natural + 30})
    assert longer["usage"]["completion_tokens"] >= natural + 5
    endless = post(http, {**HELLO, "ignore_eos": True, "max_tokens": natural + 20})
    assert endless["usage"]["completion_tokens"] == natural + 20
    assert endless["choices"][0]["finish_reason"] == "length"


def test_penalties_reduce_repetition(http: httpx.Client) -> None:
    def tokens(**penalty: float) -> Counter[str]:
        body = {**HELLO, "ignore_eos": True, "max_tokens": 80, "logprobs": True, **penalty}
        logged = post(http, body)["choices"][0]["logprobs"]["content"]
        return Counter(token["token"] for token in logged)

    plain, frequency, presence = tokens(), tokens(frequency_penalty=2.0), tokens(presence_penalty=2.0)
    assert max(frequency.values()) < max(plain.values())
    assert len(presence) > len(plain)
    # The frequency penalty grows with every occurrence, the presence penalty does not.
    assert max(frequency.values()) < max(presence.values())


def test_logprobs(http: httpx.Client) -> None:
    reply = post(http, {**HELLO, "logprobs": True, "top_logprobs": 3})
    choice = reply["choices"][0]
    tokens = choice["logprobs"]["content"]
    said = choice["message"]["content"].encode()
    assert len(tokens) == reply["usage"]["completion_tokens"]
    assert b"".join(bytes(token["bytes"]) for token in tokens).startswith(said)
    for token in tokens:
        best = [entry["logprob"] for entry in token["top_logprobs"]]
        assert len(best) == 3
        assert best == sorted(best, reverse=True)
        assert best[0] <= 1e-6
        # Greedy: the token that was taken is the best.
        assert token["token"] == token["top_logprobs"][0]["token"]
        assert token["logprob"] == pytest.approx(best[0], abs=1e-5)
    plain = post(http, {**HELLO, "logprobs": True})["choices"][0]["logprobs"]["content"]
    assert [token["top_logprobs"] for token in plain] == [[]] * len(tokens)
    assert [token["logprob"] for token in plain] == pytest.approx([token["logprob"] for token in tokens], abs=1e-4)


def test_logprobs_in_a_stream(http: httpx.Client) -> None:
    body = {**HELLO, "logprobs": True, "top_logprobs": 2}
    whole = post(http, body)["choices"][0]["logprobs"]["content"]
    _, chunks = stream(http, body)
    logged = [choice.get("logprobs") for chunk in chunks for choice in chunk["choices"]]
    assert [token["token"] for log in logged if log for token in log["content"]] == [token["token"] for token in whole]


def test_completions(http: httpx.Client, model: str) -> None:
    body = {"model": model, "prompt": "What is in", "temperature": 0, "max_tokens": 8}
    reply = post(http, body, "/v1/completions")
    assert reply["object"] == "text_completion"
    said = reply["choices"][0]["text"]
    assert said
    assert reply["usage"]["completion_tokens"] <= 8
    _, chunks = stream(http, {**body, "stream_options": {"include_usage": True}}, "/v1/completions")
    assert "".join(choice["text"] for chunk in chunks for choice in chunk["choices"]) == said
    assert but_for_kept_kv(chunks[-1]["usage"]) == but_for_kept_kv(reply["usage"])
    assert post(http, {**body, "prompt": ["What is in"]}, "/v1/completions")["choices"][0]["text"] == said
    assert len(post(http, {**body, "logprobs": 2}, "/v1/completions")["choices"][0]["logprobs"]["tokens"]) > 0


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tools", [{"type": "function", "function": {"name": "f", "parameters": {}}}]),
        ("tool_choice", "required"),
        ("response_format", {"type": "json_object"}),
        ("logit_bias", {"5": 10}),
        ("guided_json", {}),
        ("best_of", 3),
        ("repetition_penalty", 1.5),
        ("modalities", ["audio"]),
        ("chat_template", "x"),
        ("no_such_parameter", 1),
    ],
)
def test_what_is_not_supported_is_named(http: httpx.Client, name: str, value: Any) -> None:
    assert (
        refused(http.post("/v1/chat/completions", json={**HELLO, name: value}), 400, param=name)["message"].find(name)
        >= 0
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -1),
        ("temperature", "hot"),
        ("temperature", 1e9),
        ("top_p", 0),
        ("top_p", 1.5),
        ("top_k", -5),
        ("min_p", 2),
        ("max_tokens", 0),
        ("max_tokens", -1),
        ("max_tokens", 1.5),
        ("max_tokens", 10**30),
        ("seed", "x"),
        ("seed", 2**70),
        ("n", 0),
        ("n", 100000),
        ("presence_penalty", 5),
        ("frequency_penalty", -5),
        ("stop", [1]),
        ("stop", ["a"] * 1000),
        ("stop", ""),
        ("logprobs", "yes"),
        ("min_tokens", -1),
        ("min_tokens", 100),
        ("ignore_eos", 3),
        ("stream", "maybe"),
        ("stream_options", {"include_usage": True}),
        ("messages", "hello"),
        ("messages", None),
        ("model", 5),
        ("temperature", True),
    ],
)
def test_values_out_of_range_are_named(http: httpx.Client, name: str, value: Any) -> None:
    refused(http.post("/v1/chat/completions", json={**HELLO, name: value}), 400, param=name)


def test_top_logprobs_beyond_the_limit_or_without_logprobs(http: httpx.Client) -> None:
    refused(
        http.post("/v1/chat/completions", json={**HELLO, "logprobs": True, "top_logprobs": 500}),
        400,
        param="top_logprobs",
    )
    refused(http.post("/v1/chat/completions", json={**HELLO, "top_logprobs": 5}), 400, param="top_logprobs")


def test_longer_than_the_context(http: httpx.Client) -> None:
    refused(http.post("/v1/chat/completions", json=chat(user("word " * 20000))), 400)
    refused(http.post("/v1/chat/completions", json={**HELLO, "max_tokens": 2**31 - 1}), 400)
    assert (
        content(http.post("/v1/chat/completions", json={"messages": [user("Hello!")], "temperature": 0})) == HELLO_SAID
    )


def test_null_means_not_given(http: httpx.Client) -> None:
    names = "top_p top_k min_p seed stop n presence_penalty frequency_penalty logprobs top_logprobs min_tokens"
    names += " ignore_eos stream stream_options tools user"
    assert content(http.post("/v1/chat/completions", json={**HELLO, **dict.fromkeys(names.split())})) == HELLO_SAID


def test_question_is_what_the_picture_is_asked(http: httpx.Client) -> None:
    url = url_of(one("yellow", "triangle"))
    assert (
        content(http.post("/v1/chat/completions", json=ask(url, "What color is the triangle?")))
        == "The triangle is yellow."
    )
    assert content(http.post("/v1/chat/completions", json=ask(url, DESCRIBE))) == "A yellow triangle."
