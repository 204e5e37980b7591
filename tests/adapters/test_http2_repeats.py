"""Known answers over HTTP/2 past h2: two ends without a network. The client's is by h2, which looks
at what it is sent."""

import base64
import contextlib

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.exceptions
import h2.settings
import hpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from kudurru.adapters.dns.answering import Answering
from kudurru.adapters.dns.doh import HEADERS_MAX, Doh, Request, Response
from kudurru.adapters.dns.http2_repeats import CREDIT, FORMS_MAX, Http2Repeats, changes_nothing
from kudurru.adapters.networks import Networks
from kudurru.domain.notation import parse_network
from kudurru.domain.ports import Reply
from tests.dns_clients import MEDIA_TYPE, Answered, Headers
from tests.packets import query

PEER = "192.0.2.1"
PATH = b"/dns-query"


class Handler:
    """Tells the client's address and how often it was asked."""

    def __init__(self) -> None:
        self.asked = 0

    def handle(self, packet: bytes, client: str, proto: str) -> Reply:
        self.asked += 1
        tail = bytes(20_000) if b"large" in packet else f"{client} {self.asked}".encode()
        is_kept = b"never" not in packet
        return Reply(packet[:2] + b"\x81\x80" + bytes(8) + packet[12:] + tail, memo=is_kept)


class Ends:
    """A client, and a server that does what `https` does: what is known first, h2 for the rest."""

    def __init__(self, trusted: Networks | None = None) -> None:
        self.handler = Handler()
        self.answering = Answering(self.handler, "https", 65_535)
        self.doh = Doh(self.answering, trusted or Networks())
        self.client = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding=None))
        self.server = h2.connection.H2Connection(
            h2.config.H2Configuration(client_side=False, header_encoding=None)
        )
        self.repeats = Http2Repeats(self.server, self.doh, PEER, "")
        self.arrived = bytearray()
        self.found: dict[int, Answered] = {}
        self.past_h2 = 0  # requests that h2 did not see
        self._asked: dict[int, tuple[Headers, bytearray]] = {}
        self.client.initiate_connection()
        self.client.increment_flow_control_window(1 << 24)
        self.server.initiate_connection()
        self.flow()

    def send(
        self, packet: bytes, *, method: bytes = b"POST", more: Headers | None = None, **options: int
    ) -> int:
        stream = self.client.get_next_available_stream_id()
        path = PATH
        fields = [MEDIA_TYPE, (b"content-length", b"%d" % len(packet))]
        if method == b"GET":
            path += b"?dns=" + base64.urlsafe_b64encode(packet).rstrip(b"=")
            fields = []
        pseudo = [(b":method", method), (b":scheme", b"https"), (b":path", path)]
        pseudo.append((b":authority", b"dns.test"))
        is_get = method == b"GET"
        self.client.send_headers(
            stream, [*pseudo, *fields, *(more or [])], end_stream=is_get, **options
        )
        if not is_get:
            self.client.send_data(stream, packet, end_stream=True)
        self.found[stream] = Answered()
        return stream

    def ask(self, packet: bytes, **options: object) -> bytes:
        stream = self.send(packet, **options)  # type: ignore[arg-type]  # as `send` has them
        self.flow()
        found = self.found.pop(stream)
        assert found.status == 200
        assert found.headers[b"content-type"] == MEDIA_TYPE[1]
        assert found.headers[b"content-length"] == b"%d" % len(found.body)
        assert {b"date", b"cache-control"} <= found.headers.keys()
        return found.body

    def flow(self, *, to_server: int | None = None) -> None:
        """Let what was sent arrive and be answered; `to_server`: so many octets of it."""
        self.arrived += self.client.data_to_send()
        limit = len(self.arrived) if to_server is None else to_server
        arriving, rest = self.arrived[:limit], self.arrived[limit:]
        while self._step(arriving):
            pass
        self.arrived = arriving + rest
        for event in self.client.receive_data(self.server.data_to_send()):
            self._take(event)
        self.arrived += self.client.data_to_send()

    def _step(self, arriving: bytearray) -> bool:
        for event in self.client.receive_data(self.server.data_to_send()):
            self._take(event)
        used, responses = self.repeats.take(arriving)
        if used:
            self.past_h2 += len(responses)
            del arriving[:used]
            for event in self.client.receive_data(b"".join(responses)):
                self._take(event)
            return True
        size, block = self.repeats.next_slice(arriving)
        for event in self.server.receive_data(bytes(arriving[:size])):
            if block and isinstance(event, h2.events.RequestReceived):
                self.repeats.learn(block, event.headers)
            self._serve(event)
        del arriving[:size]
        return size > 0

    def _serve(self, event: h2.events.Event) -> None:
        match event:
            case h2.events.RequestReceived(stream_id=int(stream)):
                self._asked[stream] = event.headers, bytearray()
            case h2.events.DataReceived(stream_id=int(stream)):
                self._asked[stream][1].extend(event.data)
                self.server.acknowledge_received_data(event.flow_controlled_length, stream)
            case h2.events.StreamEnded(stream_id=int(stream)):
                headers, body = self._asked.pop(stream)
                fields = dict(headers)
                request = Request(fields[b":method"], fields[b":path"], headers, bytes(body))
                self._respond(stream, self.doh.respond(request, PEER))

    def _respond(self, stream: int, response: object) -> None:
        assert isinstance(response, Response)
        status = (b":status", b"%d" % response.status)
        self.server.send_headers(stream, [status, *response.headers])
        for at in range(0, len(response.body), 16_384):
            part = response.body[at : at + 16_384]
            self.server.send_data(stream, part, end_stream=at + 16_384 >= len(response.body))

    def _take(self, event: h2.events.Event) -> None:
        match event:
            case h2.events.ResponseReceived(stream_id=int(stream)):
                self.found[stream].take_headers(event.headers)
            case h2.events.DataReceived(stream_id=int(stream)):
                self.found[stream].body += event.data
                self.client.acknowledge_received_data(event.flow_controlled_length, stream)
            case h2.events.ConnectionTerminated():
                raise EOFError(event.error_code)


