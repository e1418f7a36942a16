"""Settings of the runtime: whether workers are processes of this machine or of a Ray cluster's nodes."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator

from foveate.settings.declare import Section, parse_list, setting


def _judged(given: tuple[str, ...]) -> tuple[str, ...]:
    """Return them as they are. Raises ValueError unless each is ``NAME=AMOUNT``."""
    for one in given:
        if re.fullmatch(r"[A-Za-z][A-Za-z0-9_.:-]*=\d+(\.\d+)?", one) is None:
            raise ValueError(f"expected NAME=AMOUNT, such as CPU=2 or GPU=1, not {one!r}")
    return given


Needs = Annotated[tuple[str, ...], BeforeValidator(parse_list), AfterValidator(_judged)]


class RuntimeSettings(Section):
    """Where worker processes run (docs/ray.md)."""

    kind: Literal["local", "ray"] = setting(
        "local",
        "local: workers are processes of this machine. ray: of the nodes of a Ray cluster, which needs pip install 'foveate[ray]'.",
        flag="--runtime",
    )
    ray_address: str = setting(
        "auto",
        "The cluster: auto, the one that RAY_ADDRESS names or that this machine is a node of; or HOST:PORT of its head.",
    )
    media_needs: Needs = setting(
        ("CPU=1",), "What a media worker takes of its node, by Ray's names of resources: NAME=AMOUNT, comma-separated."
    )
    encoder_needs: Needs = setting(
        (), "Of an encode worker. Default: CPU=1, and GPU=1 where topology.encoder_device is a GPU."
    )
    engine_needs: Needs = setting((), "Of an engine process. Default: CPU=1, and GPU=1 where model.device is a GPU.")
    prefill_needs: Needs = setting(
        (), "Of a prefill worker. Default: CPU=1, and GPU=1 where topology.prefill_device is a GPU."
    )
    decode_needs: Needs = setting(
        (), "Of a token-decode worker. Default: CPU=1, and GPU=1 where topology.decode_device is a GPU."
    )
