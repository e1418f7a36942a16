"""The count of JSON values, against a parser's."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from foveate.api.structure import STRUCTURE_MAX, check_structure, structure
from foveate.core.errors import InvalidParameter


def made(random_: random.Random, depth: int) -> Any:
    kind = random_.randrange(4 if depth else 2)
    if kind == 0:
        return "".join(random_.choice('{[,"\\:ab\n') for _ in range(random_.randrange(12)))
    if kind == 1:
        return random_.randrange(100)
    if kind == 2:
        return [made(random_, depth - 1) for _ in range(random_.randrange(8))]
    return {f'{key},["\\': made(random_, depth - 1) for key in range(random_.randrange(8))}


def marks(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + max(0, len(value) - 1) + sum(map(marks, value.values()))
    if isinstance(value, list):
        return 1 + max(0, len(value) - 1) + sum(map(marks, value))
    return 0


@pytest.mark.parametrize("seed", range(20))
def test_marks_in_strings_do_not_count(seed: int) -> None:
    random_ = random.Random(seed)
    value = [made(random_, 4), "{[," * STRUCTURE_MAX]
    assert structure(json.dumps(value).encode()) == marks(value)


def test_few_marks_are_not_worth_looking_at() -> None:
    assert structure(b'["{{{"]') == 4


@pytest.mark.parametrize("small", [b"[],", b"1,", b'"",', b'{"a":1},', b'"\\"",'])
def test_too_many_values(small: bytes) -> None:
    fits = b"[" + small * (STRUCTURE_MAX // 3) + b"1]"
    check_structure(fits)
    with pytest.raises(InvalidParameter):
        check_structure(b"[" + small * (STRUCTURE_MAX * 2) + b"1]")


def test_a_long_text_of_code_passes() -> None:
    check_structure(json.dumps({"content": '{"a": [1, "\\"], "b": {}}\n' * 10_000}).encode())
