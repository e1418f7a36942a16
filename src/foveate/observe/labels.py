"""What metrics are made of: their kinds, the labels they may have with all values of each, and the bounds of their buckets.

Every label takes its values from a closed set, so that no client can make series. Times are seconds and sizes are bytes.
"""

from __future__ import annotations

from typing import Final, Literal, get_args

import msgspec

from foveate.core.budget import FIELDS
from foveate.core.errors import error_classes
from foveate.core.errors.media import URL_RULES
from foveate.core.stages import STAGES, Modality
from foveate.decisions.budget import SERVER_LIMITS
from foveate.decisions.canary import Fault
from foveate.decisions.objectives import OBJECTIVES, WINDOWS
from foveate.observe.gpu import GPUS_MAX
from foveate.observe.processes import PROCESS_KINDS
from foveate.observe.records import OUTCOMES, TOPOLOGIES

FetchOutcome = Literal["fetched", "not_modified", "refused", "rejected", "too_large", "failed", "timeout", "cancelled"]
FETCH_OUTCOMES: Final[tuple[FetchOutcome, ...]] = get_args(FetchOutcome)
CacheName = Literal["processor", "encoder"]
"""Those whose keys are contents. The media cache is apart: its keys are URLs, and its entries' time runs out."""
CacheGroup = CacheName | Literal["media"]
COMPARED: Final = ("compared", "rows_differ", "not_finite", "failed", "skipped")
CANARY_ENDINGS: Final = ("promoted", "rolled_back", "refused", *get_args(Fault))
ScaleDecision = Literal["more", "fewer", "failed"]
SCALE_DECISIONS: Final[tuple[ScaleDecision, ...]] = get_args(ScaleDecision)
CARRIED: Final = ("images", "pixels", "frames", "media_bytes", "visual_tokens", "text_tokens", "output_tokens")
"""What requests carry: of each a histogram, a request, and a counter, which is the sum of it."""
Kind = Literal["counter", "gauge", "histogram"]


class Label(msgspec.Struct, frozen=True):
    """A label and all the values it can take; ``settings`` where these are names that the operator gave, of the setting so called."""

    name: str
    values: tuple[str, ...] = ()
    settings: str = ""


class Metric(msgspec.Struct, frozen=True):
    """One metric. ``read`` tells that its value is read from its owner at scrape time instead of being counted here."""

    section: str
    name: str
    kind: Kind
    help: str
    labels: tuple[Label, ...] = ()
    buckets: tuple[float, ...] = ()
    read: bool = False


MODALITY: Final = Label("modality", get_args(Modality))
ENDED_MODALITY: Final = Label("modality", (*get_args(Modality), "unknown"))
"""``unknown``: refused before the body was understood."""
TOPOLOGY: Final = Label("topology", TOPOLOGIES)
OUTCOME: Final = Label("outcome", OUTCOMES)
RULE: Final = Label("rule", URL_RULES)
PROCESS: Final = Label("process", PROCESS_KINDS)
GPU: Final = Label("gpu", tuple(map(str, range(GPUS_MAX))))
STAGE: Final = Label("stage", STAGES)
ITEM_STAGE: Final = Label("stage", STAGES[1:7])
CODE: Final = Label("code", tuple(sorted(error_classes())))
WINDOW: Final = Label("window", tuple(WINDOWS))
OBJECTIVE: Final = Label("objective", OBJECTIVES)
VERDICT: Final = Label("verdict", ("good", "bad"))
RELOAD: Final = Label("outcome", ("reloaded", "refused"))
UPSTREAM_OUTCOMES: Final = ("answered", "refused", "busy", "failed", "cancelled")
OTHER: Final = "other"
LIMIT: Final = Label("limit", (*(field.name for field in FIELDS), *SERVER_LIMITS, OTHER))
"""What a rejection may name: a field of a tier, or a setting that holds for all of them."""

SECONDS: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0)
LAG_SECONDS: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)
BATCH: Final = (1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 48.0, 64.0, 128.0, 256.0)
IMAGES: Final = (1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 64.0)
PIXELS: Final = tuple(1e6 * size for size in (0.05, 0.1, 0.25, 0.5, 1, 2, 4, 8, 16, 32, 64, 128))
FRAMES: Final = (1.0, 2.0, 4.0, 8.0, 16.0, 24.0, 32.0, 48.0, 64.0, 96.0, 128.0, 256.0, 512.0, 1024.0)
BYTES: Final = tuple(float(1 << power) for power in range(12, 28))
TOKENS: Final = tuple(float(1 << power) for power in range(4, 18))
