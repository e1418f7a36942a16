"""The metrics of the server's parts: media workers, encoders, language model, memory, GPUs, and the gateway itself."""

from __future__ import annotations

from foveate.observe.labels import (
    BATCH,
    BYTES,
    FETCH_OUTCOMES,
    GPU,
    LAG_SECONDS,
    PROCESS,
    RELOAD,
    RULE,
    SCALE_DECISIONS,
    SECONDS,
    Kind,
    Label,
    Metric,
)


def parts() -> list[Metric]:
    """Return their metrics."""
    return [*_media(), *_encoders(), *_memory(), *_gateway()]


def _read(section: str, name: str, kind: Kind, help_: str, *labels: Label) -> Metric:
    return Metric(section, f"foveate_{name}", kind, help_, labels, read=True)


def _media() -> list[Metric]:
    media = "Media"
    uses, fetches = Label("outcome", ("held", "not_held")), Label("outcome", FETCH_OUTCOMES)
    forbidden = "Requests refused by the URL policy, by its rule; one redirect to a forbidden place is one."
    retries = "Fetches tried once more: a lost connection, or a 5xx."
    bad = "Media refused at once because decoding them failed just before."
    waited = "Time a job waited for a media worker; part of the stage media_decode."
    return [
        _read(media, "aliases", "gauge", "Clients' own names for media (uuid) that are bound."),
        Metric(media, "foveate_alias_uses_total", "counter", "Media named by a uuid instead of sent.", (uses,)),
        Metric(media, "foveate_policy_refusals_total", "counter", forbidden, (RULE,)),
        Metric(media, "foveate_fetches_total", "counter", "Media fetches over the network.", (fetches,)),
        Metric(media, "foveate_fetch_retries_total", "counter", retries),
        _read(media, "bad_media_refusals_total", "counter", bad),
        _read(media, "media_workers", "gauge", "Media workers that can take work."),
        _read(media, "media_workers_busy", "gauge", "Media workers that hold work."),
        _read(media, "media_queue_length", "gauge", "Jobs that wait for a media worker."),
        Metric(media, "foveate_media_queue_seconds", "histogram", waited, (), SECONDS),
        _read(media, "media_worker_restarts_total", "counter", "Media workers replaced."),
    ]


def _encoders() -> list[Metric]:
    encoder, engine = "Vision encoder", "Language model"
    of = Label("engine", settings="engine.count")
    batch = "Pictures that were encoded together, one observation a batch."
    busy = "Time in which an encoder had a batch, of all encoders; its rate is how many of them are busy."
    handed = "Prompts that one process prefilled for another to go on with (topology e-p-d)."
    lost = "Of these, prompts whose K/V could not be read (vLLM): prefilled once more, where their tokens are drawn."
    moved = "Bytes of a picture's embeddings on their way to prefill; how long it took is the stage embedding_transfer."
    share = "Encoders busy on average over the last minute: 1 is one that never paused."
    waiting = "Requests that the language model has and that have no token yet: queue(LLM), those in prefill included."
    return [
        _read(encoder, "encoder_queue_length", "gauge", "Pictures that wait for a vision encoder: queue(E)."),
        Metric(encoder, "foveate_encoder_batch_pictures", "histogram", batch, (), BATCH),
        Metric(encoder, "foveate_encoder_busy_seconds_total", "counter", busy),
        _read(encoder, "encoders_busy", "gauge", share),
        Metric(encoder, "foveate_embedding_transfer_bytes", "histogram", moved, (), BYTES),
        *_encode_workers(),
        _read(engine, "engine_ready", "gauge", "1 when this engine process is well, else 0.", of),
        _read(engine, "engine_draining", "gauge", "1 while it is given nothing new, else 0.", of),
        _read(engine, "engine_in_flight", "gauge", "Requests under way in it.", of),
        _read(
            engine, "engine_outstanding_tokens", "gauge", "Prompt tokens under way in it before their first token.", of
        ),
        _read(
            engine, "engine_restarts_total", "counter", "Times that it was replaced, in every version of the model.", of
        ),
        Metric(engine, "foveate_kv_handed_on_total", "counter", handed),
        Metric(engine, "foveate_kv_handed_on_bytes_total", "counter", "Bytes of their K/V and logits."),
        Metric(engine, "foveate_kv_lost_total", "counter", lost),
        _read(engine, "kv_room_used_bytes", "gauge", "Of topology.kv_bytes_max, what such prompts occupy now."),
        _read(engine, "kv_room_waiting", "gauge", "Prompts that wait for room there."),
        _read(engine, "llm_waiting", "gauge", waiting),
        _read(engine, "llm_running", "gauge", "Requests whose tokens the language model draws."),
    ]


