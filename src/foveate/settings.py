"""Every setting, declared once.

One line gives a setting its flag, environment name, file key, bounds, help and row in ``docs/settings.md``::

    port: int = setting(8000, "TCP port to listen on.", flag="--port", low=0, high=65535)

Read in this order, the first that has a value wins: command-line flags, environment (``FOVEATE_<SECTION>__<NAME>``), the YAML file named by
``--config`` or ``FOVEATE_CONFIG`` (``section: {name: value}``), the default. An unknown key is an error that names the nearest known one.
Sizes take ``MiB``-style suffixes (``16MiB``, ``2GiB``).
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, YamlConfigSettingsSource

from foveate.core.errors import StartupError

KiB, MiB, GiB = 2**10, 2**20, 2**30
_UNITS = {"": 1, "B": 1, "KIB": KiB, "MIB": MiB, "GIB": GiB, "KB": 10**3, "MB": 10**6, "GB": 10**9}
ENV_PREFIX = "FOVEATE_"


def _parse_bytes(value: object) -> object:
    if not isinstance(value, str):
        return value
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", value)
    if match is None or match[2].upper() not in _UNITS:
        raise ValueError("expected bytes, for example 1048576, 16MiB or 2GiB")
    return int(float(match[1]) * _UNITS[match[2].upper()])


def _parse_list(value: object) -> object:
    """Let flags and environment give a list as ``a,b,c``."""
    return [entry.strip() for entry in value.split(",") if entry.strip()] if isinstance(value, str) else value


Bytes = Annotated[int, BeforeValidator(_parse_bytes)]
Names = Annotated[tuple[str, ...], BeforeValidator(_parse_list)]
Ports = Annotated[tuple[int, ...], BeforeValidator(_parse_list)]


def setting(
    default: Any, help_text: str, *, flag: str | None = None, low: float | None = None, high: float | None = None
) -> Any:
    """Declare one setting. ``low`` and ``high`` are inclusive; ``flag`` replaces the flag ``--<section>-<name>``."""
    return Field(default, description=help_text, ge=low, le=high, json_schema_extra={"flag": flag} if flag else None)


class Section(BaseModel):
    """A group of settings. Immutable, and closed: what it does not declare is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class ServerSettings(Section):
    """Where the server listens and how it ends."""

    host: str = setting("127.0.0.1", "Address to listen on.", flag="--host")
    port: int = setting(8000, "TCP port to listen on; 0 picks a free one.", flag="--port", low=0, high=65535)
    body_bytes_max: Bytes = setting(64 * MiB, "Largest request body accepted.", low=1024)
    inline_bytes_min: Bytes = setting(
        256 * KiB, "Bodies from this size on are parsed by a media worker instead of the gateway.", low=1024
    )
    keep_alive_seconds: int = setting(75, "How long an idle client connection stays open.", low=1, high=3600)
    drain_seconds: float = setting(
        30.0, "After SIGTERM, how long open streams may go on before they are ended.", low=0, high=3600
    )
    request_seconds_max: float = setting(
        300.0, "Deadline of one request, from its last body byte to its last token.", low=0.1, high=86400
    )
    start_seconds_max: float = setting(
        600.0, "How long workers and the engine may take to load before start-up fails.", low=1, high=7200
    )


class ModelSettings(Section):
    """Which model, and how its weights are held."""

    path: str | None = setting(
        None, "Model to serve: a local directory or a hub id. Default: the small model that ships with Foveate.",
        flag="--model",
    )  # fmt: skip
    served_name: str | None = setting(
        None, "Name clients use for the model. Default: the hub id, or the directory's last part.",
        flag="--served-model-name",
    )  # fmt: skip
    device: str = setting("cpu", "Where weights live: cpu, cuda or cuda:N.", flag="--device")
    dtype: Literal["auto", "float32", "bfloat16"] = setting(
        "float32", "Weights and computation. float32 gives the same tokens alone and in any batch.", flag="--dtype"
    )


class EngineSettings(Section):
    """The embedded engine."""

    queue_depth_max: int = setting(256, "Requests that may wait for the language model before 429.", low=1, high=65536)
    batch_size_max: int = setting(32, "Sequences decoded together.", low=1, high=1024)
    prefill_chunk_tokens: int = setting(
        512, "Prompt tokens prefilled between two token-decode steps of running streams.", low=16, high=65536
    )
    kv_tokens_max: int = setting(
        131072, "KV-cache capacity in tokens, over all sequences; a request that does not fit waits.", low=256
    )
    encoder_queue_max: int = setting(
        256, "Pictures that may wait for the vision encoder before 429.", low=1, high=65536
    )
    encoder_batch_max: int = setting(
        1, "Same-shape pictures encoded together; 1 gives the same embedding whatever else is in the queue.", low=1,
        high=256,
    )  # fmt: skip
    threads: int = setting(0, "Threads for numerical work in the engine; 0: one per core but one.", low=0, high=1024)


