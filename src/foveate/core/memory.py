"""How processes name bytes that lie in the node's shared-memory arena."""

from __future__ import annotations

import msgspec


class Slot(msgspec.Struct, frozen=True, array_like=True):
    """A range of the arena: ``offset`` and ``size`` in bytes. Only the gateway makes slots (:mod:`foveate.runtime.arena`)."""

    offset: int
    size: int


class TensorRef(msgspec.Struct, frozen=True, array_like=True):
    """A contiguous, C-ordered tensor inside a slot.

    ``dtype`` is a torch dtype's name without the prefix (``float32``, ``bfloat16``, ``int64``, ``uint8``);
    ``offset`` is in bytes from the start of the *slot* and is a multiple of 64.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int


class TensorBundle(msgspec.Struct, frozen=True, array_like=True):
    """Named tensors that lie together in one slot. ``used`` is the number of bytes of the slot that they occupy."""

    slot: Slot
    tensors: tuple[TensorRef, ...]
    used: int
