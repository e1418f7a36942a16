"""From a validated body to :class:`foveate.core.request.Request`: the rules between fields, and what each content part
refers to.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from foveate.api import parameters
from foveate.api.convert_sampling import sampling, truncation
from foveate.api.convert_tools import calls, tool_use
from foveate.api.invalid import refused_at
from foveate.api.references import References
from foveate.api.schema import (
    ChatRequest,
    CompletionRequest,
    ImageContent,
    ImageEmbeds,
    ImageEmbedsContent,
    ImageUrl,
    InputVideo,
    InputVideoContent,
    MediaIo,
    Message,
    ProcessorKwargs,
    ProcessorSize,
    TextContent,
    VideoContent,
    VideoSampling,
    VideoUrl,
)
from foveate.api.schema_generation import Generation, StreamOptions
from foveate.core.budget import Caller
from foveate.core.errors import InvalidParameter, ModelNotFound
from foveate.core.limits import SCHEME_CHARACTERS_MAX
from foveate.core.media import Detail, EmbedsRef, ProcessorOptions
from foveate.core.request import ImagePart, Part, Request, TextPart, Turn, VideoPart

_COMPLETION_TOKENS_DEFAULT: Final = 16
_SHOWN_CHARACTERS_MAX: Final = 100


class Arrival(msgspec.Struct, frozen=True):
    """What is known of a request apart from its body. ``inline`` is the number of pictures that a media worker took out
    of the body.
    """

    id: str
    received_at: float
    models: tuple[str, ...]
    inline: int = 0
    caller: Caller = Caller()


def chat(body: ChatRequest, arrival: Arrival) -> Request:
    """Return the request that a chat body asks for. Raises Refused."""
    parameters.check_extras(body.model_extra, parameters.BODY, own=ChatRequest.model_fields)
    _check_stream_options(body)
    if body.top_logprobs is not None and not body.logprobs:
        raise InvalidParameter("top_logprobs needs logprobs to be true.", param="top_logprobs")
    limits = {limit for limit in (body.max_tokens, body.max_completion_tokens) if limit is not None}
    if len(limits) > 1:
        raise InvalidParameter("max_tokens and max_completion_tokens differ; give one of them.", param="max_tokens")
    turns = _Turns(arrival.inline, _video_sampling(body))
    return Request(
        id=arrival.id,
        model=served(body.model, arrival),
        kind="chat",
        sampling=sampling(
            body, tokens_max=limits.pop() if limits else 0, logprobs=(body.top_logprobs or 0) if body.logprobs else None
        ),
        received_at=arrival.received_at,
        turns=tuple(turns.turn(message, f"messages[{at}]") for at, message in enumerate(body.messages)),
        stream=bool(body.stream),
        include_usage=_include_usage(body),
        continuous_usage=_continuous_usage(body),
        caller=arrival.caller,
        processor=_processor(body),
        truncation=truncation(body),
        tool_use=tool_use(body),
    )


def completion(body: CompletionRequest, arrival: Arrival) -> Request:
    """Return the request that a completion body asks for. Raises Refused."""
    parameters.check_extras(body.model_extra, parameters.BODY, own=CompletionRequest.model_fields)
    _check_stream_options(body)
    return Request(
        id=arrival.id,
        model=served(body.model, arrival),
        kind="completion",
        sampling=sampling(body, tokens_max=body.max_tokens or _COMPLETION_TOKENS_DEFAULT, logprobs=body.logprobs),
        received_at=arrival.received_at,
        prompt=body.prompt if isinstance(body.prompt, str) else body.prompt[0],
        stream=bool(body.stream),
        include_usage=_include_usage(body),
        continuous_usage=_continuous_usage(body),
        caller=arrival.caller,
        truncation=truncation(body),
    )


def served(model: str | None, arrival: Arrival) -> str:
    """Return the model that is asked for. Raises ModelNotFound."""
    if model is None:
        return arrival.models[0]
    if model not in arrival.models:
        models = ", ".join(arrival.models)
        raise ModelNotFound(
            f"The model {model[:_SHOWN_CHARACTERS_MAX]!r} does not exist here. Served: {models}.", param="model"
        )
    return model


def _check_stream_options(body: Generation) -> None:
    if body.stream_options is None:
        return
    if not body.stream:
        raise InvalidParameter("stream_options needs stream to be true.", param="stream_options")
    parameters.check_extras(
        body.stream_options.model_extra, parameters.STREAM_OPTIONS, own=StreamOptions.model_fields, at="stream_options."
    )


def _include_usage(body: Generation) -> bool:
    return body.stream_options is not None and bool(body.stream_options.include_usage)


def _continuous_usage(body: Generation) -> bool:
    """vLLM, whose option it is, ignores it without the last chunk's usage."""
    return _include_usage(body) and body.stream_options is not None and bool(body.stream_options.continuous_usage_stats)


def _video_sampling(body: ChatRequest) -> VideoSampling:
    given = body.media_io_kwargs
    if given is None:
        return VideoSampling()
    at = "media_io_kwargs."
    parameters.check_extras(given.model_extra, parameters.MEDIA_IO, own=MediaIo.model_fields, at=at)
    if given.video is None:
        return VideoSampling()
    parameters.check_extras(given.video.model_extra, {}, own=VideoSampling.model_fields, at=f"{at}video.")
    return given.video


