"""Every metric, declared once. :mod:`foveate.observe.metrics` makes them, ``docs/metrics.md`` is printed from here.

Times are seconds and sizes are bytes, as Prometheus has it. Every label takes its values from a closed set, so that no
client can make series. Text and multimodal requests are separate series, and so are the caches: there is no joint hit
ratio.

Print the page with ``python -m foveate.observe.table``.
"""

from __future__ import annotations

import sys
from typing import Final

from foveate.core.kept import SKIP_REASONS
from foveate.decisions.eviction import EVICTION_REASONS
from foveate.decisions.freshness import NOT_KEPT
from foveate.observe.labels import (
    BYTES,
    CANARY_ENDINGS,
    CODE,
    COMPARED,
    ENDED_MODALITY,
    FRAMES,
    IMAGES,
    ITEM_STAGE,
    LIMIT,
    MODALITY,
    OBJECTIVE,
    OUTCOME,
    PIXELS,
    SECONDS,
    STAGE,
    TOKENS,
    TOPOLOGY,
    UPSTREAM_OUTCOMES,
    VERDICT,
    WINDOW,
    CacheGroup,
    Kind,
    Label,
    Metric,
)
from foveate.observe.records import ROLES, TOKEN_SECONDS
from foveate.observe.table_parts import parts


def _requests() -> list[Metric]:
    by, over = (MODALITY,), (MODALITY, TOPOLOGY)

    def row(name: str, kind: Kind, help_: str, labels: tuple[Label, ...], buckets: tuple[float, ...] = ()) -> Metric:
        return Metric("Requests", f"foveate_{name}", kind, help_, labels, buckets)

    ttft = "From the request's last byte to its first token: all stages and the unattributed time."
    stage = "Time of a stage on the critical path of a request that reached its first token."
    total = "From the request's last byte to its end, whatever the end."
    gap = "Time between two outputs of a choice, for each token of the later one."
    overlap = (
        "Prefill that ran before a request's last picture was ready, of requests where any did: what overlap saved."
    )
    tpot = "Mean time per output token after the first, one observation a request."
    return [
        row("requests_total", "counter", "Requests ended, by how they ended.", (ENDED_MODALITY, OUTCOME)),
        row("errors_total", "counter", "Requests ended in an error, by its code.", (CODE,)),
        row("requests_in_flight", "gauge", "Requests that have begun and not ended.", by),
        row("request_seconds", "histogram", total, over, SECONDS),
        row("ttft_seconds", "histogram", ttft, over, SECONDS),
        row("stage_seconds", "histogram", stage, (STAGE, *over), SECONDS),
        row("unattributed_seconds", "histogram", "Time before the first token that no stage covers.", over, SECONDS),
        row("item_stage_seconds", "histogram", "A picture's time in a stage, critical or not.", (ITEM_STAGE,), SECONDS),
        row("prefill_overlap_seconds", "histogram", overlap, (TOPOLOGY,), SECONDS),
        row("tpot_seconds", "histogram", tpot, over, TOKEN_SECONDS),
        row("inter_token_seconds", "histogram", gap, over, TOKEN_SECONDS),
    ]


def _carried() -> list[Metric]:
    rows: list[Metric] = []
    for what, help_, labels, buckets in (
        ("images", "Pictures", (), IMAGES),
        ("pixels", "Pixels of pictures, as displayed", (), PIXELS),
        ("frames", "Frames taken of videos, of those that have any", (), FRAMES),
        ("media_bytes", "Bytes of encoded media", (), BYTES),
        ("visual_tokens", "Prompt tokens that stand for pictures", (), TOKENS),
        ("text_tokens", "Prompt tokens of text", (MODALITY,), TOKENS),
        ("output_tokens", "Generated tokens", (MODALITY,), TOKENS),
    ):
        section = "What requests carry"
        rows.append(
            Metric(section, f"foveate_{what}_total", "counter", f"{help_}, of all requests.", labels, read=True)
        )
        rows.append(Metric(section, f"foveate_request_{what}", "histogram", f"{help_}, a request.", labels, buckets))
    return rows


def _cache(cache: CacheGroup) -> list[Metric]:
    def row(name: str, kind: Kind, help_: str, *labels: Label) -> Metric:
        return Metric(f"{cache.capitalize()} cache", f"foveate_{cache}_cache_{name}", kind, help_, labels, read=True)

    return [
        row("entries", "gauge", "Entries that a look-up can find."),
        row("pinned_entries", "gauge", "Entries in use, which cannot be evicted."),
        row("bytes", "gauge", "Bytes allocated, those of dropped entries still in use included."),
        row("capacity_bytes", "gauge", "Bytes that may be allocated."),
        row("hits_total", "counter", "Look-ups that found an entry."),
        row("misses_total", "counter", "Look-ups that found none."),
        row("shared_flights_total", "counter", "Misses that joined work already in flight."),
        row("evictions_total", "counter", "Entries given up.", Label("reason", EVICTION_REASONS)),
        row("oversize_refusals_total", "counter", "Entries not kept because they exceed the whole capacity."),
        row("crowded_refusals_total", "counter", "Entries not kept because entries in use left no room."),
        row("saved_seconds_total", "counter", "What hits saved, as the work had cost when it was done.", ITEM_STAGE),
    ]


