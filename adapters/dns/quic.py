"""DNS over QUIC (RFC 9250) and DNS over HTTP/3: aioquic speaks QUIC, we own the sockets.

A connection counts from its first datagram, and from half of the limit on a client must first show
that it is where it says (Retry, RFC 9000 section 8.1.2). There is no 0-RTT: session tickets are
never issued, so nothing can be replayed. Requests are answered as they become whole.

What a client can make us hold is bounded by an allowance of octets: what it sends costs, and every
answered request gives back more than an honest client spends on it. aioquic's own limits grow with
use, and data behind a gap is kept before anybody sees it.
"""

import asyncio
import os
import socket
from collections.abc import Callable, Sequence
from functools import partial

import msgspec
from aioquic.buffer import Buffer  # type: ignore[attr-defined]  # public by its documentation
from aioquic.quic import events
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.packet import (
    QuicHeader,
    QuicPacketType,
    encode_quic_retry,
    encode_quic_version_negotiation,
    pull_quic_header,
)
from aioquic.quic.retry import QuicRetryTokenHandler

from kudurru.adapters.certificates import Certificate
from kudurru.adapters.connections import Connections, network_of
from kudurru.adapters.dns.answering import Answering, Waiting, Wire
from kudurru.adapters.dns.doh import MESSAGE_MAX, Doh
from kudurru.adapters.dns.memo import Keeper, Memo
from kudurru.adapters.dns.packet_info import ANCILLARY, Control, ask_for_packet_info, reply_info
from kudurru.adapters.dns.quic_applications import (
    APPLICATIONS,
    UNIDIRECTIONAL,
    Application,
    Incoming,
)
from kudurru.adapters.dns.quic_names import NamedConnection
from kudurru.adapters.dns.socket_drops import SocketDrops
from kudurru.adapters.dns.streams import StreamLimits
from kudurru.adapters.dns.tls_stream import client_id_of
from kudurru.adapters.networks import Networks
from kudurru.adapters.sockets import address_of
from kudurru.adapters.turns import Turns
from kudurru.domain.later import Later
from kudurru.domain.ports import EngineStatistics, Origins, QueryHandler

DATAGRAM_MAX = 4096  # octets; paths on the internet carry 1,500
INITIAL_MIN = 1200  # RFC 9000 section 14.1
DATAGRAMS_PER_TURN = 8  # about a millisecond
CID_SIZE = 8
STREAMS_MAX = 100  # requests under way on a connection
RESETS_MAX = 100  # by the client, of one connection
ALLOWANCE = 1 << 20  # octets that a connection may send beyond what its answers gave back
ALLOWANCE_PER_REQUEST = 4 << 10  # and twice what the request itself took
ANSWER_COST = 64  # octets to remember one, so that empty ones are bounded too
RESPONSES_HELD_MAX = 1 << 20  # octets of answers that the client has not taken

Address = tuple[str, int]


