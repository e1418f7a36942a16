"""Lists of hosts that an operator writes, compared in the one form that URL hosts have. Pure.

An entry is a name, or ``*.`` and a name: then it stands for every name below, never for the name itself, and ends at a
label (``*.example.com`` is not ``evil-example.com``). International names are compared as IDNA 2008 A-labels, and one
trailing dot is ignored. An entry that no URL could ever match stops the start.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final

import idna

from foveate.core.errors import StartupError, UrlInvalid
from foveate.media.url import parse_host

_LOCAL_SUFFIXES: Final = (
    ".localhost", ".localdomain", ".local", ".internal", ".intranet", ".private", ".corp", ".home", ".lan",
    ".home.arpa",
)  # fmt: skip
"""Names that are never public: RFC 6761, 6762 (with its appendix G), 8375, and ``.internal``, reserved by ICANN."""


@dataclass(frozen=True, slots=True)
class HostList:
    """Normalised entries; a wildcard is kept as ``.example.com``. Empty: no host is listed."""

    entries: frozenset[str] = frozenset()

    @classmethod
    def of(cls, texts: Iterable[str], *, setting: str, addresses: bool = False) -> HostList:
        """Normalise ``texts``; with ``addresses`` an entry may be an IP address too.

        Raises StartupError that names ``setting`` and the entry which can never match.
        """
        return cls(frozenset(_entry(text, setting, addresses) for text in texts))

    def __bool__(self) -> bool:
        """Whether any host is listed."""
        return bool(self.entries)

    def __contains__(self, host: str) -> bool:
        """Whether ``host``, in the form of a :class:`MediaUrl`'s, is listed."""
        if host in self.entries:
            return True
        labels = host.split(".")
        return any("." + ".".join(labels[start:]) in self.entries for start in range(1, len(labels)))


NO_HOSTS: Final = HostList()


def is_local_name(host: str) -> bool:
    """Whether a name means something on a local network only: one label, or below a suffix that is never public."""
    return "." not in host or host.endswith(_LOCAL_SUFFIXES)


def _entry(text: str, setting: str, addresses: bool) -> str:
    name = text.strip().lower()
    literal = name.removeprefix("[").removesuffix("]")
    try:
        address = ip_address(literal)
    except ValueError:
        return _name(text, name, setting)
    if addresses and "%" not in literal:
        return str(address)
    raise StartupError(f"{setting}: {text!r} is an address; list it in fetch.private_networks instead.")


def _name(text: str, name: str, setting: str) -> str:
    wildcard = name.startswith("*.")
    name = name[2:] if wildcard else name
    try:
        # Names in ASCII are compared as they are: some that resolve (``my_host``) are not IDNA.
        encoded = name if name.isascii() else idna.encode(name, uts46=True).decode()
        host, address = parse_host(encoded)
    except (UrlInvalid, idna.IDNAError):
        raise StartupError(f"{setting}: {text!r} is not a host; write example.com or *.example.com.") from None
    if address is not None:
        raise StartupError(f"{setting}: {text!r} can never match; an address has no names below it.")
    return "." + host if wildcard else host
