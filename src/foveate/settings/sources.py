"""Where settings come from, and what is said when they are wrong.

Read in this order, the first that has a value wins: command-line flags, environment (``FOVEATE_<SECTION>__<NAME>``), the YAML file named by
``--config`` or ``FOVEATE_CONFIG`` (``section: {name: value}``), the default. An unknown key is an error that names the nearest known one.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, InitSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict

from foveate.core.budget import DEFAULT_TIER
from foveate.core.errors import StartupError
from foveate.settings.declare import Section
from foveate.settings.file import read_file
from foveate.settings.keys import hashed
from foveate.settings.media import FetchSettings, MediaSettings
from foveate.settings.observe import CostSettings, LogSettings, ObserveSettings, SloSettings, TraceSettings
from foveate.settings.runtime import RuntimeSettings
from foveate.settings.sections import (
    AuthSettings,
    CacheSettings,
    CanarySettings,
    EngineSettings,
    LimitSettings,
    ModelSettings,
    ServerSettings,
)
from foveate.settings.tiers import Tier, Tiers
from foveate.settings.topology import TopologySettings
from foveate.settings.upstreams import UpstreamSettings
from foveate.settings.vllm import VllmSettings

ENV_PREFIX: Final = "FOVEATE_"
ADMIN_KEY: Final = f"{ENV_PREFIX}ADMIN_KEY"
BUDGET: Final = "multimodal_budget"


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
    topology: TopologySettings = TopologySettings()
    runtime: RuntimeSettings = RuntimeSettings()
    vllm: VllmSettings = VllmSettings()
    upstream: UpstreamSettings = UpstreamSettings()
    multimodal_budget: Tiers = {DEFAULT_TIER: Tier()}
    auth: AuthSettings = AuthSettings()
    media: MediaSettings = MediaSettings()
    fetch: FetchSettings = FetchSettings()
    cache: CacheSettings = CacheSettings()
    canary: CanarySettings = CanarySettings()
    limits: LimitSettings = LimitSettings()
    observe: ObserveSettings = ObserveSettings()
    cost: CostSettings = CostSettings()
    slo: SloSettings = SloSettings()
    trace: TraceSettings = TraceSettings()
    log: LogSettings = LogSettings()


class Declared(BaseModel):
    """One declared setting, for flags and docs. Of the tiers, those of ``default`` have flags and environment names."""

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
        given = self._extra("flag")
        return str(given) if given else f"--{self.section}-{self.name}".replace("_", "-").replace(".", "-")

    @property
    def env(self) -> str:
        """Its environment variable."""
        return f"{ENV_PREFIX}{self.key.replace('.', '__')}".upper()

    @property
    def reloads(self) -> bool:
        """Whether a reload brings a changed value into force."""
        return bool(self._extra("reloads"))

    @property
    def is_path(self) -> bool:
        """Whether it names a file or directory."""
        return bool(self._extra("path"))

    @property
    def repeats(self) -> bool:
        """Whether its flag may be given several times."""
        return bool(self._extra("repeats"))

    def _extra(self, name: str) -> object:
        extra = self.info.json_schema_extra
        return extra.get(name) if isinstance(extra, dict) else None


def declared() -> Iterator[Declared]:
    """Yield every setting in the order of declaration."""
    for section, field in Settings.model_fields.items():
        if section == BUDGET:
            for name, info in Tier.model_fields.items():
                yield Declared(section=section, name=f"{DEFAULT_TIER}.{name}", info=info)
            continue
        assert isinstance(field.annotation, type)
        assert issubclass(field.annotation, Section)
        for name, info in field.annotation.model_fields.items():
            yield from _entries(section, name, info)


def _entries(section: str, name: str, info: FieldInfo) -> Iterator[Declared]:
    inner = info.annotation
    if isinstance(inner, type) and issubclass(inner, Section):
        for below, field in inner.model_fields.items():
            yield Declared(section=section, name=f"{name}.{below}", info=field)
    else:
        yield Declared(section=section, name=name, info=info)


def load(flags: Mapping[str, Any] | None = None, *, config: str | None = None) -> Settings:
    """Read all sources and return the settings.

    ``flags`` maps dotted keys to given values. Raises StartupError, one line, naming the key, where it came from,
    and the nearest known key.
    """
    path = config or os.environ.get(f"{ENV_PREFIX}CONFIG")
    if path and not Path(path).is_file():
        raise StartupError(f"The settings file {path!r} does not exist. Give an existing YAML file to --config.")
    held = _from_file(path) if path else {}
    _refuse_unknown_environment()
    given: dict[str, Any] = {}
    for key, value in (flags or {}).items():
        *groups, name = key.split(".")
        group = given
        for step in groups:
            group = group.setdefault(step, {})
        group[name] = value

    class _WithFile(Settings):
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
            return (init_settings, env_settings, InitSettingsSource(settings_cls, held))

    try:
        read = dict(_WithFile(**given))
    except ValidationError as error:
        raise StartupError(_explain(error, flags or {}, path)) from error
    except (ValueError, TypeError, RecursionError) as error:
        raise StartupError(f"The settings cannot be read: {' '.join(str(error).split())}") from error
    auth: AuthSettings = read["auth"]
    # An empty variable, left by a secret that is missing, would open the server to everybody.
    from_environment = "auth.keys" not in (flags or {}) and f"{ENV_PREFIX}AUTH__KEYS" in map(str.upper, os.environ)
    if from_environment and not auth.keys:
        raise StartupError(f"{ENV_PREFIX}AUTH__KEYS is set but holds no key. To need no key, unset it.")
    read["auth"] = auth.model_copy(update={"keys": hashed(auth.keys, plain_allowed=from_environment)})
    return Settings.model_construct(**read)


def _from_file(path: str) -> dict[str, Any]:
    """Return what the file sets, its paths made absolute: they are relative to the file. Raises StartupError.

    A file without a setting is refused. Half-written at a reload, it would open what the whole file closes: keys, host lists, limits.
    """
    held = read_file(path, f"The settings file {path!r}")
    if not held:
        raise StartupError(
            f"The settings file {path!r} holds no setting. Write one into it, or start without --config."
        )
    if not isinstance(held, dict) or not all(isinstance(name, str) for name in held):
        raise StartupError(
            f"The settings file {path!r} must hold sections with settings, such as server: {{port: 8000}}."
        )
    for entry in declared():
        group = held.get(entry.section)
        if entry.is_path and isinstance(group, dict) and isinstance(group.get(entry.name), str):
            group[entry.name] = os.path.join(os.path.dirname(os.path.abspath(path)), group[entry.name])
    return held


def _refuse_unknown_environment() -> None:
    known = {entry.env for entry in declared()} | {f"{ENV_PREFIX}CONFIG"}
    for name in os.environ:
        # The admin key is for commands that ask a running server; whoever set it may start one in the same shell.
        if name.startswith(ENV_PREFIX) and name not in known and name != ADMIN_KEY:
            raise StartupError(f"The environment variable {name} is not a setting.{_nearest(name, known)}")


def _explain(error: ValidationError, flags: Mapping[str, Any], path: str | None) -> str:
    first = error.errors()[0]
    steps = [str(step) for step in first["loc"] if not isinstance(step, int)]
    tier = f"{BUDGET}.{steps[1]}" if steps[0] == BUDGET and len(steps) > 1 else None
    nested = any(entry.key.startswith(f"{'.'.join(steps[:2])}.") for entry in declared())
    key = ".".join(steps[: 3 if tier or nested else 2])
    if first["type"] == "extra_forbidden":
        if tier:
            return f"There is no setting {key!r}{_from(key, flags, path)}.{_nearest(steps[2], Tier.model_fields)}"
        known = {entry.key for entry in declared()} | set(Settings.model_fields)
        return f"There is no setting {key!r}{_from(key, flags, path)}.{_nearest(key, known)}"
    if first["type"] in ("model_type", "dict_type"):
        what = (
            "it is empty; write settings below it, or leave it out"
            if first["input"] is None
            else "it must hold settings, name: value"
        )
        return f"The setting {key!r}{_from(key, flags, path)} is wrong: {what}."
    what = first["msg"].removeprefix("Value error, ").rstrip(".")
    if first["type"] == "literal_error":
        close = difflib.get_close_matches(
            str(first["input"]), re.findall("'([^']*)'", first["ctx"]["expected"]), n=1, cutoff=0.5
        )
        what += f". Did you mean {close[0]}?" if close else ""
    return f"The setting {key!r}{_from(key, flags, path)} is wrong: {what[0].lower()}{what[1:]}{'' if what.endswith('?') else '.'}"


def _from(key: str, flags: Mapping[str, Any], path: str | None) -> str:
    """Say where the value of a key came from: the first source that has one."""
    entry = next((entry for entry in declared() if entry.key == key), None)
    if entry is not None and key in flags:
        return f" (flag {entry.flag})"
    if entry is not None and any(name.upper() == entry.env for name in os.environ):
        return f" (environment {entry.env})"
    return f" (file {path})" if path else ""


def _nearest(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.5)
    return f" Did you mean {close[0]}?" if close else " See docs/settings.md for all settings."
