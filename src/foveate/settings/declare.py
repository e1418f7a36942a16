"""How a setting is declared: its default, help, bounds and flag in one line, and the forms that its text may take."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, Literal, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, JsonValue, ValidationInfo, field_validator

KiB, MiB, GiB = 2**10, 2**20, 2**30
_UNITS: Final = {"": 1, "B": 1, "KIB": KiB, "MIB": MiB, "GIB": GiB, "KB": 10**3, "MB": 10**6, "GB": 10**9}


def parse_bytes(value: object) -> object:
    """Return bytes from text such as ``16MiB``; what is not text passes. Raises ValueError."""
    if not isinstance(value, str):
        return value
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", value)
    if match is None or match[2].upper() not in _UNITS:
        raise ValueError("expected bytes, for example 1048576, 16MiB or 2GiB")
    return int(float(match[1]) * _UNITS[match[2].upper()])


def parse_list(value: object) -> object:
    """Let flags and environment give a list as ``a,b,c``."""
    if isinstance(value, str):
        return [entry.strip() for entry in value.split(",") if entry.strip()]
    if not isinstance(value, list | tuple) or any(isinstance(entry, bool) for entry in value):
        raise ValueError("expected a list, or text with commas")
    return value


def _parse_formats(value: object) -> object:
    """As :func:`parse_list`, but not empty. Raises ValueError."""
    value = parse_list(value)
    if not value:
        raise ValueError("expected at least one format; to take no pictures set max_images to 0")
    return value


def _parse_device(value: object) -> object:
    """Refuse what names no device, before anything is loaded on it. Raises ValueError."""
    if isinstance(value, str) and re.fullmatch(r"cpu|cuda(:\d+)?", value) is None:
        raise ValueError(f"expected cpu, cuda or cuda:N, not {value!r}")
    return value


def _parse_cpus(value: object) -> object:
    """As :func:`parse_list`; ``4-7`` are all cores from the first to the second, as taskset and cpusets write it. Raises ValueError."""
    cores: list[object] = []
    for entry in parse_list(value):  # type: ignore[attr-defined]
        text = str(entry).strip()
        match = re.fullmatch(r"(\d{1,6})(?:-(\d{1,6}))?", text)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if first > last:
            raise ValueError(f"expected cores such as 0,1 or 4-7, not {text!r}")
        cores += range(first, last + 1)
    return cores


def _parse_class(value: object) -> object:
    """Refuse what is no ``package.module:Class``. Raises ValueError."""
    if isinstance(value, str) and re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", value) is None:
        raise ValueError(f"expected package.module:Class, not {value!r}")
    return value


Bytes = Annotated[int, BeforeValidator(parse_bytes)]
Names = Annotated[tuple[str, ...], BeforeValidator(parse_list)]
PictureFormat = Literal["jpeg", "png", "webp", "gif", "bmp", "tiff", "avif"]
Formats = Annotated[tuple[PictureFormat, ...], BeforeValidator(_parse_formats)]
Ports = Annotated[tuple[int, ...], BeforeValidator(parse_list)]
Cpus = Annotated[tuple[int, ...], BeforeValidator(_parse_cpus)]
Device = Annotated[str, BeforeValidator(_parse_device)]
ClassName = Annotated[str, BeforeValidator(_parse_class)]


def setting(
    default: Any,
    help_text: str,
    *,
    flag: str | None = None,
    low: float | None = None,
    high: float | None = None,
    pattern: str | None = None,
    reloads: bool = False,
    path: bool = False,
    repeats: bool = False,
) -> Any:
    """Declare one setting. ``low`` and ``high`` are inclusive; ``flag`` replaces the flag ``--<section>-<name>``.

    ``reloads``: a reload brings a changed value into force; every other setting waits for a restart.
    ``path``: it names a file or directory, in a settings file relative to that file. ``repeats``: its flag may be given several times.
    """
    extra: dict[str, JsonValue] = {"flag": flag, "reloads": reloads, "path": path, "repeats": repeats}
    return Field(default, description=help_text, ge=low, le=high, pattern=pattern, json_schema_extra=extra)


class Section(BaseModel):
    """A group of settings. Immutable, and closed: what it does not declare is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @field_validator("*", mode="before")
    @classmethod
    def _no_truth_for_numbers(cls, value: object, info: ValidationInfo) -> object:
        annotation = cls.model_fields[info.field_name or ""].annotation
        if isinstance(value, bool) and {"on", "off"} <= set(get_args(annotation)):
            return "on" if value else "off"  # which is what YAML makes of these words without quotes
        if isinstance(value, bool) and annotation is not bool:
            raise ValueError(f"{str(value).lower()} is not a value it can have")
        return value