class MediaSettings(Section):
    """Media workers, and what a request's pictures may cost."""

    workers: int = setting(0, "Media worker processes; 0: one per core but one, at most 8.", low=0, high=256)
    queue_depth_max: int = setting(512, "Pictures that may wait for a media worker before 429.", low=1, high=65536)
    job_seconds_max: float = setting(20.0, "Time one picture may take to decode and process.", low=0.1, high=600)
    worker_memory_bytes_max: Bytes = setting(
        2 * GiB, "Memory a media worker may allocate beyond its own code.", low=64 * MiB
    )
    images_max: int = setting(16, "Pictures one request may carry.", low=0, high=1024)
    item_bytes_max: Bytes = setting(32 * MiB, "Encoded bytes of one picture.", low=1024)
    pixels_max: int = setting(64_000_000, "Decoded pixels of one picture.", low=1)
    side_max: int = setting(32_768, "Longest side of a picture, in pixels.", low=1)


class FetchSettings(Section):
    """Media URLs: what may be contacted, and for how long."""

    http_allowed: bool = setting(False, "Also fetch plain http:// URLs, not only https://.")
    private_networks: Names = setting(
        (), "Networks (CIDR) that may be fetched from although they are not public, comma-separated."
    )
    hosts: Names = setting(
        (), "Hosts (exact, or *.example.com) that may resolve to non-public addresses, comma-separated."
    )
    ports: Ports = setting((80, 443), "TCP ports that may be fetched from, comma-separated.")
    redirects_max: int = setting(3, "Redirects followed, each under the whole policy.", low=0, high=20)
    connect_seconds: float = setting(3.0, "Time to resolve and connect, per hop.", low=0.05, high=300)
    read_seconds: float = setting(5.0, "Longest silence while reading.", low=0.05, high=300)
    total_seconds: float = setting(20.0, "Time for one picture with all its hops and its retry.", low=0.05, high=600)
    concurrency_max: int = setting(64, "Fetches at once.", low=1, high=4096)
    per_host_max: int = setting(16, "Fetches at once from one host.", low=1, high=4096)
    user_agent: str = setting("foveate/{version}", "User-Agent sent to origins; {version} is filled in.")


class CacheSettings(Section):
    """The two caches that Foveate owns. They share nothing."""

    processor_bytes_max: Bytes = setting(
        128 * MiB, "Processor cache: bytes of model inputs kept; 0 turns it off.", low=0
    )
    encoder_bytes_max: Bytes = setting(256 * MiB, "Encoder cache: bytes of embeddings kept; 0 turns it off.", low=0)
    aliases_max: int = setting(16384, "Clients' own names for pictures (uuid) remembered.", low=1, high=10_000_000)


class LimitSettings(Section):
    """How much is under way at once."""

    requests_max: int = setting(
        512, "Requests under way at once, waiting ones included, before 429.", low=1, high=65536
    )
    multimodal_requests_max: int = setting(
        64, "Requests with pictures under way at once; more wait. Text never waits for these places.", low=1, high=65536
    )
    answer_tokens_default: int = setting(
        2048, "Tokens an answer may have when the request names no limit, as far as the context has room.", low=1
    )
    arena_bytes_max: Bytes = setting(
        1 * GiB, "Shared memory for media bytes, model inputs and embeddings (used only as needed).", low=64 * MiB
    )


class LogSettings(Section):
    """Logs. The request log is one JSON line a request and is separate from the server's own log."""

    format: Literal["text", "json"] = setting("text", "Form of the server's log on stderr.")
    level: Literal["debug", "info", "warning", "error"] = setting("info", "Least severe line written.")
    requests: str = setting("stdout", "Request log: stdout, off, or a file's path.")


class Settings(BaseSettings):
    """All settings, by section."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX,
        env_nested_delimiter="__",
        extra="forbid",
        frozen=True,
        nested_model_default_partial_update=True,
        enable_decoding=False,
    )

    server: ServerSettings = ServerSettings()
    model: ModelSettings = ModelSettings()
    engine: EngineSettings = EngineSettings()
    media: MediaSettings = MediaSettings()
    fetch: FetchSettings = FetchSettings()
    cache: CacheSettings = CacheSettings()
    limits: LimitSettings = LimitSettings()
    log: LogSettings = LogSettings()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Flags, then environment, then the file; no dotenv file is read by surprise."""
        return (init_settings, env_settings, YamlConfigSettingsSource(settings_cls))


