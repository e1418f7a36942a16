"""Every error class of the core gets its answer."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from foveate.api import errors
from foveate.core.errors import (
    ArenaFull,
    EncodeFailed,
    FetchFailed,
    FoveateError,
    Kind,
    MediaTooLarge,
    Overloaded,
    QueueFull,
    Refused,
    StartupError,
    error_classes,
)


@pytest.mark.parametrize("kind", error_classes().values(), ids=lambda kind: kind.__name__)
def test_every_class(kind: type[FoveateError]) -> None:
    error = kind(detail="/srv/secret 10.0.0.1", param="messages[0]")
    status = errors.status(error)
    body = json.loads(errors.body(error))
    headers = dict(errors.headers(error))
    later = {"retry_after_seconds": int(headers[b"retry-after"])} if b"retry-after" in headers else {}
    assert body == {
        "error": {
            "message": kind.sentence, "type": body["error"]["type"], "param": "messages[0]", "code": kind.code, "status": status,
            "retryable": kind.retryable, **later,
        }
    }  # fmt: skip
    if issubclass(kind, Refused):
        assert 400 <= status < 500
        types = {401: "authentication_error", 403: "permission_error"}
        assert body["error"]["type"] == types.get(status, "invalid_request_error")
        assert headers == ({b"www-authenticate": b"Bearer"} if status == 401 else {})
    elif issubclass(kind, Overloaded):
        assert status in (429, 503)
        assert headers == {b"retry-after": b"1"}
        assert body["error"]["type"] == "overloaded_error"
    else:
        assert status >= 500
        assert (headers.get(b"x-should-retry") == b"false") is not kind.retryable


def test_every_kind_has_one_status() -> None:
    assert set(errors.STATUS) == set(Kind)
    assert len(set(errors.STATUS.values())) == len(Kind)


def test_what_is_known_of_a_limit_is_told() -> None:
    error = MediaTooLarge("Too large.", param="p", part=3, limit_name="max_item_bytes", limit=10, actual=11.5)
    assert json.loads(errors.body(error))["error"] == {
        "message": "Too large.", "type": "invalid_request_error", "param": "p", "code": "media_too_large", "status": 413,
        "retryable": False, "part": 3, "limit_name": "max_item_bytes", "limit": 10, "actual": 11.5,
    }  # fmt: skip


def test_the_part_is_its_index_in_the_message() -> None:
    error = MediaTooLarge(param="messages[2].content[5].image_url.url", part=0)
    assert json.loads(errors.body(error))["error"]["part"] == 5


def test_retry_after_is_whole_seconds_and_never_none() -> None:
    assert errors.headers(QueueFull(retry_after_seconds=2.1)) == [(b"retry-after", b"3")]
    assert errors.headers(ArenaFull(retry_after_seconds=0.0)) == [(b"retry-after", b"1")]
    assert errors.headers(FetchFailed(retry_after_seconds=9.5)) == [(b"retry-after", b"10")], (
        "a host that is left alone"
    )


def test_clients_are_told_not_to_repeat_what_will_fail_again() -> None:
    assert errors.headers(EncodeFailed()) == [(b"x-should-retry", b"false")]
    assert errors.headers(FetchFailed()) == []
    assert errors.status(FetchFailed()) == 502


def test_the_docs_list_every_error() -> None:
    text = (Path(__file__).parents[3] / "docs" / "api.md").read_text()
    listed = re.findall(r"^\| (\d{3}) \| `(\w+)` \| (yes|no) \|", text, re.MULTILINE)
    kinds = [kind for kind in error_classes().values() if kind not in (StartupError, Refused, Overloaded)]
    assert listed == sorted(
        (str(errors.STATUS[kind.kind]), kind.code, "yes" if kind.retryable else "no") for kind in kinds
    )
