"""``docs/url-policy.md`` tells what the policy does: its examples are run, and so are its settings."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from foveate.core.errors import UrlInvalid, UrlRefused
from foveate.media.policy import UrlPolicy
from foveate.media.proxy import Proxy
from foveate.media.resolve import parse_servers

PAGE = Path("docs/url-policy.md").read_text(encoding="utf-8")
ROWS = [
    (example, answer.strip())
    for rule, examples, answer in re.findall(r"^\| ([^|]+) \| (`[^|]+`) \| ([^|]+)\|$", PAGE, re.MULTILINE)
    if answer.startswith("400")
    for example in re.findall(r"`([^`]+)`", examples)
]


def test_the_table_was_found() -> None:
    assert len(ROWS) > 40


@pytest.mark.parametrize(("example", "answer"), ROWS)
def test_an_example_gets_the_answer_that_the_page_gives(example: str, answer: str) -> None:
    listed = ["img.example"] if "rule: host" in answer else []
    with pytest.raises((UrlRefused, UrlInvalid)) as caught:
        UrlPolicy.of(http_allowed=True, only_hosts=listed).parse(example)
    assert f"`{caught.value.code}`" in answer
    rule = re.search(r"\(rule: [^)]+\)", answer)
    assert (rule[0] if rule else "rule:") in caught.value.public or rule is None
    assert ("rule:" in caught.value.public) == (rule is not None)


@pytest.mark.parametrize("block", re.findall(r"^    fetch:\n(?:      .*\n)+", PAGE, re.MULTILINE))
def test_the_settings_are_valid(block: str, tmp_path: Path) -> None:
    fetch = yaml.safe_load(block)["fetch"]
    if "proxy" in fetch:
        Proxy.of(fetch.pop("proxy"))
    parse_servers(fetch.pop("dns_servers", ()))
    if "file_root" in fetch:
        fetch["file_root"] = str(tmp_path)
    UrlPolicy.of(**fetch)
