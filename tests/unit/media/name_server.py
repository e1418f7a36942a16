"""A name server on 127.0.0.1 with an answer a question; it records what it is asked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import dns.flags
import dns.message
import dns.rcode
import dns.rdatatype
import dns.rrset


class NameServer(asyncio.DatagramProtocol):
    """``answers`` maps a name to lists of addresses, one list a lookup; the last one stays. Unknown names do not exist.

    A name in ``silent`` is never answered, one in ``broken`` is a failure of the server.
    """

    def __init__(self, **answers: list[list[str]]) -> None:
        self.answers = {name.replace("_", "."): lists for name, lists in answers.items()}
        self.silent: set[str] = set()
        self.broken: set[str] = set()
        self.asked: list[tuple[str, str]] = []
        self.port = 0

    def connection_made(self, transport: asyncio.DatagramTransport) -> None:  # type: ignore[override]
        self.transport = transport
        self.port = transport.get_extra_info("sockname")[1]

    def datagram_received(self, data: bytes, address: tuple[str, int]) -> None:
        query = dns.message.from_wire(data)
        question = query.question[0]
        name, kind = question.name.to_text(omit_final_dot=True), dns.rdatatype.to_text(question.rdtype)
        lookup = sum(asked == (name, kind) for asked in self.asked)
        self.asked.append((name, kind))
        if name in self.silent:
            return
        reply = dns.message.make_response(query)
        reply.flags |= dns.flags.RA
        if name in self.broken:
            reply.set_rcode(dns.rcode.SERVFAIL)
        elif name not in self.answers:
            reply.set_rcode(dns.rcode.NXDOMAIN)
        else:
            lists = self.answers[name]
            texts = [t for t in lists[min(lookup, len(lists) - 1)] if (":" in t) == (kind == "AAAA")]
            if texts:
                reply.answer.append(dns.rrset.from_text(question.name, 0, "IN", kind, *texts))
        self.transport.sendto(reply.to_wire(), address)


@asynccontextmanager
async def name_server(**answers: list[list[str]]) -> AsyncIterator[NameServer]:
    loop = asyncio.get_running_loop()
    transport, server = await loop.create_datagram_endpoint(lambda: NameServer(**answers), local_addr=("127.0.0.1", 0))
    try:
        yield server
    finally:
        transport.close()
