"""vLLM's workers where pictures go in as pixels: they tell when the model's own encoder ran, and for which requests.

The classes run in the process that holds the model (:mod:`foveate.engines.vllm.encoder_times` is the way to ours).
"""

from __future__ import annotations

from typing import Any

import torch
from vllm.platforms import current_platform

from foveate.core.clock import now
from foveate.engines.vllm.encoder_times import EncoderTeller


class Timed:
    """A worker that tells."""

    _teller: EncoderTeller
    _runs: list[tuple[float, float]]

    def load_model(self, *given: Any, **named: Any) -> None:
        """Have the model's encoder timed. Every runner of vLLM goes through ``embed_multimodal``."""
        super().load_model(*given, **named)  # type: ignore[misc]
        self._teller, self._runs = EncoderTeller(), []
        model: Any = self.get_model()  # type: ignore[attr-defined]
        embed = model.embed_multimodal

        def timed(*inputs: Any, **names: Any) -> Any:
            started = _computed()
            found = embed(*inputs, **names)
            self._runs.append((started, _computed()))
            return found

        model.embed_multimodal = timed

    def execute_model(self, scheduler_output: Any) -> Any:
        """Run a step; what its encoder took is told before anybody has its output."""
        self._runs.clear()
        found = super().execute_model(scheduler_output)  # type: ignore[misc]
        if self._runs:
            # The requests whose pictures were encoded waited for all of them: they are one batch.
            self._teller.tell(list(scheduler_output.scheduled_encoder_inputs), self._runs[0][0], self._runs[-1][1])
        return found


def _computed() -> float:
    """Return the time now that an accelerator has done all that it was given."""
    if not current_platform.is_cpu():
        torch.accelerator.synchronize()
    return now()


if current_platform.is_cpu():
    from vllm.v1.worker.cpu_worker import CPUWorker

    class TimedWorker(Timed, CPUWorker):  # type: ignore[misc]
        """On a CPU."""

elif current_platform.is_cuda_alike():
    from vllm.v1.worker.gpu_worker import Worker

    class TimedWorker(Timed, Worker):  # type: ignore[misc, no-redef]
        """On a GPU."""
