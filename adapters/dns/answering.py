"""What every transport does with a query: the memo, then the handler; and the counting."""

import asyncio
from dataclasses import dataclass, field

from kudurru.adapters.dns.memo import Memo
from kudurru.domain.ports import EngineStatistics, QueryHandler

HEADER = 12  # octets of a DNS header: what is shorter cannot be answered, RFC 1035 section 4.1.1


@dataclass(slots=True)
class Answering:
    """State of one engine: its handler, its memo, its counters."""

    handler: QueryHandler
    proto: str
    reply_max: int  # octets that the transport can carry
    memo: Memo = field(default_factory=Memo)
    received: int = 0
    answered: int = 0
    hits: list[int] = field(default_factory=lambda: [0] * 16)  # by RCODE
    malformed: int = 0
    proxyproto: int = 0
    full: int = 0
    by_handler: int = 0
    send_errors: int = 0
    exceptions: int = 0

    def recall(self, packet: bytes) -> bytes | None:
        """The answer from the memo, or None."""
        wire = self.memo.find(packet)
        if wire is not None:
            self.hits[wire[3] & 15] += 1
        return wire

    def ask(self, packet: bytes, client: str) -> bytes | None:
        """The handler's answer, remembered where it may be; None is a drop, and counted.

        The handler answers its own faults with SERVFAIL. One that escapes it costs this query and
        is shown by the loop's exception handler; the listener lives.
        """
        young = self.memo.young
        try:
            reply = self.handler.handle(packet, client, self.proto)
            if reply is not None and len(reply.wire) > self.reply_max:
                raise ValueError(f"a reply of {len(reply.wire)} octets; at most {self.reply_max}")
        except Exception as fault:
            self.exceptions += 1
            asyncio.get_running_loop().call_exception_handler(
                {"message": f"the {self.proto} query handler failed", "exception": fault}
            )
            return None
        if reply is None:
            self.by_handler += 1
            return None
        if reply.memo:
            self.memo.store(young, packet, reply.wire)
        return reply.wire

    def statistics(self) -> EngineStatistics:
        return EngineStatistics(
            received=self.received,
            answered=self.answered,
            memo_hits=tuple(self.hits),
            dropped_malformed=self.malformed,
            dropped_proxyproto=self.proxyproto,
            dropped_full=self.full,
            dropped_by_handler=self.by_handler,
            send_errors=self.send_errors,
            unhandled_exceptions=self.exceptions,
        )
