"""What vLLM's source says it takes is what vLLM takes, and settings that it does not take are refused before anything is imported."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import pytest

pytest.importorskip("vllm")

from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.reasoning import ReasoningParserManager
from vllm.tool_parsers import ToolParserManager

from foveate.assembly.checks import check
from foveate.core.errors import StartupError
from foveate.engines.vllm import declared
from foveate.settings import load


def test_the_source_says_what_there_is() -> None:
    assert declared.arguments() == {field.name for field in dataclasses.fields(AsyncEngineArgs)}
    assert declared.parsers("tool_call_parser") == set(ToolParserManager.list_registered())
    assert declared.parsers("reasoning_parser") == set(ReasoningParserManager.list_registered())


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"vllm.args": "max_model_length=4096"}, "vLLM has no argument max_model_length (setting vllm.args). Did you mean max_model_len?"),
        ({"vllm.args": "max_model_len"}, "'max_model_len' is not name=value"),
        ({"vllm.tool_call_parser": "hermess"}, "vLLM has no parser hermess (setting vllm.tool_call_parser). Did you mean hermes?"),
        ({"vllm.reasoning_parser": "none_of_them"}, "vLLM has no parser none_of_them (setting vllm.reasoning_parser)."),
    ],
)  # fmt: skip
def test_what_vllm_does_not_have_is_refused_with_its_name(flags: dict[str, str], said: str) -> None:
    with pytest.raises(StartupError) as refused:
        check(load({"engine.kind": "vllm", **flags}))
    assert said in refused.value.public
    check(load(flags))  # another engine does not look at it


def test_what_it_has_passes_and_nothing_is_imported_for_it() -> None:
    flags = {
        "engine.kind": "vllm",
        "vllm.args": "max_model_len=4096",
        "vllm.tool_call_parser": "hermes",
        "vllm.reasoning_parser": "qwen3",
    }
    program = f"""
import sys
from foveate.assembly.checks import check
from foveate.settings import load
check(load({flags}))
print([name for name in ("vllm", "torch", "transformers") if name in sys.modules])
"""
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert found.stdout == "[]\n"


def test_where_the_source_reads_otherwise_nothing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(declared, "_ARGUMENTS", "engine/moved.py")
    monkeypatch.setattr(declared, "_PARSERS", {"tool_call_parser": ("version.py", "_TOOL_PARSERS_TO_REGISTER")})
    declared.check_arguments(["anything"])
    declared.check_parser("tool_call_parser", "anything")
