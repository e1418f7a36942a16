"""What import-linter cannot see: what a process that only needs a little must not load."""

import subprocess
import sys

import pytest


def loaded(statement: str) -> set[str]:
    """Return the top-level modules that a fresh interpreter has loaded after a statement."""
    program = f"import sys\n{statement}\nprint(*sorted({{name.partition('.')[0] for name in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    return set(done.stdout.split())


@pytest.mark.parametrize(
    "statement",
    [
        "import foveate.cli.main",
        "import foveate.settings",
        "import foveate.models",
        "import foveate.runtime.local.runtime",
        "import foveate.observe.observer",
        "import foveate.decisions.batching",
    ],
)
def test_light_code_does_not_load_the_model_libraries(statement: str) -> None:
    assert not loaded(statement) & {"torch", "transformers", "torchvision"}


def test_the_journey_does_not_load_the_web_framework() -> None:
    assert not loaded("import foveate.journey.service") & {"fastapi", "starlette", "uvicorn"}
