"""What is known of one piece of media: where it comes from, what its header says, what the processor made of it."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from foveate.core.memory import Slot, TensorBundle
from foveate.core.stages import Span

Detail = Literal["auto", "low", "high"]


class UrlRef(msgspec.Struct, frozen=True, tag="url"):
    """A reference that needs the network: the client's URL, byte for byte."""

    url: str


class DataRef(msgspec.Struct, frozen=True, tag="data"):
    """A ``data:`` URL that is still text."""

    url: str


class InlineRef(msgspec.Struct, frozen=True, tag="inline"):
    """A ``data:`` URL of a large body that a media worker has already decoded: index into the unpacked body's blobs."""

    index: int


class NamedRef(msgspec.Struct, frozen=True, tag="named"):
    """Media that was sent before under this name (the part's ``uuid``) and is not sent again."""

    name: str


class EmbedsRef(msgspec.Struct, frozen=True, tag="embeds"):
    """A picture's embeddings, which the client computed itself, in place of the picture: where their bytes come from, and their grid (three
    numbers, base64 of a tensor of them, or empty where the model has none).
    """

    source: DataRef | InlineRef | NamedRef
    grid: tuple[int, ...] | str = ()


MediaRef = UrlRef | DataRef | InlineRef | NamedRef | EmbedsRef


def brought(ref: MediaRef) -> UrlRef | DataRef | InlineRef | NamedRef:
    """Return where the bytes come from."""
    return ref.source if isinstance(ref, EmbedsRef) else ref


class Blob(msgspec.Struct, frozen=True):
    """Encoded media bytes in the arena. ``digest`` is the hexadecimal BLAKE3 hash of exactly these bytes (64 characters)."""

    slot: Slot
    digest: str

    @property
    def size(self) -> int:
        """Bytes of encoded media."""
        return self.slot.size


RAW: Final = "raw"
"""The format of a video's frame once it is decoded: RGB bytes, row by row. No probe finds it, so no client can send it."""


class ImageHeader(msgspec.Struct, frozen=True):
    """What an image's header says. ``width`` and ``height`` are as displayed: EXIF orientation is already applied.

    ``format`` is one of :data:`foveate.media.probe.IMAGE_FORMATS`, or :data:`RAW`; ``frames`` is 1 unless the header says otherwise.
    """

    format: str
    width: int
    height: int
    frames: int = 1
    orientation: int = 1

    @property
    def pixels(self) -> int:
        """Decoded pixels of one frame."""
        return self.width * self.height


class ImageOptions(msgspec.Struct, frozen=True, order=True):
    """Per-request choices that change what the processor makes of a picture. Part of every cache key.

    ``pixels_max`` (0: the model's own limit) is what ``detail: low`` lowers. ``several`` tells whether the prompt holds more than one
    picture, for the families that encode a picture differently then (LLaVA-OneVision); the adapter clears it for all others.
    ``pixels_min`` (0: the model's own) is what smaller pictures are scaled up to, where a request may say so.
    ``fit_width`` and ``fit_height`` (0: as it is) are the size that the decoded picture is scaled down to before the processor sees it,
    because a budget says so; no adapter clears them.
    """

    pixels_max: int = 0
    several: bool = False
    fit_width: int = 0
    fit_height: int = 0
    pixels_min: int = 0


class ProcessorOptions(msgspec.Struct, frozen=True):
    """What a request asks of the picture processor, in the words of vLLM's ``mm_processor_kwargs``; None: nothing.

    The first two are pixels of the picture after its scaling. The edges are the processor's own ``size``, whose unit depends on the model.
    """

    min_pixels: int | None = None
    max_pixels: int | None = None
    shortest_edge: int | None = None
    longest_edge: int | None = None


class Appearance(msgspec.Struct, frozen=True):
    """What an operator decides about how pictures look to the model. It changes pixels, so it is part of the processor version.

    ``background`` (red, green, blue) shows through transparency; white, as in viewers and on paper. ``icc_to_srgb``: colours are converted
    from the embedded profile to sRGB. ``truncated_accepted``: a picture whose data end too early is decoded as far as it goes.
    """

    background: tuple[int, int, int] = (255, 255, 255)
    icc_to_srgb: bool = False
    truncated_accepted: bool = False


AS_VIEWERS_SHOW: Final = Appearance()
"""What is used where no operator said otherwise."""


class PreparedImage(msgspec.Struct, frozen=True):
    """What a media worker made of one picture: model inputs in the arena and what the prompt needs to know of them.

    ``replacement`` is the text that stands for the picture in the prompt, ``rows`` the number of embedding rows it becomes
    (the number of image tokens in ``replacement``). ``inputs`` are the vision tower's arguments. ``meta`` holds the small integer
    arrays that the language model needs too (``image_grid_thw``), flattened. ``spans`` are media_decode and mm_processor.
    """

    replacement: str
    rows: int
    inputs: TensorBundle
    meta: dict[str, list[int]]
    spans: tuple[Span, ...]


class EncodedImage(msgspec.Struct, frozen=True):
    """One picture's embeddings in the arena: tensor ``rows`` of shape [n, hidden] and, for DeepStack, ``deep0`` … of the same shape.

    ``spans`` are encoder_queue (up to the start of the batch), vision_encode and embedding_transfer.
    """

    embeddings: TensorBundle
    rows: int
    spans: tuple[Span, ...]


class VideoHeader(msgspec.Struct, frozen=True):
    """What is known of a video before its frames are decoded. ``width`` and ``height`` are as displayed: rotation is already applied.

    ``container`` is one of :data:`foveate.media.headers.container.CONTAINERS`, ``codec`` a decoder's canonical name. ``frames`` and
    ``seconds`` are counted from the packets that are there, not taken from the header; ``more`` says that counting stopped at a limit, so
    that both are lower bounds. ``orientation`` is the EXIF number of what is to be done to a stored frame.
    """

    container: str
    codec: str
    width: int
    height: int
    frames: int
    seconds: float
    orientation: int = 1
    more: bool = False

    @property
    def pixels(self) -> int:
        """Decoded pixels of one frame."""
        return self.width * self.height

    @property
    def fps(self) -> float:
        """Frames a second on average; 0 when there is no time between them."""
        return self.frames / self.seconds if self.seconds > 0 else 0.0


class FramePick(msgspec.Struct, frozen=True, array_like=True):
    """One frame to decode: its time stamp ``pts`` in the stream's own unit, and ``seconds`` from the first frame.

    ``first`` and ``last`` count the stream's packets in the order of the file: the decoder is fed from ``first``, a key frame, and
    ``last`` is the frame's own.
    """

    pts: int
    seconds: float
    first: int
    last: int
