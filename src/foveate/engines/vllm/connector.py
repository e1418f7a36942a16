"""A plug-in of vLLM's: an encoder-cache connector that takes embeddings by name from files, so that requests carry none.

Used by Foveate's own engine, whose front end keeps memory files without a name, and by any ``vllm serve`` beside a Foveate that fills a
directory (docs/vllm.md). vLLM makes one in its scheduler, which finds, checks and holds the files, and one in each worker, which maps them.
A picture whose file is missing or does not fit costs its own request: vLLM's workers would end on it.

``ec_connector_extra_config``: either ``store``, a directory, or ``pid``, the process whose descriptors the requests name; ``wait_seconds``,
how long a request waits for a file; ``checksum``, whether files are read once and compared before they are used.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from vllm.distributed.ec_transfer.ec_connector.base import ECConnectorBase, ECConnectorMetadata, ECConnectorRole
from vllm.logger import init_logger
from vllm.platforms import current_platform

from foveate.engines.embedding_file import HEADER_BYTES, NO_GRID, EmbeddingFault, Grid, digest_of, open_file
from foveate.engines.vllm.pins import Pins, Sought

_LOG = init_logger("vllm.foveate")

PARAMS: Final = "ec_transfer_params"
"""The member of a request's ``extra_args`` that vLLM gives to the connector: here, descriptors by name."""
_INLINE: Final = ("image_embeds", "pixel_values", "video_embeds", "pixel_values_videos")
"""What a picture has that the engine can make its embeddings of by itself."""
_OPTIONS: Final = frozenset(("store", "pid", "wait_seconds", "checksum"))


@dataclass
class Load:
    """One file that a worker maps: ``identifier`` in the encoder cache, rows of ``dtype`` and shape [``rows``, ``width``]."""

    identifier: str
    path: str
    dtype: str
    rows: int
    width: int


@dataclass
class Loads(ECConnectorMetadata):  # type: ignore[misc]
    """What goes from the scheduler to the workers with each step."""

    loads: list[Load] = field(default_factory=list)


class EmbeddingsConnector(ECConnectorBase):  # type: ignore[misc]
    """See the module."""

    def __init__(self, vllm_config: Any, role: ECConnectorRole) -> None:
        """Raises ValueError for a configuration under which it could not work, or wrong embeddings could be used."""
        super().__init__(vllm_config, role)
        if role == ECConnectorRole.SCHEDULER:
            self._gate = Gate(vllm_config)

    # ------------------------------------------------------------------------------------------------------- scheduler

    def ensure_cache_available(self, request: Any, num_computed_tokens: int) -> bool:
        """See vLLM. False puts the request off until the next step."""
        return self._gate.ready(request, num_computed_tokens)

    def take_unavailable_requests(self) -> set[str]:
        """See vLLM: called once for each step that has run."""
        self._gate.pins.step_ended()
        return set(self._gate.failed)

    def has_cache_item(self, identifier: str) -> bool:
        """See vLLM: only what is held, for what merely exists may be gone when a worker looks."""
        return self._gate.pins.get(identifier) is not None

    def update_state_after_alloc(self, request: Any, index: int) -> None:
        """See vLLM: the worker is to have this picture's embeddings in this step."""
        self._gate.load(request.mm_features[index].identifier)

    def build_connector_meta(self, scheduler_output: Any) -> Loads:
        """See vLLM."""
        return Loads(self._gate.step())

    def request_finished(self, request: Any) -> tuple[bool, dict[str, Any] | None]:
        """See vLLM."""
        self._gate.finished(request)
        return False, None

    def shutdown(self) -> None:
        """See vLLM."""
        if self.role == ECConnectorRole.SCHEDULER:
            self._gate.pins.close()

    # ---------------------------------------------------------------------------------------------------------- worker

    def start_load_caches(self, encoder_cache: dict[str, torch.Tensor], **_: Any) -> None:
        """See vLLM."""
        for load in self._get_connector_metadata().loads:
            if load.identifier not in encoder_cache:
                encoder_cache[load.identifier] = mapped(load).to(current_platform.device_type)

    def save_caches(self, encoder_cache: dict[str, torch.Tensor], mm_hash: str, **_: Any) -> None:
        """Nothing is given back: this is a consumer."""


def mapped(load: Load) -> torch.Tensor:
    """Return a file's rows without a copy. Its pages stay until the tensor goes, whatever becomes of the file.

    No descriptor stays open for it, as Python's own mapping would have one: vLLM keeps thousands of small pictures.
    """
    dtype: torch.dtype = getattr(torch, load.dtype)
    ahead, count = HEADER_BYTES // dtype.itemsize, load.rows * load.width
    # Not shared: what torch wrote to it would be nobody else's.
    pages = torch.from_file(load.path, shared=False, size=ahead + count, dtype=dtype)
    return pages[ahead:].view(load.rows, load.width)