class Declared(BaseModel):
    """One declared setting, for flags and docs."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    section: str
    name: str
    info: FieldInfo

    @property
    def key(self) -> str:
        """Its key in a file, dotted."""
        return f"{self.section}.{self.name}"

    @property
    def flag(self) -> str:
        """Its command-line flag."""
        extra = self.info.json_schema_extra
        given = extra.get("flag") if isinstance(extra, dict) else None
        return str(given) if given else f"--{self.section}-{self.name}".replace("_", "-")

    @property
    def env(self) -> str:
        """Its environment variable."""
        return f"{ENV_PREFIX}{self.section}__{self.name}".upper()


def declared() -> Iterator[Declared]:
    """Yield every setting in the order of declaration."""
    for section, field in Settings.model_fields.items():
        assert isinstance(field.annotation, type)
        assert issubclass(field.annotation, Section)
        for name, info in field.annotation.model_fields.items():
            yield Declared(section=section, name=name, info=info)


def load(flags: Mapping[str, Any] | None = None, *, config: str | None = None) -> Settings:
    """Read all sources and return the settings.

    ``flags`` maps dotted keys to given values. Raises StartupError, one line, naming the key, where it came from,
    and the nearest known key.
    """
    path = config or os.environ.get(f"{ENV_PREFIX}CONFIG")
    if path and not Path(path).is_file():
        raise StartupError(f"The settings file {path!r} does not exist. Give an existing YAML file to --config.")
    _refuse_unknown_environment()
    given: dict[str, Any] = {}
    for key, value in (flags or {}).items():
        section, name = key.split(".", 1)
        given.setdefault(section, {})[name] = value

    class _WithFile(Settings):
        model_config = SettingsConfigDict(yaml_file=path)

    try:
        return Settings.model_construct(**dict(_WithFile(**given)))
    except ValidationError as error:
        raise StartupError(_explain(error)) from error
    except (ValueError, TypeError, yaml.YAMLError) as error:
        raise StartupError(f"The settings cannot be read: {' '.join(str(error).split())}") from error


def _refuse_unknown_environment() -> None:
    known = {entry.env for entry in declared()} | {f"{ENV_PREFIX}CONFIG"}
    for name in os.environ:
        if name.startswith(ENV_PREFIX) and name not in known:
            raise StartupError(f"The environment variable {name} is not a setting.{_nearest(name, known)}")


def _explain(error: ValidationError) -> str:
    first = error.errors()[0]
    key = ".".join(str(step) for step in first["loc"] if not isinstance(step, int))
    if first["type"] == "extra_forbidden":
        known = {entry.key for entry in declared()} | set(Settings.model_fields)
        return f"There is no setting {key!r}.{_nearest(key, known)}"
    names = {entry.key: entry for entry in declared()}
    where = f" (flag {names[key].flag}, environment {names[key].env})" if key in names else ""
    return f"The setting {key!r}{where} is wrong: {first['msg'][0].lower()}{first['msg'][1:]}."


def _nearest(name: str, known: set[str]) -> str:
    close = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.5)
    return f" Did you mean {close[0]}?" if close else " See docs/settings.md for all settings."


def reference() -> str:
    """Return ``docs/settings.md``: every setting with its flag, environment name, default, bounds and meaning."""
    lines = ["# Settings", "", "Generated by `foveate settings --markdown`; do not edit.", ""]
    lines += [line for line in (__doc__ or "").split("::")[0].splitlines()[2:3] if line]
    section = ""
    for entry in declared():
        if entry.section != section:
            section = entry.section
            annotation = Settings.model_fields[section].annotation
            lines += ["", f"## {section}", "", (annotation.__doc__ or "").splitlines()[0] if annotation else "", ""]
            lines += ["| key | flag | environment | default | bounds | meaning |", "|---|---|---|---|---|---|"]
        lines.append(_row(entry))
    return "\n".join(lines) + "\n"


def _row(entry: Declared) -> str:
    bounds = [f"≥ {m.ge}" for m in entry.info.metadata if getattr(m, "ge", None) is not None]
    bounds += [f"≤ {m.le}" for m in entry.info.metadata if getattr(m, "le", None) is not None]
    default = entry.info.default
    shown = ",".join(map(str, default)) if isinstance(default, tuple) else default
    cells = (
        f"`{entry.key}`", f"`{entry.flag}`", f"`{entry.env}`", f"`{shown}`" if shown not in ("", None) else "–",
        ", ".join(bounds) or "–", entry.info.description or "",
    )  # fmt: skip
    return "| " + " | ".join(cells) + " |"