def _media_cache() -> list[Metric]:
    def row(name: str, help_: str, label: Label) -> Metric:
        return Metric("Media cache", f"foveate_media_cache_{name}", "counter", help_, (label,), read=True)

    asked = "Origins asked whether an entry has changed, neither hits nor misses where it has not, by their answer."
    kept_not = "Bodies fetched that may not be kept, by what forbids it."
    return [
        *_cache("media"),
        row("revalidations_total", asked, Label("outcome", ("unchanged", "changed"))),
        row("not_kept_total", kept_not, Label("reason", NOT_KEPT)),
    ]


def _restored() -> list[Metric]:
    def row(name: str, help_: str, *labels: Label) -> Metric:
        return Metric("Warm restart", f"foveate_{name}_total", "counter", help_, labels)

    skipped = (
        "Entries kept on disk that were not used, by reason; what cannot be counted, as the rest of a file, is one."
    )
    return [
        row("restored_entries", "Embeddings read back into the encoder cache at the start (cache.encoder_keep_dir)."),
        row("restored_bytes", "Bytes that these were allocated."),
        row("restore_skipped", skipped, Label("reason", SKIP_REASONS)),
    ]


def _kv_prefix() -> list[Metric]:
    def row(name: str, help_: str) -> Metric:
        return Metric("KV prefix cache", f"foveate_kv_prefix_{name}_total", "counter", help_, read=True)

    return [
        row("requests", "Requests that the engine answered."),
        row("hits", "Of these, those with prompt tokens that the engine found in its own prefix cache."),
        row("prompt_tokens", "Prompt tokens of these requests."),
        row("cached_tokens", "Of these tokens, those that the engine found in its own prefix cache."),
    ]


def _canary() -> list[Metric]:
    section, role = "Canary", Label("role", ROLES)
    requests = "Requests with media that were given to a version while a new one was on trial, by how they ended."
    compared = "Pictures to be encoded by both versions, by what became of it."
    ended = "Roll-outs that ended: by an operator, by a refusal to load, or by the fault that the new version had."

    def read(name: str, help_: str) -> Metric:
        return Metric(section, f"foveate_canary_{name}", "gauge", help_, read=True)

    return [
        read("share", "Share of contents that meet the new version on trial; 0 where there is none."),
        read("versions", "Versions of the model that have processes, those that finish what they began included."),
        Metric(section, "foveate_canary_requests_total", "counter", requests, (role, OUTCOME)),
        Metric(
            section,
            "foveate_canary_ttft_seconds",
            "histogram",
            "Of these, the time to the first token.",
            (role,),
            SECONDS,
        ),
        Metric(section, "foveate_canary_comparisons_total", "counter", compared, (Label("outcome", COMPARED),)),
        read("cosine_mean", "Mean cosine between new and old embeddings; absent before the first comparison."),
        read("cosine_min", "Lowest cosine of a picture; absent before the first comparison."),
        read(
            "relative_norm_mean",
            "Mean length of new embeddings by that of old ones; absent before the first comparison.",
        ),
        Metric(section, "foveate_canary_ended_total", "counter", ended, (Label("outcome", CANARY_ENDINGS),)),
    ]


def _budget() -> list[Metric]:
    section = "Budgets"
    rejected = "Requests refused by a limit of their tier or of the server, by the limit that a client was told."
    rows = [Metric(section, "foveate_budget_rejections_total", "counter", rejected, (LIMIT,))]
    for what, words in (
        ("media_bytes", "Encoded media bytes"),
        ("pixels", "Decoded pixels"),
        ("visual_tokens", "Visual tokens"),
    ):
        name = f"foveate_in_flight_{what}"
        rows.append(Metric(section, name, "gauge", f"{words} of requests before their first token.", read=True))
        rows.append(Metric(section, f"{name}_capacity", "gauge", f"{words} that may be under way at once.", read=True))
    under_way = "Requests with media before their first token, those that wait for a place included."
    rows.append(Metric(section, "foveate_in_flight_requests", "gauge", under_way, read=True))
    tenants = "Tenants with requests with media before their first token."
    rows.append(Metric(section, "foveate_in_flight_tenants", "gauge", tenants, read=True))
    taken = "Places for requests with media that are taken (limits.multimodal_requests_max)."
    rows.append(Metric(section, "foveate_admission_places_taken", "gauge", taken, read=True))
    rows.append(
        Metric(section, "foveate_admission_waiting", "gauge", "Requests that wait for such a place.", read=True)
    )
    return rows