class Gate:
    """The scheduler's half: which requests may go on."""

    def __init__(self, vllm_config: Any) -> None:
        """Raises ValueError."""
        options = dict(vllm_config.ec_transfer_config.ec_connector_extra_config)
        self._store: str | None = options.get("store")
        self._pid: int | None = options.get("pid")
        if (self._store is None) == (self._pid is None) or not options.keys() <= _OPTIONS:
            raise ValueError(f"ec_connector_extra_config takes store or pid, wait_seconds and checksum, not {options}")
        self._wait_seconds = float(options.get("wait_seconds", 2.0 if self._store else 0.0))
        self._width = embedding_width(vllm_config)
        self.pins = Pins(checksum=bool(options.get("checksum", self._store is not None)))
        self.failed: dict[str, str] = {}
        """Requests that are to fail, and why."""
        self._waits: dict[str, float] = {}
        self._loads: list[Load] = []

    def ready(self, request: Any, computed: int) -> bool:
        """Whether all embeddings that a request still needs are held. Called in every step, for every request with pictures."""
        user: str = request.request_id
        if user in self.failed:
            return False
        there = True
        for feature in request.mm_features:
            position = feature.mm_position
            if position.offset + position.length <= computed:
                continue  # prefilled
            if inline(feature):
                if (shape := inline_shape(feature)) not in (None, (position.get_num_embeds(), self._width)):
                    return self._fail(
                        user, f"embeddings of shape {shape} for {position.get_num_embeds()} rows of {self._width}"
                    )
                continue
            sought = self._sought(feature)
            try:
                if not self.pins.hold(sought, user, lambda name: self._open(name, request)):
                    there = False
            except EmbeddingFault as fault:
                return self._fail(user, f"the embeddings of {sought.name} are {fault}")
        if there:
            self._waits.pop(user, None)
            return True
        waited = time.monotonic() - self._waits.setdefault(user, time.monotonic())
        if waited >= self._wait_seconds:
            self._fail(user, f"its embeddings were not there within {self._wait_seconds:g} s")
        return False

    def load(self, identifier: str) -> None:
        """Have the workers map a picture's file in the step that is being built."""
        pin = self.pins.load(identifier)
        if pin is not None:  # else the engine makes its embeddings itself
            header = pin.header
            self._loads.append(Load(identifier, pin.path, header.dtype, header.rows, header.width))

    def step(self) -> list[Load]:
        """End the building of a step; return what the workers map in it."""
        self.pins.step_built()
        loads, self._loads = self._loads, []
        return loads

    def finished(self, request: Any) -> None:
        """Let go of all that a request held."""
        self.failed.pop(request.request_id, None)
        self._waits.pop(request.request_id, None)
        for feature in request.mm_features:
            self.pins.leave(feature.identifier, request.request_id)

    def _fail(self, user: str, why: str) -> bool:
        _LOG.warning("request %s fails: %s", user, why)
        self.failed[user] = why
        return False

    def _open(self, name: str, request: Any) -> int:
        """Open the file of a name. A directory's requests have no say in what is opened."""
        if self._store is not None:
            return open_file(os.path.join(self._store, digest_of(name).hex()))
        number = (request.ec_transfer_params or {}).get(name)
        if not isinstance(number, int):
            raise FileNotFoundError(name)
        return open_file(f"/proc/{self._pid}/fd/{number}")

    def _sought(self, feature: Any) -> Sought:
        rows = feature.mm_position.get_num_embeds()
        return Sought(feature.identifier, feature.mm_hash or feature.identifier, rows, self._width, grid_of(feature))


def inline(feature: Any) -> bool:
    """Whether the engine can make a picture's embeddings of what the request carries."""
    return feature.data is not None and any(name in feature.data for name in _INLINE)


def inline_shape(feature: Any) -> tuple[int, ...] | None:
    """Return the shape of embeddings that came with the request for a model with a grid of patches, whose worker ends on a wrong one; None
    where there are none."""
    element = feature.data.get("image_embeds") if "image_grid_thw" in feature.data else None
    return tuple(element.data.shape) if element is not None and isinstance(element.data, torch.Tensor) else None


def grid_of(feature: Any) -> Grid | None:
    """Return the grid that a request says a picture has. None for one of another shape or type, on which vLLM's worker would end."""
    element = (feature.data or {}).get("image_grid_thw")
    if element is None:
        return NO_GRID
    data = element.data
    if not isinstance(data, torch.Tensor) or data.dtype != torch.int64 or data.numel() != 3:
        return None
    frames, high, wide = data.reshape(-1).tolist()
    return frames, high, wide


def embedding_width(vllm_config: Any) -> int:
    """Return how wide the model takes an embedding row, DeepStack levels included. Raises ValueError."""
    model, options = vllm_config.model_config, vllm_config.model_config.multimodal_config
    if options is None:
        raise ValueError("the model takes no pictures")
    vision = getattr(model.hf_config, "vision_config", None)
    levels = len(getattr(vision, "deepstack_visual_indexes", None) or ())
    if levels and not any(options.get_limit_per_prompt(kind) for kind in ("image", "video")):
        raise ValueError(
            "allow one picture or video by --limit-mm-per-prompt: without its tower vLLM takes this model to have no DeepStack"
        )
    return int(model.get_inputs_embeds_size()) * (1 + levels)
