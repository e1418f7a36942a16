"""What is counted over all versions of the model does not fall when one of them has gone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from foveate.engines.port import EngineReport
from foveate.journey.roll_out import RollOut
from foveate.journey.serving import Serving


def version(restarts: int, local_pictures: int) -> Serving:
    nothing: Any = None
    engine: Any = SimpleNamespace(report=lambda: (EngineReport("0", True, restarts, 0, 0.0),))

    async def stop() -> None:
        pass

    return Serving(
        "m", nothing, nothing, cast(Any, SimpleNamespace(restarts=restarts)), nothing, engine, restarts=lambda: restarts,
        stop=stop, encoders=cast(Any, SimpleNamespace(local_pictures=local_pictures)),
    )  # fmt: skip


async def test_what_versions_did_that_are_gone_is_counted_on() -> None:
    roll_out = RollOut(version(restarts=1, local_pictures=2))
    gone = version(restarts=3, local_pictures=5)
    roll_out.retiring.append(gone)
    counted = (roll_out.media_restarts, roll_out.engine_restarts, roll_out.local_pictures)
    assert counted == (4, {"0": 4}, 7)
    await roll_out.stop(gone)
    assert roll_out.all == [roll_out.stable]
    assert (roll_out.media_restarts, roll_out.engine_restarts, roll_out.local_pictures) == counted