ONE, OTHER = query("one.example", ident=0), query("other.example", ident=0)
NEVER, LARGE = query("never.example", ident=0), query("large.example", ident=0)


def answer_to(packet: bytes, number: int, client: str = PEER) -> bytes:
    return packet[:2] + b"\x81\x80" + bytes(8) + packet[12:] + f"{client} {number}".encode()


@pytest.mark.parametrize("method", [b"POST", b"GET"])
def test_a_repeat_in_a_known_form_is_answered_past_h2(method: bytes) -> None:
    ends = Ends()
    for _ in range(10):
        assert ends.ask(ONE, method=method) == answer_to(ONE, 1)
    # A block that fills the table, one that only points there, and then the same again.
    assert ends.past_h2 == 10 - 2 if method == b"POST" else ends.past_h2 > 0
    assert (ends.answering.received, ends.answering.answered) == (10, 10)
    assert sum(ends.answering.memo.counts().values()) == 9


def test_many_at_once_are_answered_each_with_its_own() -> None:
    ends = Ends()
    for packet in (ONE, OTHER, ONE, OTHER):
        ends.ask(packet)
    streams = {ends.send(packet): packet for packet in [ONE, OTHER, NEVER] * 20}
    before = ends.past_h2
    ends.flow()
    for stream, packet in streams.items():
        assert ends.found[stream].body.startswith(packet[:2] + b"\x81\x80" + bytes(8) + packet[12:])
    assert ends.past_h2 > before


def test_what_is_not_known_any_more_is_asked_anew() -> None:
    ends = Ends()
    for _ in range(3):
        ends.ask(ONE)
    ends.answering.memo.invalidate()
    assert ends.ask(ONE) == answer_to(ONE, 2)


def test_a_client_may_go_on_asking_as_its_window_is_given_back() -> None:
    ends = Ends()
    long = query("one.example", ident=0, rest=bytes(2000))
    for _ in range(4 * 65_535 // len(long)):
        ends.ask(long)
    assert ends.client.outbound_flow_control_window > 65_535 - CREDIT - len(long)
    assert ends.past_h2 > 100


def test_an_answer_that_needs_more_than_a_frame_is_left_to_h2() -> None:
    ends = Ends()
    bodies = {ends.ask(LARGE) for _ in range(5)}
    assert len(bodies) == 1
    assert ends.past_h2 == 0
    assert ends.handler.asked == 1


def test_a_window_that_is_too_small_is_left_to_h2() -> None:
    ends = Ends()
    for _ in range(3):
        ends.ask(ONE)
    before = ends.past_h2
    ends.client.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 10})
    ends.flow()
    stream = ends.send(ONE)
    with contextlib.suppress(h2.exceptions.FlowControlError):  # of this server, which does not wait
        ends.flow()
    assert ends.past_h2 == before
    assert not ends.found[stream].body


