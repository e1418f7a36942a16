"""Which embedding files an engine core holds open, and for which of its requests.

A file is checked against what the request says of the picture before it is held, and stays open until its last user has ended and every
step that loads it has run, so that a worker never finds one missing: whoever made it may remove it at any time. Knows no vLLM.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final

import msgspec

from foveate.engines.embedding_file import EmbeddingFault, EmbeddingHeader, Grid, read_header

Open = Callable[[str], int]
"""Opens the file of a name. Raises OSError while there is none."""


class Sought(msgspec.Struct, frozen=True):
    """What a request says of a picture: the ``name`` of its embeddings, and how they must be to fit its prompt.

    ``identifier`` is what the engine's encoder cache calls it. ``grid`` None: the request has none that could be used.
    """

    identifier: str
    name: str
    rows: int
    width: int
    grid: Grid | None


class Pin:
    """A file that is held open."""

    def __init__(self, fd: int, header: EmbeddingHeader) -> None:
        self.fd = fd
        self.header = header
        self.users: set[str] = set()
        self.loaded_in: int = 0
        """The last step in which a worker was told to load it."""

    @property
    def path(self) -> str:
        """Where another process of the same user on this machine can open it, whatever has become of its name."""
        return f"/proc/{os.getpid()}/fd/{self.fd}"


class Pins:
    """All files of one engine core. Steps are counted from 1, in the order in which they are built and end."""

    def __init__(self, *, checksum: bool) -> None:
        self._checksum: Final = checksum
        self._pins: dict[str, Pin] = {}
        self._leaving: list[Pin] = []
        self._built = 0
        self._ended = 0

    def __len__(self) -> int:
        """Files that are open."""
        return len(self._pins) + len(self._leaving)

    def get(self, identifier: str) -> Pin | None:
        """Return the pin of a picture."""
        return self._pins.get(identifier)

    def hold(self, sought: Sought, user: str, opened: Open) -> bool:
        """Hold a picture's file for a request; return whether it is there. Raises EmbeddingFault when it does not fit the request."""
        pin = self._pins.get(sought.identifier)
        new = pin is None
        if pin is None:
            try:
                fd = opened(sought.name)
            except OSError:
                return False
            try:
                pin = Pin(fd, read_header(fd, sought.name, checksum=self._checksum))
            except BaseException:
                os.close(fd)
                raise
        try:
            _check(pin.header, sought)
        except EmbeddingFault:
            if new:
                os.close(pin.fd)
            raise
        pin.users.add(user)
        self._pins[sought.identifier] = pin
        return True

    def load(self, identifier: str) -> Pin | None:
        """Return the pin of a picture that the step now being built loads."""
        pin = self._pins.get(identifier)
        if pin is not None:
            pin.loaded_in = self._built + 1
        return pin

    def leave(self, identifier: str, user: str) -> None:
        """A request has ended."""
        pin = self._pins.get(identifier)
        if pin is None:
            return
        pin.users.discard(user)
        if not pin.users:
            del self._pins[identifier]
            self._leaving.append(pin)
            self._close_left()

    def step_built(self) -> None:
        """A step is on its way to the workers."""
        self._built += 1

    def step_ended(self) -> None:
        """The workers have done the oldest step that was under way."""
        self._ended = min(self._ended + 1, self._built)
        self._close_left()

    def close(self) -> None:
        """Close every file."""
        for pin in (*self._pins.values(), *self._leaving):
            os.close(pin.fd)
        self._pins.clear()
        self._leaving.clear()

    def _close_left(self) -> None:
        kept = []
        for pin in self._leaving:
            if pin.loaded_in > self._ended:
                kept.append(pin)
            else:
                os.close(pin.fd)
        self._leaving = kept


def _check(header: EmbeddingHeader, sought: Sought) -> None:
    """Raise EmbeddingFault when a file does not fit: fewer rows end vLLM's worker, more are cut without a word, a grid of another shape
    puts rows where they do not belong.
    """
    if (header.rows, header.width) != (sought.rows, sought.width):
        raise EmbeddingFault(
            f"[{header.rows}, {header.width}] where the prompt and the model need [{sought.rows}, {sought.width}]"
        )
    if header.grid != sought.grid:
        raise EmbeddingFault(f"of a grid {header.grid} where the request says {sought.grid}")
