"""How much memory a model's weights take, and how much this machine has left: asked before loading, not found out by the OOM killer."""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

from foveate.core.errors import StartupError
from foveate.models.versions import is_language

_ITEM_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}
_DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_LAYERS = re.compile(r"(^|\.)(language_model|text_model)(\.model)?\.layers\.|^(model\.)?layers\.")
_GiB = 2**30


def held_dtype(dtype: str, device: str) -> str:
    """Return the dtype that weights are held in: float32 for ``auto`` on a CPU, else ``dtype``."""
    return "float32" if dtype == "auto" and device == "cpu" else dtype


def weight_bytes(directory: str, dtype: str, *, layers: bool = True) -> int:
    """Return the bytes of all weights when held as ``dtype`` (``auto``: as stored), read from the safetensors headers.

    Without ``layers`` the language model's are left out.
    """
    return _bytes(directory, dtype, lambda name: layers or not _LAYERS.search(name))


def vision_bytes(directory: str, dtype: str) -> int:
    """Return what of them an encode worker holds: the vision tower and the projector. As :func:`weight_bytes`."""
    return _bytes(directory, dtype, lambda name: not is_language(name))


def _bytes(directory: str, dtype: str, counts: Callable[[str], bool]) -> int:
    item = _DTYPE_BYTES.get(dtype)
    return sum(
        math.prod(shape) * (item or _ITEM_BYTES.get(stored, 4))
        for path in sorted(Path(directory).glob("*.safetensors"))
        for name, stored, shape in _tensors(path)
        if counts(name)
    )


def _tensors(path: Path) -> Iterator[tuple[str, str, list[int]]]:
    """Yield name, dtype and shape of each tensor; the header is JSON behind its length as a little-endian 64-bit integer."""
    size = path.stat().st_size
    with path.open("rb") as file:
        prefix = file.read(8)
        length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else size
        if length > size - 8:
            raise StartupError(
                f"The weights file {path.name} is damaged: its header does not fit the file. Get it again."
            )
        try:
            header = json.loads(file.read(length))
        except ValueError as error:
            raise StartupError(
                f"The weights file {path.name} is damaged: its header cannot be read. Get it again."
            ) from error
    for name, entry in header.items():
        if name != "__metadata__":
            yield name, entry["dtype"], entry["shape"]


def available_bytes() -> int:
    """Return what this process may still allocate: the machine's available memory, or what is left of the cgroup's limit."""
    fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines())
    machine = int(fields["MemAvailable"].split()[0]) * 1024
    limit, used = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")
    if not (limit.is_file() and used.is_file()):
        return machine
    text = limit.read_text(encoding="ascii").strip()
    return machine if text == "max" else min(machine, int(text) - int(used.read_text(encoding="ascii")))


def check_memory(directory: str, name: str, *, dtype: str, copies: int = 1, towers: int = 0) -> None:
    """Raise StartupError when main memory does not suffice for the weights.

    They are held for a CPU: all of them by ``copies`` processes, the vision tower's alone by ``towers`` more.
    """
    held = held_dtype(dtype, "cpu")
    needed, free = copies * weight_bytes(directory, held), available_bytes()
    if towers:
        needed += towers * vision_bytes(directory, held)
    if needed > free:
        held_by, fewer = "", ""
        if copies + towers > 1 or not copies:
            kinds = ((copies, "engine"), (towers, "encode worker"))
            told = (f"{number} {what}{'s' if number > 1 else ''}" for number, what in kinds if number)
            held_by, fewer = f" in {' and '.join(told)}", "fewer of them, "
        raise StartupError(
            f"Not enough memory for {name}: its weights take {needed / _GiB:.1f} GiB as {held}{held_by} and "
            f"{free / _GiB:.1f} GiB are free. Choose {fewer}--dtype bfloat16, a smaller model, or a machine with more memory."
        )