def test_forms_tell_clients_apart_behind_a_proxy() -> None:
    ends = Ends(Networks([parse_network("192.0.2.1/32")]))
    for number, client in ((1, "198.51.100.1"), (2, "198.51.100.2"), (3, "198.51.100.1")):
        more = [(b"x-forwarded-for", client.encode())]
        packet = query(f"host{number}.example", ident=0)
        for _ in range(4):
            assert ends.ask(packet, more=more) == answer_to(packet, number, client)
    assert ends.past_h2 > 0


def test_a_request_in_pieces_is_left_to_h2_and_answered() -> None:
    ends = Ends()
    for _ in range(3):
        ends.ask(ONE)
    for size in range(60):
        stream = ends.send(ONE)
        ends.flow(to_server=size)
        ends.flow()
        assert ends.found[stream].body == answer_to(ONE, 1)


def test_a_body_that_is_not_as_long_as_it_says_is_refused_as_ever() -> None:
    ends = Ends()
    for _ in range(3):
        ends.ask(ONE)
    ends.send(ONE)
    sent = bytearray(ends.client.data_to_send())
    at = len(sent) - len(ONE) - 9
    sent[at : at + 3] = (len(ONE) - 1).to_bytes(3, "big")
    ends.arrived += sent[:-1]
    with pytest.raises(h2.exceptions.ProtocolError):
        ends.flow()


def test_streams_that_h2_did_not_see_are_closed_for_it() -> None:
    ends = Ends()
    for _ in range(3):
        ends.ask(ONE)
    stream = ends.client.get_next_available_stream_id() - 2
    before = ends.past_h2
    data = b"\0\0\1\0\1" + stream.to_bytes(4, "big") + b"x"  # behind the end
    window = b"\0\0\4\x08\0" + stream.to_bytes(4, "big") + b"\0\0\0\1"
    reset = b"\0\0\4\x03\0" + stream.to_bytes(4, "big") + b"\0\0\0\x08"
    for odd in (window, reset, data):
        ends.arrived += odd
        ends.flow()
        assert ends.ask(ONE) == answer_to(ONE, 1)
    assert ends.past_h2 == before + 3


def test_an_older_stream_is_not_answered_again() -> None:
    ends = Ends()
    for _ in range(3):
        ends.ask(ONE)
    ends.send(ONE)
    sent = ends.client.data_to_send()
    ends.arrived += sent
    ends.flow()
    before = ends.past_h2
    ends.arrived += sent
    with pytest.raises(h2.exceptions.ProtocolError):
        ends.flow()
    assert ends.past_h2 == before


def test_a_block_that_came_to_mean_something_else_is_read_anew() -> None:
    """It points into a table that another block has filled meanwhile."""
    ends = Ends()
    fields = [(b":method", b"GET"), (b":scheme", b"https"), (b":authority", b"dns.test")]
    common = hpack.Encoder().encode([hpack.NeverIndexedHeaderTuple(*one) for one in fields])

    def asked(packet: bytes, *, is_pointer: bool) -> bytes:
        path = PATH + b"?dns=" + base64.urlsafe_b64encode(packet).rstrip(b"=")
        # RFC 7541: a path that is put into the table (section 6.2.1), or what came there last.
        block = common + (b"\xbe" if is_pointer else b"\x44%c%b" % (len(path), path))
        stream = ends.send(packet, method=b"GET")
        ends.client.data_to_send()  # ours goes instead
        ends.arrived += len(block).to_bytes(3, "big") + b"\1\5" + stream.to_bytes(4, "big") + block
        ends.flow()
        return ends.found.pop(stream).body

    for number, packet in ((1, ONE), (2, OTHER), (1, ONE)):
        before = ends.past_h2
        for is_pointer in (False, True, True):
            assert asked(packet, is_pointer=is_pointer) == answer_to(packet, number)
        assert ends.past_h2 == before + 1


def test_no_more_is_sent_than_the_window_of_the_connection_lets() -> None:
    ends = Ends()
    for _ in range(3):
        ends.ask(ONE)
    before = ends.past_h2
    ends.server.outbound_flow_control_window = 3 * len(answer_to(ONE, 1)) - 1
    streams = [ends.send(ONE) for _ in range(3)]
    with contextlib.suppress(h2.exceptions.FlowControlError):  # of this server, which does not wait
        ends.flow()
    assert ends.past_h2 == before + 2
    assert [ends.found[stream].body for stream in streams[:2]] == [answer_to(ONE, 1)] * 2


