"""DNS over TCP (RFC 7766) and TLS (RFC 7858): messages with two octets of length before each,
pipelined.

Answers that are known at once are made in the order of the queries; the others overtake each other
(RFC 7766 section 6.2.1.1). A connection holds at most one read of queries, OUTSTANDING_MAX answers
to come, and one buffer of answers, whatever its client does.

A transfer is an answer of many messages, each made when the client has taken those before. Queries
that come meanwhile wait for its end.
"""

import socket
import ssl
from collections.abc import Callable, Iterator, Sequence

from kudurru.adapters.dns.answering import HEADER, Many, Wire, message_at
from kudurru.adapters.dns.memo import Keeper, Memo
from kudurru.adapters.dns.streams import (
    ANSWERS_HELD_MAX,
    OUTSTANDING_MAX,
    StreamConnection,
    StreamLimits,
    StreamServer,
)
from kudurru.adapters.networks import Networks
from kudurru.adapters.turns import Turns
from kudurru.domain.later import Later
from kudurru.domain.ports import QueryHandler

QUERIES_PER_TURN = 100  # below a millisecond
MISS = 10  # queries that one counts for which the memo does not know


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
        memo: Memo | Keeper | None = None,
        turns: Turns | None = None,
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
            turns=turns,
        )


class _Connection(StreamConnection):
    """One client.

    Its deadline is `idle_s` ahead while nothing is under way, and `request_s` ahead of the moment
    when a message began to arrive or the client stopped taking answers. An octet now and then does
    not move it.
    """

    def __init__(self, server: StreamServer) -> None:
        super().__init__(server)
        self._arrived = bytearray()  # not answered yet
        self._is_begun = False  # a new wait, with what happened last
        self._rest: Iterator[bytes] | None = None  # of an answer of many messages

    def opened(self) -> None:
        pass

    def received(self, octets: bytes | bytearray) -> None:
        self._is_begun = not self._arrived
        self._arrived += octets

    def resume_writing(self) -> None:
        self._is_begun = True
        super().resume_writing()

    def work(self) -> bool:
        if self._is_waiting_for_client or self._is_ending:
            return False
        used = 0
        if self._rest is not None:
            self._is_begun = True
            self._send_rest()
        if self._rest is None and not self._transport.is_closing():
            used = self._answer_some()
            del self._arrived[:used]
        if used or self._is_begun:
            self._is_begun = False
            self._set_deadline()
        return self._rest is not None or message_at(self._arrived, 0) is not None

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

    def _send_rest(self) -> None:
        """Send one more message of an answer of many. One that cannot be finished ends with the
        connection, so that nobody takes it for whole."""
        assert self._rest is not None
        try:
            wire = next(self._rest, None)
        except Exception as fault:
            self._answering.failed(fault)
            self._rest = None
            self.abort()
            return
        if wire is None:
            self._rest = None
        else:
            self.write(len(wire).to_bytes(2, "big") + wire)

    def connection_lost(self, exc: Exception | None) -> None:
        self._rest = None
        super().connection_lost(exc)

    def _answer_late(self, wire: Wire) -> None:
        if self._transport.is_closing():
            return
        if wire is None:
            self.close()
            return
        self.write(len(wire).to_bytes(2, "big") + wire)
        self._answering.answered += 1
        self._is_begun = True
        self._want_turn()

    def _answer_some(self) -> int:
        """Answer one turn of queries and close where one is malformed or dropped; the answers
        before it still leave. Octets used."""
        answering = self._answering
        answers = bytearray()
        used = cost = 0
        is_over = False
        while not is_over and self._rest is None and len(self._waiting) < OUTSTANDING_MAX:
            received = answering.received
            used, known = answering.recall_many(
                self._arrived, used, self._client, self.client_id, QUERIES_PER_TURN - cost
            )
            cost += answering.received - received
            answers += known
            if cost >= QUERIES_PER_TURN or len(answers) >= ANSWERS_HELD_MAX:
                break
            # It stopped before it had to: what comes next is not known, or not whole.
            if (packet := message_at(self._arrived, used)) is None:
                break
            used += 2 + len(packet)
            cost += MISS
            is_over = not self._answer_one(packet, answers)
        if answers:
            self.write(answers)
        if is_over:
            self.close()
        return used

    def _answer_one(self, packet: bytes, answers: bytearray) -> bool:
        """Add the answer to a query that is not known, or wait for it. False: there is none."""
        answering = self._answering
        answering.received += 1
        if len(packet) < HEADER:
            answering.malformed += 1
            return False
        wire = answering.ask_many(packet, self._client, self.client_id)
        if isinstance(wire, Later):
            self._waiting.add(wire, self._answer_late)
            return True
        if isinstance(wire, Many):
            wire, self._rest = wire
        if wire is None:
            return False
        answers += len(wire).to_bytes(2, "big") + wire
        answering.answered += 1
        return True
