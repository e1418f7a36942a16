"""Settings of how media are fetched and read. Not what a request's media may cost: that is a tier's (``tiers``)."""

from __future__ import annotations

from typing import get_args

from foveate.settings.declare import Bytes, Cpus, Formats, GiB, MiB, Names, PictureFormat, Ports, Section, setting


class MediaSettings(Section):
    """Media workers, and how pictures are read. What a request's media may cost: multimodal_budget."""

    workers: int = setting(0, "Media worker processes; 0: one per core but one, at most 8.", low=0, high=256)
    cpus: Cpus = setting((), "Cores that media workers may run on: 0,1 or 4-7. Default: any.")
    queue_depth_max: int = setting(
        512,
        "Pictures that may wait for a media worker before 429; of one tenant three quarters of them.",
        low=1,
        high=65536,
    )
    job_seconds_max: float = setting(20.0, "Time one picture may take to decode and process.", low=0.1, high=600)
    worker_memory_bytes_max: Bytes = setting(
        2 * GiB, "Memory a media worker may allocate beyond its own code.", low=64 * MiB
    )
    decode_pixels_max: int = setting(
        128_000_000, "Decoded pixels of one picture, whatever its tier says and even where a tier makes it fit.", low=1
    )
    animation_frames_max: int = setting(
        1000, "Frames an animated picture may have; only the first is decoded.", low=1, high=2000
    )
    formats: Formats = setting(
        get_args(PictureFormat),
        "Picture formats that are accepted, of these, comma-separated. Others are answered with 415.",
    )
    background: str = setting("#ffffff", "Colour (#rrggbb) behind transparent pixels.", pattern=r"^#[0-9A-Fa-f]{6}$")
    icc_to_srgb: bool = setting(False, "Convert pictures with an embedded ICC profile to sRGB.")
    client_embeddings: bool = setting(
        False, "Accept embeddings that clients computed themselves (image_embeds parts) in place of pictures."
    )
    truncated_accepted: bool = setting(
        False, "Decode pictures whose data end early as far as they go, instead of refusing them with 422."
    )


class FetchSettings(Section):
    """Media URLs: what may be contacted, and for how long."""

    http_allowed: bool = setting(False, "Also fetch plain http:// URLs, not only https://.", reloads=True)
    private_networks: Names = setting(
        (), "Networks (CIDR) that may be fetched from although they are not public, comma-separated.", reloads=True
    )
    hosts: Names = setting(
        (), "Hosts (exact, or *.example.com) that may resolve to non-public addresses, comma-separated.", reloads=True
    )
    only_hosts: Names = setting(
        (), "When given, the only hosts (exact, or *.example.com) that may be fetched from, comma-separated.",
        reloads=True,
    )  # fmt: skip
    ports: Ports = setting((), "TCP ports that may be fetched from besides 80 and 443, comma-separated.", reloads=True)
    file_root: str | None = setting(
        None,
        "Directory below which file:// URLs may name media. Default: no local file is ever opened.",
        reloads=True,
        path=True,
    )
    proxy: str | None = setting(
        None, "Proxy (http://host:port) that fetches go through. Proxy variables of the environment are never used."
    )
    dns_servers: Names = setting(
        (), "Name servers (address or address:port) to ask instead of the system's resolver, comma-separated."
    )
    dns_seconds: float = setting(2.0, "Time to resolve a host name, per hop.", low=0.05, high=300)
    connect_seconds: float = setting(3.0, "Time to connect, TLS included, per hop.", low=0.05, high=300)
    first_byte_seconds: float = setting(
        10.0, "Time from the request to the answer's first byte, per hop.", low=0.05, high=300
    )
    read_seconds: float = setting(5.0, "Longest silence while reading.", low=0.05, high=300)
    total_seconds: float = setting(20.0, "Time for one picture with all its hops and its retry.", low=0.05, high=600)
    concurrency_max: int = setting(64, "Fetches at once.", low=1, high=4096)
    per_host_max: int = setting(16, "Fetches at once from one host.", low=1, high=4096)
    per_tenant_max: int | None = setting(
        None, "Fetches at once for one tenant. Default: three quarters of fetch.concurrency_max.", low=1, high=4096
    )
    waiting_max: int = setting(
        4096,
        "Fetches that may wait for their turn before 429; of one tenant three quarters of them.",
        low=1,
        high=65536,
    )
    dead_host_failures: int = setting(
        5, "Failures in a row after which a host counts as dead; 0: hosts are never given up.", low=0, high=10_000
    )
    dead_host_seconds: float = setting(
        10.0, "How long fetches from a dead host are refused at once before one tries it again.", low=0.1, high=3600
    )
    user_agent: str = setting("foveate/{version}", "User-Agent sent to origins; {version} is filled in.")
