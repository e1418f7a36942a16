"""Run one fuzz target under atheris (libFuzzer): ``python -m tests.fuzz.target NAME [libFuzzer options] [corpus directories]``."""

from __future__ import annotations

import importlib
import sys
import warnings

TARGETS = ("media", "videos", "bodies")
_INSTRUMENTED = {
    "media": ("foveate.media", "PIL"),
    "videos": ("foveate.media", "foveate.decisions"),
    "bodies": ("foveate.media", "foveate.api", "foveate.core"),
}


def main() -> None:
    import atheris

    name = sys.argv.pop(1)
    warnings.filterwarnings("ignore", module=r"PIL\.")
    with atheris.instrument_imports(include=list(_INSTRUMENTED[name])):
        target = importlib.import_module(f"tests.fuzz.{name}")

    def mutate(data: bytes, size_max: int, seed: int) -> bytes:
        mutated = atheris.Mutate(data, size_max)
        return target.repaired(mutated) if seed % 4 else mutated

    target.ready()
    atheris.Setup(sys.argv, target.check, custom_mutator=mutate)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