class QuicServer:
    """A `PacketEngine` over QUIC: `proto` "quic" is DoQ, "h3" DNS over HTTP/3.

    `certificate` gives the one for a new connection. `trusted` are proxies whose X-Forwarded-For is
    believed.
    """

    def __init__(
        self,
        handler: QueryHandler,
        sockets: Sequence[socket.socket],
        *,
        proto: str,
        certificate: Callable[[], Certificate],
        trusted: Networks | None = None,
        limits: StreamLimits | None = None,
        memo: Memo | Keeper | None = None,
        turns: Turns | None = None,
    ) -> None:
        self._sockets = tuple(sockets)
        self._drops = SocketDrops(sockets)
        self.proto = proto
        self._certificate = certificate
        self.trusted = trusted or Networks()
        self.limits = limits or StreamLimits()
        self.answering = Answering(handler, proto, MESSAGE_MAX, Memo() if memo is None else memo)
        self.doh = Doh(self.answering, self.trusted)
        self._addresses = tuple(dict.fromkeys(address_of(sock) for sock in sockets))
        self._configured: tuple[Certificate, QuicConfiguration] | None = None
        self._tokens = QuicRetryTokenHandler()
        self.by_id: dict[bytes, _Connection] = {}
        self.handshakes_failed = 0
        self._turns = turns or Turns()
        self._waiting: set[socket.socket] = set()  # for a turn
        self.connections: Connections[_Connection] = Connections(self.limits)
        self._is_running = False

    @property
    def addresses(self) -> tuple[str, ...]:
        return self._addresses

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        for sock in self._sockets:
            sock.setblocking(False)
            ask_for_packet_info(sock)
            buffer = memoryview(bytearray(DATAGRAM_MAX + 1))
            loop.add_reader(sock, self._want_turn, sock, buffer)
        self.connections.start()
        self._is_running = True

    async def stop(self) -> None:
        for sock in self._sockets:
            if self._is_running:
                asyncio.get_running_loop().remove_reader(sock)
        await self.connections.stop()
        self._drops.count()  # the last time that anybody can
        for sock in self._sockets:
            sock.close()
        self._is_running = False

    def invalidate(self, changed: Origins = None) -> None:
        self.answering.memo.invalidate(changed)

    def statistics(self) -> EngineStatistics:
        return msgspec.structs.replace(
            self.answering.statistics(),
            handshakes_failed=self.handshakes_failed,
            dropped_unread=self._drops.count(),
            **self.connections.counts(),
        )

    def send(
        self, sock: socket.socket, datagrams: Sequence[tuple[bytes, Address]], control: Control
    ) -> None:
        """Datagrams that find no room are lost, as on any path: QUIC sends what counts again."""
        for datagram, address in datagrams:
            try:
                sock.sendmsg((datagram,), control, 0, address)
            except BlockingIOError:
                self.answering.full += 1
            except OSError:
                self.answering.send_errors += 1

    def _want_turn(self, sock: socket.socket, buffer: memoryview) -> None:
        if sock not in self._waiting:
            self._waiting.add(sock)
            self._turns.take(partial(self._serve, sock, buffer))

    def _serve(self, sock: socket.socket, buffer: memoryview) -> None:
        self._waiting.discard(sock)
        if sock.fileno() < 0:
            return  # stopped meanwhile
        touched: dict[_Connection, None] = {}
        for _ in range(DATAGRAMS_PER_TURN):
            try:
                length, control, _, address = sock.recvmsg_into((buffer,), ANCILLARY)
            except (BlockingIOError, InterruptedError):
                break
            if length <= DATAGRAM_MAX:
                datagram = bytes(buffer[:length])
                connection = self._connection_of(sock, datagram, address, control)
                if connection is not None:
                    connection.receive(datagram, address)
                    touched[connection] = None
        for connection in touched:
            connection.transmit()

    def _connection_of(
        self, sock: socket.socket, datagram: bytes, address: Address, control: Control
    ) -> "_Connection | None":
        """The connection that a datagram belongs to, a new one where it opens one."""
        try:
            header = pull_quic_header(Buffer(data=datagram), host_cid_length=CID_SIZE)
        except ValueError:
            self.answering.malformed += 1
            return None
        known = self.by_id.get(header.destination_cid)
        if known is not None:
            return known
        if header.packet_type == QuicPacketType.VERSION_NEGOTIATION or len(datagram) < INITIAL_MIN:
            return None
        reply = reply_info(control)
        configuration = self._configuration()
        if header.version is not None and header.version not in configuration.supported_versions:
            packet = encode_quic_version_negotiation(
                source_cid=header.destination_cid,
                destination_cid=header.source_cid,
                supported_versions=configuration.supported_versions,
            )
            self.send(sock, [(packet, address)], reply)
            return None
        if header.packet_type != QuicPacketType.INITIAL:
            return None
        return self._accept(sock, header, address, reply, configuration)

    def _accept(
        self,
        sock: socket.socket,
        header: QuicHeader,
        address: Address,
        control: Control,
        configuration: QuicConfiguration,
    ) -> "_Connection | None":
        original = self._original_id(header, address)
        if original is None and len(self.connections) * 2 >= self.limits.connections:
            self.send(sock, [(self._retry(header, address), address)], control)
            return None
        quic = NamedConnection(
            configuration=configuration,
            original_destination_connection_id=original or header.destination_cid,
            retry_source_connection_id=None if original is None else header.destination_cid,
        )
        connection = _Connection(self, quic, sock, address, control)
        if not self.connections.add(connection):
            return None
        connection.known_as(header.destination_cid)
        connection.known_as(quic.host_cid)
        return connection

    def _original_id(self, header: QuicHeader, address: Address) -> bytes | None:
        """The connection id that a client chose before our Retry; None without a token that shows
        it: then the client is as good as new (RFC 9000 section 8.1.3)."""
        try:
            return self._tokens.validate_token(
                address=address,
                destination_cid=header.destination_cid,
                token=header.token,
                now=asyncio.get_running_loop().time(),
            )
        except ValueError:
            return None

    def _retry(self, header: QuicHeader, address: Address) -> bytes:
        source = os.urandom(CID_SIZE)
        token = self._tokens.create_token(
            address=address,
            original_destination_connection_id=header.destination_cid,
            retry_source_connection_id=source,
            now=asyncio.get_running_loop().time(),
        )
        return encode_quic_retry(
            version=header.version or 0,
            source_cid=source,
            destination_cid=header.source_cid,
            original_destination_cid=header.destination_cid,
            retry_token=token,
        )

    def _configuration(self) -> QuicConfiguration:
        certificate = self._certificate()
        if self._configured is None or self._configured[0] is not certificate:
            configuration = QuicConfiguration(
                is_client=False,
                alpn_protocols=[APPLICATIONS[self.proto].alpn],
                connection_id_length=CID_SIZE,
                idle_timeout=self.limits.idle_s,
                max_data=ALLOWANCE,
                max_stream_data=2 * MESSAGE_MAX,
            )
            configuration.certificate = certificate.chain[0]
            configuration.certificate_chain = list(certificate.chain[1:])
            configuration.private_key = certificate.key
            self._configured = certificate, configuration
        return self._configured[1]