def test_another_size_of_the_table_of_headers_is_told_of_before_the_next_answer() -> None:
    ends = Ends()
    for _ in range(3):
        ends.ask(ONE)
    before = ends.past_h2
    ends.client.update_settings({h2.settings.SettingCodes.HEADER_TABLE_SIZE: 64})
    assert ends.ask(ONE) == answer_to(ONE, 1)  # its client would take no other one
    assert ends.past_h2 == before


def test_forms_are_bounded() -> None:
    ends = Ends()
    for number in range(3 * FORMS_MAX):
        packet = query(f"host{number}.example", ident=0)
        for _ in range(2):
            ends.ask(packet, method=b"GET")
        assert len(ends.repeats._forms) <= FORMS_MAX


class Conversation(RuleBasedStateMachine):
    """Whatever a client does in between, each request has the answer that it would have."""

    def __init__(self) -> None:
        super().__init__()
        self.ends = Ends()
        self.expected: dict[int, bytes] = {}
        self.table_size = 4096

    @rule(
        packets=st.lists(st.sampled_from([ONE, OTHER, NEVER, LARGE]), max_size=5),
        method=st.sampled_from([b"POST", b"GET"]),
        more=st.sampled_from([[], [(b"x-a", b"1")], [(b"x-b", b"2")], [(b"x-c", b"3" * 900)]]),
        is_prior=st.booleans(),
    )
    def asks(self, packets: list[bytes], method: bytes, more: Headers, is_prior: bool) -> None:
        options = {"priority_weight": 16} if is_prior else {}
        for packet in packets:
            stream = self.ends.send(packet, method=method, more=more, **options)
            self.expected[stream] = packet[12:]

    @rule(size=st.integers(0, 2000))
    def some_arrives(self, size: int) -> None:
        self.ends.flow(to_server=size)

    @rule()
    def all_arrives(self) -> None:
        self.ends.flow()
        for stream, question in self.expected.items():
            found = self.ends.found[stream]
            assert (found.status, found.body[12 : 12 + len(question)]) == (200, question)
        self.expected.clear()

    @rule(size=st.sampled_from([0, 64, 4096]))
    def another_size_of_the_table_of_headers(self, size: int) -> None:
        """One at a time: hpack does not say all that it should of several."""
        self.all_arrives()
        if size != self.table_size:
            self.table_size = size
            self.ends.client.update_settings({h2.settings.SettingCodes.HEADER_TABLE_SIZE: size})
            self.ends.flow()
            assert self.ends.ask(NEVER).startswith(b"\0\0\x81\x80")

    @rule()
    def pings(self) -> None:
        self.ends.client.ping(bytes(8))

    @rule()
    def the_memo_forgets(self) -> None:
        self.ends.answering.memo.invalidate()

    def teardown(self) -> None:
        self.all_arrives()


TestConversation = Conversation.TestCase
TestConversation.settings = settings(max_examples=30, stateful_step_count=15, deadline=None)

names = st.sampled_from([b":path", b"content-length", b"x-own", b"cookie"])
fields = st.tuples(names, st.binary(max_size=200), st.booleans())


@given(st.lists(fields, max_size=4), st.lists(fields, max_size=4), st.booleans())
def test_a_block_that_changes_nothing_means_the_same_whenever_it_comes(
    first: list[tuple[bytes, bytes, bool]], then: list[tuple[bytes, bytes, bool]], huffman: bool
) -> None:
    """`sensitive` fields are literals that are never indexed."""
    encoder, decoder = hpack.Encoder(), hpack.Decoder(max_header_list_size=HEADERS_MAX)
    decoder.decode(encoder.encode(first, huffman=huffman), raw=True)
    block = encoder.encode(then, huffman=huffman)
    before = list(decoder.header_table.dynamic_entries)
    decoder.decode(block, raw=True)
    if changes_nothing(block):
        assert list(decoder.header_table.dynamic_entries) == before
    else:
        assert list(decoder.header_table.dynamic_entries) != before


@given(st.binary(max_size=60))
def test_any_octets_are_a_block_that_changes_nothing_or_are_not(block: bytes) -> None:
    decoder = hpack.Decoder(max_header_list_size=HEADERS_MAX)
    if not changes_nothing(block):
        return
    with contextlib.suppress(hpack.HPACKError):
        decoder.decode(block, raw=True)
        assert not decoder.header_table.dynamic_entries