def _encode_workers() -> list[Metric]:
    of = Label("worker", settings="topology.encoders")

    def read(name: str, kind: Kind, help_: str, *labels: Label) -> Metric:
        return _read("Encode workers", f"encoder_{name}", kind, help_, *labels)

    breaker = "0 closed: it is given pictures; 1 half open: one batch at a time, as it came back from a failure; 2 open: none."
    decided = "Decisions to have more or fewer of them because of their queue, and those that could not be carried out."
    local = "Pictures that the engine's process encoded because no encode worker could."
    return [
        read("workers", "gauge", "Encode workers that can be given pictures; 0 when aggregated."),
        read("workers_wanted", "gauge", "Encode workers that there are to be."),
        Metric(
            "Encode workers",
            "foveate_scaling_decisions_total",
            "counter",
            decided,
            (Label("decision", SCALE_DECISIONS),),
        ),
        read("local_pictures_total", "counter", local),
        read("worker_breaker", "gauge", breaker, of),
        read("worker_draining", "gauge", "1 while it finishes what it has, to end.", of),
        read("worker_waiting", "gauge", "Pictures in the line that are its own.", of),
        read("worker_held", "gauge", "Pictures that it was given and has not answered.", of),
        read("worker_batches_total", "counter", "Batches that it began; with its pictures, their size.", of),
        read("worker_pictures_total", "counter", "Pictures that it encoded.", of),
        read(
            "worker_busy_seconds_total",
            "counter",
            "Time that it encoded; its rate is the share of time it is busy.",
            of,
        ),
        read("worker_restarts_total", "counter", "Times that it died or was killed, and replaced.", of),
    ]


def _memory() -> list[Metric]:
    memory = "Memory and GPUs"
    resident = (
        "Resident memory of the processes of a kind; pages that several share, such as the arena's, count in each."
    )
    busy = (
        "Share of the driver's last sample in which the GPU ran anything; absent without a GPU, driver or nvidia-ml-py."
    )
    return [
        _read(memory, "arena_used_bytes", "gauge", "Bytes of the shared-memory arena in slots."),
        _read(memory, "arena_capacity_bytes", "gauge", "Size of the shared-memory arena."),
        _read(memory, "process_resident_bytes", "gauge", resident, PROCESS),
        _read(memory, "gpu_utilisation", "gauge", busy, GPU),
        _read(memory, "gpu_memory_used_bytes", "gauge", "Memory of the GPU in use, by whomever; absent as above.", GPU),
        _read(memory, "gpu_memory_bytes", "gauge", "Memory that the GPU has; absent as above.", GPU),
    ]


def _gateway() -> list[Metric]:
    gateway = "Gateway"
    lag = "How late the event loop wakes what is due; a stall counts once for each sample it held up."
    p99 = "99th percentile of the event-loop lag over the probe's window."
    lines = "Request-log lines dropped because their writer failed or could not keep up."
    traces = "Requests whose trace was lost: no collector, or too slow a one."
    return [
        Metric(gateway, "foveate_reloads_total", "counter", "Reloads of the settings, by outcome.", (RELOAD,)),
        Metric(gateway, "foveate_event_loop_lag_seconds", "histogram", lag, (), LAG_SECONDS),
        _read(gateway, "event_loop_lag_p99_seconds", "gauge", p99),
        _read(gateway, "request_log_dropped_total", "counter", lines),
        _read(gateway, "traces_dropped_total", "counter", traces),
    ]
