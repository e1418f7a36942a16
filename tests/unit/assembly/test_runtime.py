"""What a worker takes of its node, by its role and the settings; what is said where Ray is not there."""

from __future__ import annotations

import subprocess
import sys

import pytest

from foveate.assembly.runtime import needs_of
from foveate.core.errors import StartupError
from foveate.runtime.port import WorkerSpec
from foveate.settings import load


def needs(role: str, of: str = "", **flags: str) -> dict[str, float]:
    return dict(needs_of(load(flags))(WorkerSpec(role, 0, "", None, None, None, needs=of)))


def test_a_core_each_and_a_gpu_where_the_weights_live_on_one() -> None:
    assert needs("engine") == needs("encoder") == needs("media") == {"CPU": 1.0}
    on_gpu = {"model.device": "cuda"}
    assert needs("engine", **on_gpu) == needs("encoder", **on_gpu) == {"CPU": 1.0, "GPU": 1.0}
    assert needs("media", **on_gpu) == {"CPU": 1.0}
    assert needs("encoder", **on_gpu, **{"topology.encoder_device": "cpu"}) == {"CPU": 1.0}


def test_what_was_set_replaces_it() -> None:
    flags = {"runtime.encoder_needs": "GPU=0.5,l4=1", "model.device": "cuda"}
    assert needs("encoder", **flags) == {"GPU": 0.5, "l4": 1.0}


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_engines_that_are_split_by_what_they_do(role: str) -> None:
    flags = {"runtime.prefill_needs": "prefill=1", "runtime.decode_needs": "decode=1"}
    assert needs("engine", role, **flags) == {role: 1.0}
    assert needs("engine", **flags) == {"CPU": 1.0}


@pytest.mark.parametrize("wrong", ["GPU", "GPU=one", "=1", "a b=1"])
def test_what_is_no_need_is_refused(wrong: str) -> None:
    with pytest.raises(StartupError, match="NAME=AMOUNT"):
        load({"runtime.engine_needs": wrong})


def test_without_ray_it_says_what_to_install() -> None:
    program = "import sys; sys.modules['ray'] = None; import foveate.runtime.ray.runtime"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "pip install 'foveate[ray]'" in ended.stderr