def _spent() -> list[Metric]:
    return [
        Metric("What requests took", f"foveate_spent_{what}_total", "counter", help_, (MODALITY,))
        for what, help_ in (
            ("fetch_bytes", "Bytes that media fetches brought."),
            ("media_cpu_seconds", "Processor time of media decode, unpacking of large bodies included."),
            ("processor_cpu_seconds", "Processor time of the picture processor."),
            ("encoder_seconds", "Time of the vision encoder's batches, each split over its pictures."),
            ("engine_token_seconds", "Time of the language model's steps, each split over its tokens."),
            ("saved_seconds", "Work that caches, or others' work in flight, spared these requests."),
        )
    ]


def _objectives() -> list[Metric]:
    section, by = "Service-level objectives", (MODALITY, WINDOW)
    judged = "Requests judged by a target, by verdict; objective all: by every target at once."
    met = "Share of requests that met every target in a window; absent without a target or a request."
    burn = "How many times as fast as allowed the error budget is spent in a window; absent without a target."
    good = "Requests a second that met every target in a window; absent without a target."
    return [
        Metric(section, "foveate_slo_requests_total", "counter", judged, (MODALITY, OBJECTIVE, VERDICT)),
        Metric(section, "foveate_slo_attainment", "gauge", met, by, read=True),
        Metric(section, "foveate_slo_burn_rate", "gauge", burn, by, read=True),
        Metric(section, "foveate_slo_goodput_per_second", "gauge", good, by, read=True),
    ]


def _upstreams() -> list[Metric]:
    of = Label("upstream", settings="upstream.servers")
    ended = Label("outcome", UPSTREAM_OUTCOMES)

    def read(name: str, kind: Kind, help_: str, *labels: Label) -> Metric:
        return Metric("Upstreams", f"foveate_upstream_{name}", kind, help_, labels, read=True)

    return [
        read("up", "gauge", "1 when the server behind this one is asked, else 0.", of),
        read("draining", "gauge", "1 while an operator lets it have nothing new.", of),
        read("share", "gauge", "Part of its capacity that it may be given; grows after it came back.", of),
        read("in_flight", "gauge", "Requests under way there.", of),
        read("outstanding_tokens", "gauge", "Prompt tokens under way there before their first output.", of),
        read("requests_total", "counter", "Requests sent there, by how they ended there.", of, ended),
        read(
            "resent_total", "counter", "Requests sent again because it no longer held media that were only named.", of
        ),
        read("waiting", "gauge", "Requests that wait for a place at any of them."),
    ]


METRICS: Final[tuple[Metric, ...]] = (
    *_requests(),
    *_carried(),
    *_spent(),
    *_objectives(),
    *_cache("processor"),
    *_cache("encoder"),
    *_media_cache(),
    *_restored(),
    *_kv_prefix(),
    *_canary(),
    *_budget(),
    *parts(),
    *_upstreams(),
)


def page() -> str:
    """Return the documentation page of all metrics, as Markdown."""
    lines = [
        "# Metrics",
        "",
        "Served at `/metrics` in the Prometheus text format. Written from `foveate/observe/table.py` by",
        "`python -m foveate.observe.table > docs/metrics.md`; a test keeps the two equal.",
        "",
        "Times are in seconds, sizes in bytes. Each label has a closed set of values.",
    ]
    section = ""
    for metric in METRICS:
        if metric.section != section:
            section = metric.section
            lines += ["", f"## {section}", "", "| metric | kind | labels | what it says |", "|---|---|---|---|"]
        labels = ", ".join(f"`{label.name}`" for label in metric.labels)
        lines.append(f"| `{metric.name}` | {metric.kind} | {labels} | {metric.help} |")
    lines += ["", "## Labels", "", "| label | of | values |", "|---|---|---|"]
    lines += _label_rows()
    return "\n".join(lines) + "\n"


def _label_rows() -> list[str]:
    used: dict[Label, list[str]] = {}
    for metric in METRICS:
        for label in metric.labels:
            used.setdefault(label, []).append(f"`{metric.name}`")
    return [f"| `{label.name}` | {', '.join(names)} | {_values(label)} |" for label, names in used.items()]


def _values(label: Label) -> str:
    return f"names in `{label.settings}`" if label.settings else ", ".join(f"`{value}`" for value in label.values)


if __name__ == "__main__":
    sys.stdout.write(page())
