from __future__ import annotations

import base64

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from foveate.observe.redact import _KEY, TEXT_MAX, _may_hold_key, redact, redact_text

PAYLOAD = base64.b64encode(bytes(range(256)) * 4).decode()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("nothing to cut: 3 pictures, 12.5 ms?", "nothing to cut: 3 pictures, 12.5 ms?"),
        ("a data:image/png;base64,iVBORw0KGgo= b", "a data:[cut] b"),
        ("DATA:,hello%20world", "data:[cut]"),
        ('{"url":"data:image/jpeg;base64,/9j/4AAQ"}', '{"url":"data:[cut]"}'),
        ("https://example.org/a.png?X-Signature=abc&k=v done", "https://example.org/a.png?[cut] done"),
        ("https://example.org/a.png#fragment", "https://example.org/a.png?[cut]"),
        ("https://user:secret@example.org/a", "https://example.org/a"),
        ("GET /v1/models?key=secret HTTP/1.1", "GET /v1/models?[cut] HTTP/1.1"),
        ("https://example.org/a.png", "https://example.org/a.png"),
        ("Authorization: Bearer abc.def-1", "Authorization: Bearer [cut]"),
        ("Incorrect API key provided: abcd1234. See", "Incorrect API key provided: [cut] See"),
        ('{"api_key": "abcd", "n": 1}', '{"api_key": "[cut]", "n": 1}'),
        ("sk-proj-abcd_1234 is wrong", "sk-[cut] is wrong"),
        ("no key was sent; the api key is missing: risk-free", "no key was sent; the api key is missing: risk-free"),
        ("digest " + "0f" * 32, "digest " + "0f" * 32),
        (f"lost prefix {PAYLOAD}", "lost prefix [cut]"),
    ],
)
def test_what_is_cut_and_what_is_kept(text: str, expected: str) -> None:
    assert redact_text(text) == expected


@given(
    before=st.text("ab :?=/&\n", max_size=20),
    secret=st.text("SECRT0123456789", min_size=8, max_size=40),
    shape=st.sampled_from(
        [
            "data:image/png;base64,{}",
            "https://h.example/p?token={}",
            "/path?token={}",
            "https://u:{}@h.example/",
            "bearer {}",
            "x-api-key: {}",
        ]
    ),
)
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_secret_never_passes(before: str, secret: str, shape: str) -> None:
    assert secret not in redact_text(f"{before} {shape.format(secret)} and more")


@given(
    st.text(st.sampled_from("ab:=? sſkK-BEARERbearer0123,"), max_size=30),
    st.sampled_from(["", "sk-", "\u017fK-", "Bearer ", "api key: ", "password=", "bearer"]),
)
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_no_key_is_missed_by_the_look_before(text: str, begin: str) -> None:
    assert _may_hold_key(f"{text} {begin}{text}") or not _KEY.search(f"{text} {begin}{text}")


def test_values_of_any_shape() -> None:
    nested = {
        "urls": ["data:,x", ("https://h/a?b=c",)],
        "n": 3,
        "none": None,
        "blob": b"1234",
        "deep": [[[[["data:,x"]]]]],
    }
    assert redact(nested) == {
        "urls": ["data:[cut]", ["https://h/a?[cut]"]],
        "n": 3,
        "none": None,
        "blob": "[4 bytes]",
        "deep": [[["[cut]"]]],
    }
    assert redact(ValueError("see data:,x")) == "see data:[cut]"
    assert len(redact([0] * 10_000)) < 100


def test_long_text_is_shortened() -> None:
    shortened = redact_text("a b " * TEXT_MAX)
    assert len(shortened) < TEXT_MAX + 50
    assert shortened.endswith(f"({4 * TEXT_MAX} characters)")
