"""Which bytes of the arena a message names: what has to travel with it where the other process maps another arena.

To a worker: the slot in a field called ``out`` is one that it writes to, every other slot or bundle is read, but for fields
marked :data:`NOT_READ`. From a worker: every slot or bundle that a reply names was written. Found by the types of a message's
fields, once for each type. Does not cover: how the bytes travel.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterator
from typing import Any, Final, Union, get_args, get_origin, get_type_hints

import msgspec

from foveate.core.memory import Slot, TensorBundle

NOT_READ: Final = msgspec.Meta(extra={"named_bytes": "not read"})
"""Marks a field (``Annotated[EngineWork, NOT_READ]``) whose slots the worker does not read."""

_WRITTEN = "out"
_Find = Callable[[Any], Iterator[Slot]]


def read_by_worker(message: Any) -> list[Slot]:
    """Return the ranges that a worker may read because of a message that it is sent, each once."""
    return _found(message, False)


def written_by_worker(reply: Any) -> list[Slot]:
    """Return the ranges that a worker has written and now tells of, each once."""
    return _found(reply, True)


def _found(message: Any, written: bool) -> list[Slot]:
    kind: Any = type(message)
    find = _of_type(kind, written)
    return [] if find is None else list(dict.fromkeys(find(message)))


@functools.cache
def _of_type(kind: Any, everything: bool) -> _Find | None:
    """Return what finds the slots in a value of this type; None where there can be none."""
    if kind is Slot:
        return lambda value: iter((value,))
    if kind is TensorBundle:
        return lambda value: iter((Slot(value.slot.offset, value.used),) if value.used else ())
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return _of_struct(kind, everything)
    origin, arguments = get_origin(kind), get_args(kind)
    if hasattr(kind, "__metadata__"):
        return None if NOT_READ in kind.__metadata__ and not everything else _of_type(arguments[0], everything)
    if origin in (Union, types.UnionType):
        return _of_union(arguments, everything)
    if origin in (list, tuple):
        each = _of_type(arguments[0], everything)
        return None if each is None else lambda value: (slot for one in value for slot in each(one))
    return None


def _of_struct(kind: type[msgspec.Struct], everything: bool) -> _Find | None:
    hints = get_type_hints(kind, include_extras=True)
    names = [name for name in kind.__struct_fields__ if everything or name != _WRITTEN]
    found = [(name, find) for name in names if (find := _of_type(hints[name], everything)) is not None]
    if not found:
        return None
    return lambda value: (slot for name, find in found for slot in find(getattr(value, name)))


def _of_union(members: tuple[Any, ...], everything: bool) -> _Find | None:
    if all(_of_type(member, everything) is None for member in members):
        return None

    def find(value: Any) -> Iterator[Slot]:
        of_this: Any = type(value)  # what a union of ours holds are structs and plain values
        of_value = _of_type(of_this, everything)
        return iter(()) if of_value is None else of_value(value)

    return find
