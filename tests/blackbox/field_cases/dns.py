"""A name server on loopback whose answers a test sets, and which counts what it is asked."""

from __future__ import annotations

import ipaddress
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

_TYPES = {1: 4, 28: 6}
"""A and AAAA, and the IP version of each."""


class NameServer:
    """Answers for the names in ``zone``, and "no such name" for all others.

    Each name has a list of answers, one for each time that it is looked up (the last one stays); an answer is a list of
    addresses, of which a question gets those of its type. ``asked`` counts questions by name and IP version.
    """

    def __init__(self) -> None:
        self.zone: dict[str, list[list[str]]] = {}
        self.asked: Counter[tuple[str, int]] = Counter()
        self.silent: set[str] = set()
        self.slow_seconds: dict[str, float] = {}
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self.port = int(self._socket.getsockname()[1])
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def lookups(self, name: str) -> int:
        """Return how often this name was looked up (both of its types together count once)."""
        return max(self.asked[name, 4], self.asked[name, 6])

    def close(self) -> None:
        self._socket.sendto(b"", self._socket.getsockname())
        self._thread.join()
        self._socket.close()

    def _serve(self) -> None:
        while True:
            query, client = self._socket.recvfrom(4096)
            if not query:
                return
            threading.Thread(target=self._reply, args=(query, client), daemon=True).start()

    def _reply(self, query: bytes, client: tuple[str, int]) -> None:
        name, kind, end = _question(query)
        version = _TYPES.get(kind, 0)
        with self._lock:
            turn = self.asked[name, version]
            self.asked[name, version] += 1
        if name in self.silent:
            return
        time.sleep(self.slow_seconds.get(name, 0))
        answers = self.zone.get(name)
        found = [ipaddress.ip_address(text) for text in answers[min(turn, len(answers) - 1)]] if answers else []
        records = [address.packed for address in found if address.version == version]
        flags = 0x8180 if answers else 0x8183
        head = query[:2] + struct.pack("!HHHHH", flags, 1, len(records), 0, 0)
        body = b"".join(b"\xc0\x0c" + struct.pack("!HHIH", kind, 1, 0, len(data)) + data for data in records)
        self._socket.sendto(head + query[12:end] + body, client)


def _question(query: bytes) -> tuple[str, int, int]:
    """Return name, type and end of a query's one question."""
    labels, at = [], 12
    while query[at]:
        labels.append(query[at + 1 : at + 1 + query[at]].decode("ascii", "replace").lower())
        at += 1 + query[at]
    return ".".join(labels), struct.unpack("!H", query[at + 1 : at + 3])[0], at + 5


@contextmanager
def name_server() -> Iterator[NameServer]:
    made = NameServer()
    try:
        yield made
    finally:
        made.close()