class _Connection:
    """One client. Its deadline is `request_s` behind the start of its oldest request, and `idle_s`
    behind the last answer when there is none."""

    def __init__(
        self,
        server: QuicServer,
        quic: NamedConnection,
        sock: socket.socket,
        address: Address,
        control: Control,
    ) -> None:
        self.quic = quic
        self.server = server
        self.answering = server.answering
        self.doh = server.doh
        self.streams: dict[int, Incoming] = {}  # oldest first
        self._sock = sock
        self._control = control
        self._loop = asyncio.get_running_loop()
        self._ids: set[bytes] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._application: Application | None = None
        self._is_open = False
        self._is_ending = False  # closes when the answers to come are there
        self._is_closing = False
        self._waiting = Waiting(self._none_waiting)
        self._resets = 0
        self._allowance = ALLOWANCE
        self._answers: dict[int, int] = {}  # octets by stream, of those that may be on their way
        self._held = 0
        self.network = "" if address[0] in server.trusted else network_of(address[0])
        self.deadline_s = self._loop.time() + server.limits.handshake_s

    # --- from the server ----------------------------------------------------------------

    def known_as(self, connection_id: bytes) -> None:
        self._ids.add(connection_id)
        self.server.by_id[connection_id] = self

    def receive(self, datagram: bytes, address: Address) -> None:
        self._allowance -= len(datagram)
        self.quic.receive_datagram(datagram, address, now=self._loop.time())

    def transmit(self) -> None:
        """Handle what has happened, send what is to be sent, set the timer."""
        self._handle_events()
        incomplete = len(self.streams) - len(self._waiting)
        if self._allowance < 0 or self._resets > RESETS_MAX or incomplete > STREAMS_MAX:
            self._close_for_load()
        now = self._loop.time()
        datagrams = self.quic.datagrams_to_send(now=now)
        self.server.send(self._sock, datagrams, self._control)
        self._handle_events()
        if self._is_closing:
            self._forget()
            return
        if self._timer is not None:
            self._timer.cancel()
        at = self.quic.get_timer()
        self._timer = None if at is None else self._loop.call_at(at, self._wake)

    def expire(self) -> None:
        self._shut() if self._is_open else self.abort()

    def close(self) -> None:
        """Take no more requests, and close when the answers to come are there."""
        if self._waiting:
            self._is_ending = True
        else:
            self._shut()

    def _shut(self) -> None:
        if self._application is not None:
            self.close_with(self._application.no_error)
        self._is_closing = True
        self.transmit()

    def abort(self) -> None:
        self._forget()

    # --- from the application -----------------------------------------------------------

    @property
    def client(self) -> str:
        """Where the client is now: it may move, once it has shown that it is there."""
        address = self.quic.get_peer_address()
        return "" if address is None else str(address[0])

    @property
    def client_id(self) -> str:
        """First label of the name that the client asked for; "" where it asked for none."""
        return client_id_of(self.quic.asked_name)

    def wait(
        self, stream: int, later: Later[Wire], deliver: Callable[[Wire], None], busy: int
    ) -> None:
        """Have an answer delivered when it is there; too many, and the stream is dropped with the
        code `busy`."""
        if len(self._waiting) >= STREAMS_MAX:
            later.cancel()
            self.drop(stream, busy)
            return
        self.streams[stream].later = later
        self._waiting.add(later, partial(self._deliver, stream, deliver))

    def _deliver(self, stream: int, deliver: Callable[[Wire], None], wire: Wire) -> None:
        if self._is_closing or stream not in self.streams:
            return
        self.streams[stream].later = None
        deliver(wire)
        self.transmit()

    def answer(self, stream: int, octets: bytes) -> None:
        """Send the last octets on a stream."""
        self.quic.send_stream_data(stream, octets, end_stream=True)
        self.answered(stream, len(octets))

    def answered(self, stream: int, size: int) -> None:
        """A request is done with; `size` octets were written."""
        incoming = self.streams.pop(stream, None)
        taken = 0 if incoming is None else len(incoming.body)
        self._allowance = min(ALLOWANCE, self._allowance + ALLOWANCE_PER_REQUEST + 2 * taken)
        self._answers[stream] = size
        self._held += size + ANSWER_COST
        if self._held > RESPONSES_HELD_MAX:
            self._count_held()
            if self._held > RESPONSES_HELD_MAX:
                self._close_for_load()
        self._set_deadline(self._loop.time())

    def stop_reading(self, stream: int, code: int) -> None:
        """Let the client know that the rest of its request is not wanted."""
        self.quic.stop_stream(stream, code)

    def drop(self, stream: int, code: int) -> None:
        """Let the client know that no answer will come."""
        self.quic.reset_stream(stream, code)
        self.answered(stream, 0)

    def close_with(self, code: int) -> None:
        self.quic.close(error_code=code)
        self._is_closing = True

    # --- inside -------------------------------------------------------------------------

    def _none_waiting(self) -> None:
        if self._is_ending:
            self._shut()

    def _wake(self) -> None:
        self._timer = None
        self.quic.handle_timer(now=self._loop.time())
        self.transmit()

    def _handle_events(self) -> None:
        pending = []
        while (event := self.quic.next_event()) is not None:
            pending.append(event)
        # What was given up in the same datagrams must not be answered: QUIC has closed it by now.
        given_up = {
            event.stream_id
            for event in pending
            if isinstance(event, events.StreamReset | events.StopSendingReceived)
        }
        for event in pending:
            if not self._is_closing:
                self._handle(event, given_up)

    def _handle(self, event: events.QuicEvent, given_up: set[int]) -> None:
        match event:
            case events.StreamDataReceived(stream_id=stream):
                self._take_data(event, is_given_up=stream in given_up)
            case events.StreamReset() | events.StopSendingReceived():
                self._resets += 1
                given_up_one = self.streams.pop(event.stream_id, None)
                if given_up_one is not None and given_up_one.later is not None:
                    self._waiting.discard(given_up_one.later)
                if self._application is not None:
                    self._application.take(event)
            case events.ProtocolNegotiated():
                self._application = APPLICATIONS[self.server.proto](self)
            case events.HandshakeCompleted():
                self._is_open = True
                self._set_deadline(self._loop.time())
            case events.ConnectionIdIssued():
                self.known_as(event.connection_id)
            case events.ConnectionIdRetired():
                self._ids.discard(event.connection_id)
                self.server.by_id.pop(event.connection_id, None)
            case events.ConnectionTerminated():
                self.server.handshakes_failed += not self._is_open
                self._is_closing = True
            case _:
                pass

    def _take_data(self, event: events.StreamDataReceived, *, is_given_up: bool) -> None:
        stream = event.stream_id
        assert self._application is not None
        if stream & UNIDIRECTIONAL:
            self._application.take(event)
            return
        if is_given_up:
            return
        if stream not in self.streams:
            if self._is_ending:
                return
            if stream in self._answers:
                return  # more of a request that is done with
            now = self._loop.time()
            self.streams[stream] = Incoming(now)
            if len(self.streams) == 1:
                self._set_deadline(now)
        self._application.take(event)

    def _set_deadline(self, now: float) -> None:
        if self.streams:
            oldest = next(iter(self.streams.values()))
            self.deadline_s = oldest.started_s + self.server.limits.request_s
        else:
            self.deadline_s = now + self.server.limits.idle_s

    def _count_held(self) -> None:
        """Answers that aioquic still has: it forgets a stream when the client has all of it."""
        live = self.quic._streams  # no public name tells
        self._answers = {stream: size for stream, size in self._answers.items() if stream in live}
        self._held = sum(self._answers.values()) + ANSWER_COST * len(self._answers)

    def _close_for_load(self) -> None:
        self.close_with(0 if self._application is None else self._application.excessive_load)

    def _forget(self) -> None:
        self._waiting.cancel()
        if self._timer is not None:
            self._timer.cancel()
        for connection_id in self._ids:
            self.server.by_id.pop(connection_id, None)
        self._ids.clear()
        self.server.connections.discard(self)
