"""Foveate with vLLM inside, as the tests start it: the shipped model with a chat template that takes tools."""

from __future__ import annotations

from pathlib import Path

from tests.blackbox.origins import Origin
from tests.blackbox.server import Server
from tests.contracts.bench import MODEL

SERVED = "foveate-demo"
QUEUE_MAX = 6
TOOLS = "{% if tools %}<|im_start|>system\nTools: {{ tools | tojson }}<|im_end|>\n{% endif %}"
CALLS = "{% if m.tool_calls %}<|im_start|>assistant\n<tool_call>{{ m.tool_calls[0].function | tojson }}</tool_call><|im_end|>\n{% else %}"


def serving_vllm(directory: Path, web: Origin) -> Server:
    """Start it in all the processes that vLLM has for several devices, with an encode worker beside it.

    It runs one sequence at a time, so that a second waits.
    """
    return Server(
        directory,
        *("--engine", "vllm", "--model", str(with_tools(directory / "demo")), "--served-model-name", SERVED),
        *("--engine-batch-size-max", "1", "--engine-queue-depth-max", str(QUEUE_MAX), "--engine-threads", "1"),
        *("--vllm-args", "distributed_executor_backend=mp", "--vllm-kv-cache-bytes", "256MiB"),
        *("--vllm-tool-call-parser", "hermes", "--engine-step-seconds-max", "8", "--media-client-embeddings"),
        *("--topology", "e-pd", "--encoders", "1", "--topology-encoder-threads", "1"),
        *("--media-workers", "1", "--no-engine-self-check", "--engine-restart-wait-seconds", "120"),
        *("--fetch-http-allowed", "--fetch-private-networks", "127.0.0.1/32", "--fetch-ports", str(web.port)),
    )


def with_tools(directory: Path) -> Path:
    """Make a copy of the shipped model, by links, whose chat template takes tools."""
    directory.mkdir()
    for file in Path(MODEL.directory).iterdir():
        (directory / file.name).symlink_to(file)
    template = directory / "chat_template.jinja"
    plain = template.read_text()
    template.unlink()
    first, loop, rest = plain.partition("{% for m in messages %}")
    body, _, after = rest.rpartition("{% endfor %}")
    template.write_text(f"{TOOLS}{first}{loop}{CALLS}{body}{{% endif %}}{{% endfor %}}{after}")
    return directory