def _processor(body: ChatRequest) -> ProcessorOptions:
    given = body.mm_processor_kwargs
    if given is None:
        return ProcessorOptions()
    at = "mm_processor_kwargs."
    parameters.check_extras(given.model_extra, parameters.PROCESSOR, own=ProcessorKwargs.model_fields, at=at)
    size = given.size or ProcessorSize()
    parameters.check_extras(size.model_extra, {}, own=ProcessorSize.model_fields, at=f"{at}size.")
    return ProcessorOptions(given.min_pixels, given.max_pixels, size.shortest_edge, size.longest_edge)


class _Turns:
    """Converts messages in order, counting the media of the request. ``video`` holds for videos that do not say otherwise."""

    def __init__(self, inline: int, video: VideoSampling) -> None:
        self._references = References(inline)
        self._video = video
        self._media = 0

    def turn(self, message: Message, at: str) -> Turn:
        if message.model_extra:
            parameters.check_extras(message.model_extra, parameters.MESSAGE, own=Message.model_fields, at=f"{at}.")
        role = "system" if message.role == "developer" else message.role
        if message.tool_calls and role != "assistant":
            raise refused_at(f"{at}.tool_calls", f"{at}.tool_calls belong to the role assistant.")
        called = calls(message.tool_calls, at)
        if message.content is None and role != "assistant":
            raise refused_at(f"{at}.content", f"{at}.content is required for the role {message.role}.")
        return Turn(role, self._parts(message.content, at), called, message.tool_call_id or "")

    def _parts(self, content: str | list[Any] | None, at: str) -> tuple[Part, ...]:
        if content is None:
            return ()
        if isinstance(content, str):
            return (TextPart(content),)
        parts: list[Part] = []
        for index, part in enumerate(content):
            where = f"{at}.content[{index}]"
            if part.model_extra:
                parameters.check_extras(part.model_extra, parameters.PART, own=type(part).model_fields, at=f"{where}.")
            if isinstance(part, TextContent):
                parts.append(TextPart(part.text))
                continue
            parts.append(self._medium(part, where, index))
            self._media += 1
        return tuple(parts)

    def _medium(
        self, part: ImageContent | VideoContent | InputVideoContent | ImageEmbedsContent, where: str, index: int
    ) -> ImagePart | VideoPart:
        if isinstance(part, ImageContent):
            return self._image(part, where, index)
        return (
            self._embeds(part, where, index) if isinstance(part, ImageEmbedsContent) else self._clip(part, where, index)
        )

    def _embeds(self, part: ImageEmbedsContent, where: str, index: int) -> ImagePart:
        grid: tuple[int, ...] | str = ()
        param = f"{where}.image_embeds"
        data = part.image_embeds
        if isinstance(data, ImageEmbeds):
            parameters.check_extras(data.model_extra, {}, own=ImageEmbeds.model_fields, at=f"{param}.")
            given = data.image_grid_thw
            grid = () if given is None else given if isinstance(given, str) else tuple(given)
            data = data.image_embeds
            param += ".image_embeds"
        return ImagePart(
            self._media, param, EmbedsRef(self._references.data(data, param, index, part.uuid), grid), uuid=part.uuid
        )

    def _image(self, part: ImageContent, where: str, index: int) -> ImagePart:
        detail: Detail = "auto"
        url: str | None
        param = f"{where}.image_url"
        if isinstance(part.image_url, ImageUrl):
            parameters.check_extras(
                part.image_url.model_extra, parameters.IMAGE_URL, own=ImageUrl.model_fields, at=f"{param}."
            )
            param += ".url"
            detail = part.image_url.detail or "auto"
            url = part.image_url.url
        else:
            url = part.image_url
        return ImagePart(self._media, param, self._references.of(url, param, index, part.uuid), detail, part.uuid)

    def _clip(self, part: VideoContent | InputVideoContent, where: str, index: int) -> VideoPart:
        sampling = self._video
        param = f"{where}.{part.type}"
        url: str | None
        if isinstance(part, InputVideoContent):
            sampling = part.input_video
            parameters.check_extras(
                sampling.model_extra, parameters.INPUT_VIDEO, own=InputVideo.model_fields, at=f"{param}."
            )
            param += ".data"
            url = part.input_video.data
            if ":" not in url[:SCHEME_CHARACTERS_MAX]:
                url = f"data:;base64,{url}"
        elif isinstance(part.video_url, VideoUrl):
            sampling = part.video_url
            parameters.check_extras(
                sampling.model_extra, parameters.VIDEO_URL, own=VideoUrl.model_fields, at=f"{param}."
            )
            param += ".url"
            url = part.video_url.url
        else:
            url = part.video_url
        return VideoPart(
            self._media,
            param,
            self._references.of(url, param, index, part.uuid),
            part.uuid,
            num_frames=sampling.num_frames or self._video.num_frames,
            fps=sampling.fps or self._video.fps,
        )
