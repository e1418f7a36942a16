"""Every rule that the URL policy may name is known where its refusals are counted."""

from __future__ import annotations

import re
from pathlib import Path

import foveate
from foveate.core.errors import UrlRefused
from foveate.core.errors.media import URL_RULES
from foveate.media.addresses import _V4_RULES, _V6_RULES, METADATA

SOURCE = Path(foveate.__file__).parent


def test_the_rules_are_those_of_the_policy() -> None:
    written = {
        rule for path in SOURCE.rglob("*.py") for rule in re.findall(r"\(rule: ([a-z ]+)\)\.\"", path.read_text())
    }
    addresses = {METADATA, "reserved", *(rule for _, rule in (*_V4_RULES, *_V6_RULES))}
    assert written
    assert written | addresses == set(URL_RULES)


def test_a_refusal_keeps_its_rule_between_processes_and_names_no_other() -> None:
    for rule in URL_RULES:
        error = UrlRefused(f"The media URL leads to an address that is not public (rule: {rule}).").record().error()
        assert isinstance(error, UrlRefused)
        assert error.rule == rule
    assert UrlRefused("An upstream said this (rule: whatever).").rule is None
    assert UrlRefused().rule is None
