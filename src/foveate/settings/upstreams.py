"""The servers behind this one, as settings: one by one in the file, or only their URLs as flags."""

from __future__ import annotations

import os
import re
from typing import Annotated, Final, Literal
from urllib.parse import urlsplit

import yaml
from pydantic import AfterValidator, BeforeValidator, Field

from foveate.settings.declare import Bytes, GiB, Names, Section, setting

Mode = Literal["bytes", "url", "embeds"]
Takes = Literal["auto", "on", "off"]
SERVERS_MAX: Final = 256
_NAME: Final = r"^[A-Za-z0-9][A-Za-z0-9_.:-]{0,63}$"


def _judged(url: str) -> str:
    """Return ``url`` without a slash at its end. Raises ValueError unless it is ``http(s)://host[:port][/path]``."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment or parts.username:
        raise ValueError(f"expected a URL like http://host:8000, without user, query or fragment, not {url!r}")
    # What both kinds of user write: the server's root, and the base URL that OpenAI's clients take.
    return re.sub(r"(/v1)?/*$", "", url)


def _parse(value: object) -> object:
    """Let flags and environment give the list as YAML or JSON text."""
    return yaml.safe_load(value) if isinstance(value, str) else value


Url = Annotated[str, AfterValidator(_judged)]


class UpstreamServer(Section):
    """One server. What is not stated is as the section ``upstream`` says."""

    url: Url
    name: str | None = Field(None, pattern=_NAME)
    weight: float = Field(1.0, gt=0, le=1000)
    api_key_env: str | None = None
    models: dict[str, str] = Field(default_factory=dict)
    concurrency_max: int | None = Field(None, ge=1, le=65536)
    mode: Mode | None = None
    uuid: Takes | None = None

    @property
    def label(self) -> str:
        """The name it goes by in metrics and logs: its own, else host and port."""
        return self.name or urlsplit(self.url).netloc

    def api_key(self) -> str | None:
        """The key to send, from the environment variable that ``api_key_env`` names. Raises KeyError when that is not set."""
        return None if self.api_key_env is None else os.environ[self.api_key_env]


Servers = Annotated[tuple[UpstreamServer, ...], BeforeValidator(_parse)]


class UpstreamSettings(Section):
    """Servers behind this one, for --engine upstream."""

    urls: Names = setting(
        (), "Server to send requests to, http://host:port; may be given several times.", flag="--upstream", repeats=True
    )
    servers: Servers = setting(
        (), "The same with more to say of each: a list of {url, name, weight, api_key_env, models, concurrency_max, mode, uuid}."
    )  # fmt: skip
    mode: Mode = setting(
        "bytes", "How media go on: bytes (fetched here, sent inline), embeds (encoded here, by --model; for all upstreams or none) or url "
        "(the client's own URL, unread, once it passed the URL policy)."
    )  # fmt: skip
    store: str | None = setting(
        None, "With mode embeds: a directory in memory (mode 0700, below /dev/shm or another tmpfs) in which vLLM servers on this machine "
        "find embeddings by name (docs/upstream.md); without, they are sent.", path=True,
    )  # fmt: skip
    store_bytes_max: Bytes = setting(GiB, "Bytes in upstream.store; what finds no room is sent.", low=0)
    uuid: Takes = setting(
        "auto", "Whether upstreams take a uuid beside media; auto: those that say they are vLLM or Foveate."
    )
    concurrency_max: int = setting(256, "Requests under way at one upstream; more wait here.", low=1, high=65536)
    connect_seconds: float = setting(2.0, "Time to connect to an upstream.", low=0.05, high=60)
    health_seconds: float = setting(2.0, "Time between two looks at an upstream's health.", low=0.1, high=300)
    health_path: str = setting("/health", "Where an upstream tells its health; 404 there counts as well.", pattern="^/")
    failures_max: int = setting(
        3, "Failures in a row after which an upstream is left out; one that cannot be connected to is so at once.", low=1,
        high=1000,
    )  # fmt: skip
    recover_seconds: float = setting(
        10.0, "How long an upstream that came back takes to get its whole share of requests again.", low=0, high=3600
    )
    affinity_bound: float = setting(
        1.25, "An upstream gets requests for what it has cached only while its load is at most so many times the mean.",
        low=1, high=100,
    )  # fmt: skip

    def all(self) -> tuple[UpstreamServer, ...]:
        """Every server, those of the flags first. Raises ValueError: none at all, too many, a name twice, or a URL that is none."""
        for url in self.urls:
            _judged(url)  # in its own words, which a validation of the whole would bury
        found = (*(UpstreamServer(url=url) for url in self.urls), *self.servers)
        if not 1 <= len(found) <= SERVERS_MAX:
            raise ValueError(f"{len(found)} upstreams are given; there must be at least one and at most {SERVERS_MAX}")
        labels = [server.label for server in found]
        twice = {label for label in labels if labels.count(label) > 1}
        if twice:
            raise ValueError(f"two upstreams are called {min(twice)}; give each a name of its own (upstream.servers)")
        modes = {server.mode or self.mode for server in found}
        if "embeds" in modes and len(modes) > 1:
            raise ValueError("either all upstreams are sent embeddings or none is (upstream.mode)")
        return found
