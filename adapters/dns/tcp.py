"""DNS over TCP (RFC 7766) and TLS (RFC 7858): messages with two octets of length before each,
pipelined.

Answers that are known at once are made in the order of the queries; the others overtake each other
(RFC 7766 section 6.2.1.1). At most QUERIES_PER_TURN are looked at before others get their turn, and
nothing is read from a client that does not take its answers or that waits for OUTSTANDING_MAX. So a
connection holds at most one buffer of queries and one of answers, whatever its client does.

A transfer is an answer of many messages, each made when the client has taken those before. Queries
that come meanwhile wait for its end.
"""

import socket
import ssl
from collections.abc import Callable, Iterator, Sequence

from kudurru.adapters.dns.answering import HEADER, Many, Wire
from kudurru.adapters.dns.memo import Memo
from kudurru.adapters.dns.streams import (
    ANSWERS_HELD_MAX,
    OUTSTANDING_MAX,
    StreamConnection,
    StreamLimits,
    StreamServer,
)
from kudurru.adapters.networks import Networks
from kudurru.domain.later import Later
from kudurru.domain.ports import QueryHandler

QUERIES_PER_TURN = 100  # below 1 ms when the memo knows them


class TcpServer(StreamServer):
    """A `PacketEngine` over TCP, or over TLS where a context is given."""

    def __init__(
        self,
        handler: QueryHandler,
        sockets: Sequence[socket.socket],
        *,
        tls: Callable[[], ssl.SSLContext] | None = None,
        proxies: Networks | None = None,
        limits: StreamLimits | None = None,
        memo: Memo | None = None,
    ) -> None:
        super().__init__(
            handler,
            sockets,
            _Connection,
            proto="tcp" if tls is None else "tls",
            tls=tls,
            proxies=proxies,
            limits=limits,
            memo=memo,
        )


class _Connection(StreamConnection):
    """One client.

    Its deadline is `idle_s` ahead while nothing is under way, and `request_s` ahead of the moment
    when a message began to arrive or the client stopped taking answers. An octet now and then does
    not move it.
    """

    def __init__(self, server: StreamServer) -> None:
        super().__init__(server)
        self._arrived = bytearray()  # not looked at yet
        self._is_waiting_for_turn = False
        self._rest: Iterator[bytes] | None = None  # of an answer of many messages

    def opened(self) -> None:
        pass

    def received(self, octets: bytes | memoryview) -> None:
        was_under_way = bool(self._arrived)
        self._arrived += octets
        if self._work() or not was_under_way:
            self._set_deadline()

    def ended(self) -> None:
        self._work()

    def client_caught_up(self) -> None:
        self._work()
        self._set_deadline()

    def _take_turn(self) -> None:
        self._is_waiting_for_turn = False
        self._work()
        self._set_deadline()

    def _set_deadline(self) -> None:
        under_way = (
            self._arrived
            or self._waiting
            or self._rest is not None
            or self._is_waiting_for_client
            or self._transport.is_closing()
        )
        wait_s = self._limits.request_s if under_way else self._limits.idle_s
        self.deadline_s = self._loop.time() + wait_s

    def _work(self) -> bool:
        """Answer what has arrived, as far as this turn and the client's reading allow. Whether a
        message was complete."""
        transport = self._transport
        if self._is_waiting_for_turn or self._is_waiting_for_client or self.is_over():
            return False
        if self._rest is not None and not self._send_rest():
            return False
        used = self._answer_some()
        del self._arrived[:used]
        if self._rest is not None:
            transport.pause_reading()
            if not self._is_waiting_for_client:
                self._wait_for_turn()
            return used > 0
        has_more = self._message_size() is not None
        is_full = len(self._waiting) >= OUTSTANDING_MAX
        if has_more and not is_full and not self.is_over() and not self._is_waiting_for_client:
            self._wait_for_turn()
        if self.has_ended:
            if not has_more:
                self.close()
        elif has_more or is_full or self._is_waiting_for_client:
            transport.pause_reading()
        elif not self.is_over():
            transport.resume_reading()
        return used > 0

    def _wait_for_turn(self) -> None:
        self._is_waiting_for_turn = True
        self._loop.call_soon(self._take_turn)

    def _send_rest(self) -> bool:
        """Send one more message of an answer of many. Whether that was all of it; an answer that
        cannot be finished ends with the connection, so that nobody takes it for whole."""
        assert self._rest is not None
        try:
            wire = next(self._rest, None)
        except Exception as fault:
            self._answering.failed(fault)
            self._rest = None
            self.abort()
            return False
        if wire is None:
            self._rest = None
            return True
        self.write(len(wire).to_bytes(2, "big") + wire)
        if not self._is_waiting_for_client:
            self._wait_for_turn()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._rest = None
        super().connection_lost(exc)

    def is_over(self) -> bool:
        """Whether no more queries are taken."""
        return self._is_ending or self._transport.is_closing()

    def _answer_late(self, wire: Wire) -> None:
        if self._transport.is_closing():
            return
        if wire is None:
            self.close()
            return
        self.write(len(wire).to_bytes(2, "big") + wire)
        self._answering.answered += 1
        self._work()
        self._set_deadline()

    def _answer_some(self) -> int:
        """Answer one turn of queries and close where one is malformed or dropped; the answers
        before it still leave. Octets used."""
        answering = self._answering
        answers = bytearray()
        used = count = 0
        is_over = False
        while (
            not is_over
            and self._rest is None
            and count < QUERIES_PER_TURN
            and len(answers) < ANSWERS_HELD_MAX
            and len(self._waiting) < OUTSTANDING_MAX
            and (size := self._message_size(used)) is not None
        ):
            packet = bytes(self._arrived[used + 2 : used + 2 + size])
            used += 2 + size
            answering.received += 1
            wire: Wire | Later[Wire] | Many = None
            if size < HEADER:
                answering.malformed += 1
            else:
                wire = answering.recall(packet) or answering.ask_many(packet, self._client)
            count += 1
            if isinstance(wire, Later):
                self._waiting.add(wire, self._answer_late)
            elif wire is None:
                is_over = True
            else:
                if isinstance(wire, Many):
                    wire, self._rest = wire
                answers += len(wire).to_bytes(2, "big") + wire
                answering.answered += 1
        if answers:
            self.write(answers)
        if is_over:
            self.close()
        return used

    def _message_size(self, at: int = 0) -> int | None:
        """Octets of the message at an offset of what has arrived, None while it is not whole."""
        if len(self._arrived) < at + 2:
            return None
        size = int.from_bytes(self._arrived[at : at + 2], "big")
        return size if len(self._arrived) >= at + 2 + size else None
