"""Known answers over HTTP/2 past h2, from the memo and from the table: two ends without a network.
The client's is by h2, which looks at what it is sent."""

import base64
import contextlib
import tracemalloc
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

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
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from kudurru.adapters.dns import engine_native, https
from kudurru.adapters.dns.answering import ANSWERS_MIN, Answering
from kudurru.adapters.dns.doh import HEADERS_MAX, Doh, Request, Response
from kudurru.adapters.dns.engine_native import AnswerTable
from kudurru.adapters.dns.http1_repeats import FORMS_HELD_MAX, FORMS_SURE, Room
from kudurru.adapters.dns.http1_repeats import FORMS_MAX as HELD_MAX
from kudurru.adapters.dns.http2_native import Http2NativeRepeats
from kudurru.adapters.dns.http2_repeats import (
    CREDIT,
    DATA,
    END_HEADERS,
    END_STREAM,
    FORMS_MAX,
    FRAME_HEAD,
    HEADERS,
    PRIORITY,
    SLICE,
    Http2Repeats,
    changes_nothing,
)
from kudurru.adapters.dns.memo import Memo
from kudurru.adapters.networks import Networks
from kudurru.domain.later import Later
from kudurru.domain.notation import parse_network
from kudurru.domain.ports import Reply
from tests.absent import absent
from tests.dns_clients import MEDIA_TYPE, Answered, Headers
from tests.packets import query

if TYPE_CHECKING:
    from kudurru.adapters.dns import _engine

PEER = "192.0.2.1"
PATH = b"/dns-query"
WINDOW = 65_535  # RFC 9113 section 6.9.2


@pytest.fixture(scope="module", autouse=True, params=[False, True], ids=["memo", "table"])
def is_native(request: pytest.FixtureRequest) -> Iterator[bool]:
    if request.param and not engine_native.is_available():
        absent("the native engine was not built")
    Ends.is_native = request.param
    yield request.param
    Ends.is_native = False


table_only = pytest.mark.parametrize("is_native", [True], indirect=True, ids=["table"])


class Handler:
    """Tells the client's address and how often it was asked."""

    def __init__(self) -> None:
        self.asked = 0

    def handle(self, packet: bytes, client: str, proto: str) -> Reply:
        self.asked += 1
        tail = bytes(20_000) if b"large" in packet else f"{client} {self.asked}".encode()
        is_kept = b"never" not in packet
        return Reply(packet[:2] + b"\x81\x80" + bytes(8) + packet[12:] + tail, memo=is_kept)


class Connection:
    """What HTTP/2 is given by its connection, without one."""

    now_s = 0.0

    def __init__(self, answering: Answering, trusted: Networks) -> None:
        self.answering = answering
        self.doh = Doh(answering, trusted)
        self.sent = bytearray()
        self.past_h2 = 0  # requests that h2 did not see
        self.is_cut = False
        self.room = Room()

    def repeats_of(self, http: h2.connection.H2Connection) -> Http2Repeats | Http2NativeRepeats:
        memo = self.answering.memo
        if isinstance(memo, Memo):
            return Http2Repeats(http, self.doh, PEER, "")
        core = memo.new_http2()
        return Http2NativeRepeats(http, self.doh, self.answering, core, PEER, "", self.room)

    def respond(self, request: Request, _later: object) -> Response | None:
        found = self.doh.respond(request, PEER)
        assert not isinstance(found, Later)
        return found

    def write(self, octets: bytes) -> None:
        self.sent += octets

    def write_each(self, parts: Iterable[bytes]) -> None:
        for part in parts:
            self.past_h2 += part[3] == HEADERS
            self.sent += part

    def note_response(self) -> None:
        pass

    def cut(self) -> None:
        self.is_cut = True


class Ends:
    """A client, and HTTP/2 as a server speaks it."""

    is_native = False

    def __init__(self, trusted: Networks | None = None, *, window: int = 1 << 24) -> None:
        """`window`: octets of answers that the client takes before it gives some back."""
        self.handler = Handler()
        memo = AnswerTable().new_scope() if self.is_native else Memo()
        self.answering = Answering(self.handler, "https", 65_535, memo)
        self.client = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding=None))
        self.connection = Connection(self.answering, trusted or Networks())
        self.http = https._Http2(self.connection)  # type: ignore[arg-type]  # as much as it uses
        self.server = self.http._http
        self.arrived = bytearray()
        self.found: dict[int, Answered] = {}
        self.client.initiate_connection()
        if window > WINDOW:
            self.client.increment_flow_control_window(window - WINDOW)
        self.flow()

    @property
    def past_h2(self) -> int:
        return self.connection.past_h2

    def send(
        self,
        packet: bytes,
        *,
        method: bytes = b"POST",
        more: Headers | None = None,
        is_indexed: bool = True,
        **options: int,
    ) -> int:
        """`is_indexed`: new fields enter the table of HPACK."""
        stream = self.client.get_next_available_stream_id()
        path = PATH
        fields = [MEDIA_TYPE, (b"content-length", b"%d" % len(packet))]
        if method == b"GET":
            path += b"?dns=" + base64.urlsafe_b64encode(packet).rstrip(b"=")
            fields = []
        pseudo = [(b":method", method), (b":scheme", b"https"), (b":path", path)]
        pseudo.append((b":authority", b"dns.test"))
        is_get = method == b"GET"
        kind = hpack.HeaderTuple if is_indexed else hpack.NeverIndexedHeaderTuple
        headers = [kind(*field) for field in (*pseudo, *fields, *(more or []))]
        self.client.send_headers(stream, headers, end_stream=is_get, **options)
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
        """Let what was sent arrive and be answered, until nobody has more to say; `to_server`: so
        many octets of it. Raises EOFError when the server ends it."""
        self.arrived += self.client.data_to_send()
        limit = len(self.arrived) if to_server is None else to_server
        arriving, rest = self.arrived[:limit], self.arrived[limit:]
        while self._step(arriving):
            pass
        self.arrived = arriving + rest
        self._hear()
        self.arrived += self.client.data_to_send()
        if to_server is None and self.arrived and not rest and not arriving:
            self.flow()

    def _step(self, arriving: bytearray) -> bool:
        if self.connection.is_cut:
            self._hear()
            raise EOFError("the server has ended it and said no why")
        if self.http.work():
            return True
        used = self.http.receive(arriving) if arriving else 0
        del arriving[:used]
        return used > 0

    def _hear(self) -> None:
        octets, self.connection.sent = bytes(self.connection.sent), bytearray()
        for event in self.client.receive_data(octets):
            self._take(event)

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
    # A block that fills the table, one that only points there, and then the same again. The native
    # one knows what a block means, whatever it points at.
    if method == b"POST":
        assert ends.past_h2 == (9 if Ends.is_native else 8)
    else:
        assert ends.past_h2 > 0
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
    long = query("one.example", ident=0, rest=bytes(400))
    for _ in range(4 * https.BODIES_WINDOW // len(long)):
        ends.ask(long)
    assert ends.client.outbound_flow_control_window > https.BODIES_WINDOW - CREDIT - len(long)
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
    assert ends.ask(ONE) == answer_to(ONE, 1)  # in pieces, as the client takes them
    assert ends.past_h2 == before


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


def frame(kind: int, flags: int, stream: int, body: bytes) -> bytes:
    head = len(body).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big")
    return head + body


class Taught(Ends):
    """Requests in a form of ours that is known, and so are the answers to some packets. `size` is
    what the form says of all bodies; None: nothing."""

    def __init__(self, *known: bytes, size: int | None = None) -> None:
        super().__init__()
        fields = [(b":method", b"POST"), (b":scheme", b"https"), (b":path", PATH)]
        fields += [(b":authority", b"dns.test"), MEDIA_TYPE]
        fields += [] if size is None else [(b"content-length", b"%d" % size)]
        never_indexed = [hpack.NeverIndexedHeaderTuple(*field) for field in fields]
        self.block = hpack.Encoder().encode(never_indexed)
        for packet in known:
            self.answering.memo.store(self.answering.memo.era, packet, answer_to(packet[:40], 0))
        for _ in range(2):
            self.arrives(self.request(known[0]))
        assert self.past_h2 == 1

    def opened(self) -> int:
        """A stream that the client has opened, and nothing was sent on."""
        stream = self.send(ONE)
        self.client.data_to_send()  # frames of ours go instead
        return stream

    def request(
        self, packet: bytes, *, stream: int | None = None, depends_on: int | None = None
    ) -> bytes:
        """The frames of one. `depends_on`: another stream, 0 for itself."""
        stream = stream or self.opened()
        flags, priority = END_HEADERS, b""
        if depends_on is not None:
            flags |= PRIORITY
            priority = (depends_on or stream).to_bytes(4, "big") + b"\x10"
        head = frame(HEADERS, flags, stream, priority + self.block)
        return head + frame(DATA, END_STREAM, stream, packet)

    def arrives(self, octets: bytes) -> None:
        self.arrived += octets
        self.flow()

    def refused(self, octets: bytes) -> str:
        """The code with which the server ends the connection."""
        before = self.past_h2
        with pytest.raises(EOFError) as refused:
            self.arrives(octets)
        assert self.past_h2 == before
        return h2.errors.ErrorCodes(refused.value.args[0]).name


def test_a_body_that_is_not_as_long_as_it_says_is_refused_as_ever() -> None:
    """Also one that is a query whose answer is known."""
    longer = query("longer.example", ident=0)
    ends = Taught(ONE, longer, size=len(ONE))
    ends.arrives(ends.request(ONE))
    assert ends.past_h2 == 2
    assert ends.refused(ends.request(longer)) == "PROTOCOL_ERROR"


def test_a_frame_that_is_larger_than_we_take_is_refused_as_ever() -> None:
    largest = query("one.example", ident=0, rest=bytes(16_384 - len(ONE)))
    # The table has no answers to queries that large.
    ends = Taught(ONE) if Ends.is_native else Taught(largest, largest + b"x")
    ends.arrives(ends.request(largest))
    assert ends.past_h2 == (1 if Ends.is_native else 2)
    assert ends.refused(ends.request(largest + b"x")) == "FRAME_SIZE_ERROR"


def test_a_stream_that_depends_on_itself_is_refused_as_ever() -> None:
    ends = Taught(ONE)
    ends.arrives(ends.request(ONE, depends_on=1))
    assert ends.past_h2 == 2
    assert ends.refused(ends.request(ONE, depends_on=0)) == "PROTOCOL_ERROR"


def test_what_looks_like_a_request_within_a_frame_is_none() -> None:
    """h2 is given the frame in slices, and the second one begins with it."""
    ends = Taught(ONE)
    packet = query("never.example", ident=0)
    packet += bytes(SLICE - FRAME_HEAD - len(packet))
    asked, unasked = ends.opened(), ends.opened()
    packet += ends.request(ONE, stream=unasked)
    ends.arrives(ends.request(packet, stream=asked))
    assert (ends.found[asked].status, ends.found[unasked].status) == (200, 0)
    assert ends.past_h2 == 1


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
    with pytest.raises(EOFError):
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

    past_h2 = (2, 2, 3) if Ends.is_native else (1, 1, 1)
    for number, packet, more in zip((1, 2, 1), (ONE, OTHER, ONE), past_h2, strict=True):
        before = ends.past_h2
        for is_pointer in (False, True, True):
            assert asked(packet, is_pointer=is_pointer) == answer_to(packet, number)
        assert ends.past_h2 == before + more


def test_no_more_is_sent_than_the_window_of_the_connection_lets() -> None:
    ends = Ends()
    for _ in range(3):
        ends.ask(ONE)
    before = ends.past_h2
    ends.server.outbound_flow_control_window = 3 * len(answer_to(ONE, 1)) - 1
    streams = [ends.send(ONE) for _ in range(3)]
    ends.flow()
    assert ends.past_h2 == before + 2
    *whole, part = [ends.found[stream].body for stream in streams]
    assert whole == [answer_to(ONE, 1)] * 2
    assert part == answer_to(ONE, 1)[:-1]
    ends.client.increment_flow_control_window(1)
    ends.flow()
    assert ends.found[streams[2]].body == answer_to(ONE, 1)


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
        more = [(b"x-number", b"%d" % number)]
        for _ in range(3):
            assert ends.ask(ONE, more=more, is_indexed=False) == answer_to(ONE, 1)
        repeats = ends.http._repeats
        assert isinstance(repeats, Http2NativeRepeats) or len(repeats._forms) <= FORMS_MAX
    assert ends.past_h2 == 3 * FORMS_MAX * 2


FORMS_NATIVE_MAX = 1024


def block_of(number: int) -> bytes:
    """A frame of headers in a form of its own."""
    fields = [(b":method", b"POST"), (b":path", PATH), (b"x-number", b"%d" % number)]
    block = hpack.Encoder().encode([hpack.NeverIndexedHeaderTuple(*field) for field in fields])
    return frame(HEADERS, END_HEADERS, 1, block)


@table_only
@pytest.mark.usefixtures("is_native")
def test_native_forms_are_bounded_and_the_oldest_goes() -> None:
    scope = AnswerTable().new_scope()
    scope.store(scope.era, ONE, answer_to(ONE, 0))
    core = scope.new_http2()
    frames = [block_of(number) for number in range(3 * FORMS_NATIVE_MAX)]
    keys = [core.key_of(one) for one in frames]
    names = [f"{number:063}" for number in range(len(frames))]

    def is_known(number: int) -> bool:
        return taken(core, frames[number] + frame(DATA, END_STREAM, 1, ONE))[0] > 0

    tracemalloc.start()
    try:
        for number, key in enumerate(keys):
            core.learn(key, bytes(4), names[number], False)
            core.learn(key, bytes(4), names[number], False)  # again, and there is one of it
            oldest = max(0, number + 1 - FORMS_NATIVE_MAX)
            assert is_known(number)
            assert is_known(oldest)
            assert not oldest or not is_known(oldest - 1)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 48 * FORMS_NATIVE_MAX <= held < 60 * FORMS_NATIVE_MAX
    last = range(2 * FORMS_NATIVE_MAX, 3 * FORMS_NATIVE_MAX)
    assert [number for number in range(len(frames)) if is_known(number)] == list(last)


@table_only
@pytest.mark.usefixtures("is_native")
@pytest.mark.parametrize("clients", [70, 500])
def test_many_clients_of_a_proxy_by_turns_are_answered_past_h2(clients: int) -> None:
    ends = Ends(Networks([parse_network("192.0.2.1/32")]))
    for turn in range(3):
        for client in range(clients):
            address = "198.51.{}.{}".format(*divmod(client, 256))
            packet = query(f"host{client}.example", ident=0)
            more = [(b"x-forwarded-for", address.encode())]
            answer = ends.ask(packet, more=more, is_indexed=False)
            assert answer == answer_to(packet, client + 1, address)
        assert ends.past_h2 == turn * clients


def test_a_form_whose_answers_are_not_known_does_not_drive_out_others() -> None:
    ends = Ends()
    forms: list[Headers] = [[(b"x-number", b"%d" % number)] for number in range(10)]
    for more in forms * 3:
        ends.ask(ONE, more=more, is_indexed=False)
    for _ in range(2 * FORMS_MAX):
        ends.ask(NEVER, more=forms[0], is_indexed=False)
    before = ends.past_h2
    for more in forms:
        ends.ask(ONE, more=more, is_indexed=False)
    assert ends.past_h2 == before + len(forms)


def test_so_many_octets_of_answers_are_made_at_a_time() -> None:
    """A client that does not take them makes us hold no more."""
    ends = Ends()
    medium = query("medium.example", ident=0)
    answer = answer_to(medium, 1) + bytes(16_000)
    ends.answering.memo.store(ends.answering.memo.era, medium, answer)
    for _ in range(3):
        ends.ask(medium, is_indexed=False)
    streams = [ends.send(medium, is_indexed=False) for _ in range(50)]
    arrived = bytearray(ends.client.data_to_send())
    used = ends.http.receive(arrived)
    assert 0 < used < len(arrived)
    assert len(ends.connection.sent) < 3 * ANSWERS_MIN
    ends.arrived += arrived[used:]
    ends.flow()
    assert {len(ends.found[stream].body) for stream in streams} == {len(answer)}


class Conversation(RuleBasedStateMachine):
    """Whatever a client does in between, each request has the answer that it would have. Most say
    the same few things in the same few forms, so that many are repeats."""

    asked = past_h2 = 0  # of all conversations

    def __init__(self) -> None:
        super().__init__()
        self.ends = Ends(window=WINDOW)
        self.expected: dict[int, bytes] = {}
        self.table_size = 4096

    @rule(
        packets=st.lists(st.sampled_from([ONE, OTHER, NEVER, LARGE]), max_size=8),
        method=st.sampled_from([b"POST", b"GET"]),
        more=st.sampled_from([[], [], [(b"x-a", b"1")], [(b"x-b", b"2")], [(b"x-c", b"3" * 900)]]),
        is_prior=st.booleans(),
        is_indexed=st.booleans(),
    )
    def asks(
        self, packets: list[bytes], method: bytes, more: Headers, is_prior: bool, is_indexed: bool
    ) -> None:
        if sum(question == LARGE[12:] for question in self.expected.values()) > 4:
            self.all_arrives()  # a server does not hold ever more of what nobody takes
        options = {"priority_weight": 16} if is_prior else {}
        for packet in packets:
            stream = self.ends.send(
                packet, method=method, more=more, is_indexed=is_indexed, **options
            )
            self.expected[stream] = packet[12:]

    @rule(packet=st.sampled_from([ONE, OTHER]), times=st.integers(2, 9))
    def asks_the_same_again(self, packet: bytes, times: int) -> None:
        """As clients do whose literals are never indexed."""
        for _ in range(times):
            self.expected[self.ends.send(packet, is_indexed=False)] = packet[12:]

    @rule(size=st.integers(0, 2000))
    def some_arrives(self, size: int) -> None:
        self.ends.flow(to_server=size)

    @rule()
    def all_arrives(self) -> None:
        self.ends.flow()
        Conversation.asked += len(self.expected)
        for stream, question in self.expected.items():
            found = self.ends.found[stream]
            assert (found.status, found.body[12 : 12 + len(question)]) == (200, question)
            assert len(found.body) == int(found.headers[b"content-length"])
        self.expected.clear()

    @rule(size=st.sampled_from([0, 64, 4096]))
    def another_size_of_the_table_of_headers(self, size: int) -> None:
        """One at a time: hpack does not say all that it should of several."""
        self.all_arrives()
        if size != self.table_size:
            self.table_size = size
            self.ends.client.update_settings({h2.settings.SettingCodes.HEADER_TABLE_SIZE: size})
            self.ends.flow()
            assert self.ends.ask(ONE, is_indexed=False).startswith(b"\0\0\x81\x80")

    @rule(size=st.sampled_from([100, WINDOW]))
    def another_window(self, size: int) -> None:
        """Of each stream."""
        self.all_arrives()
        self.ends.client.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: size})

    @rule()
    def pings(self) -> None:
        self.ends.client.ping(bytes(8))

    @rule()
    def the_memo_forgets(self) -> None:
        self.ends.answering.memo.invalidate()

    def teardown(self) -> None:
        """Nothing of it keeps what is asked again from being answered past h2."""
        self.all_arrives()
        self.ends.ask(ONE, is_indexed=False)
        before = self.ends.past_h2
        self.ends.ask(ONE, is_indexed=False)
        assert self.ends.past_h2 == before + 1
        Conversation.past_h2 += before


def test_each_request_of_a_conversation_has_its_answer() -> None:
    Conversation.asked = Conversation.past_h2 = 0
    limits = settings(max_examples=30, stateful_step_count=15, deadline=None)
    run_state_machine_as_test(Conversation, settings=limits)
    assert Conversation.past_h2 > Conversation.asked // 10


@pytest.fixture
def core(is_native: bool) -> "_engine.Http2":
    assert is_native
    return AnswerTable().new_scope().new_http2()


@table_only
def test_a_path_is_read_as_the_library_reads_it(core: "_engine.Http2") -> None:
    """In all its lengths, with Huffman's code and without, and put into the table or not."""
    ends = Ends()
    for size in range(1, 250):
        packet = query("one.example", ident=0, rest=bytes(range(size)))
        is_indexed = size % 2 == 0
        for _ in range(2):
            assert ends.ask(packet, method=b"GET", is_indexed=is_indexed) == answer_to(packet, size)
    assert ends.past_h2 == 249


@pytest.mark.parametrize("odd", [(b"te", b"x"), (b"X-A", b"b"), (b"connection", b"close")])
def test_a_field_that_is_refused_is_refused_behind_repeats(odd: tuple[bytes, bytes]) -> None:
    ends = Ends()
    for _ in range(3):
        ends.ask(ONE)
    before = ends.past_h2
    fields = [(b":method", b"POST"), (b":scheme", b"https"), (b":path", PATH)]
    block = ends.client.encoder.encode([*fields, (b":authority", b"dns.test"), odd])
    stream = ends.client.get_next_available_stream_id()
    ends.arrived += frame(HEADERS, END_HEADERS, stream, block)
    ends.arrived += frame(DATA, END_STREAM, stream, ONE)
    with pytest.raises(EOFError):
        ends.flow()
    assert ends.past_h2 == before


@table_only
@pytest.mark.parametrize(
    "path",
    [b"?dns=AAAAA", b"?dns=AB", b"?dns=AA=", b"?dns=A A", b"?dns=\xc3\xa9", b"?dns=" + b"A" * 900],
)
def test_what_is_no_message_is_no_repeat(core: "_engine.Http2", path: bytes) -> None:
    block = hpack.Encoder().encode([(b":method", b"GET"), (b":path", PATH + path)])
    core.learn(core.key_of(frame(HEADERS, 5, 1, block)), bytes(4), "", True)
    assert taken(core, frame(HEADERS, 5, 1, block))[0] == 0


def taken(core: "_engine.Http2", arrived: bytes, stream: int = 0) -> "tuple[Any, ...]":
    return core.take(bytearray(arrived), stream, 16_384, 65_535, 100, b"", False, bool, True)


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


Block = list[tuple[bytes, bytes, bool]]
blocks = st.lists(st.lists(fields, max_size=4), max_size=12)


@table_only
@pytest.mark.usefixtures("is_native")
@given(blocks, st.sampled_from([4096, 200, 0]), st.booleans())
def test_two_readers_of_blocks_read_the_same(blocks: list[Block], size: int, huffman: bool) -> None:
    """Ours is made anew of the library's after each block; what it reads then is the same."""
    encoder, decoder = hpack.Encoder(), hpack.Decoder(max_header_list_size=HEADERS_MAX)
    core = AnswerTable().new_scope().new_http2()
    encoder.header_table_size = size
    decoder.decode(encoder.encode([]), raw=True)
    core.set_table(decoder.header_table.maxsize, decoder.header_table.dynamic_entries)
    for number, given_fields in enumerate(blocks):
        block = encoder.encode(given_fields, huffman=huffman)
        key = core.key_of(frame(HEADERS, END_HEADERS, 2 * number + 1, block))
        read = decoder.decode(block, raw=True)
        core.set_table(decoder.header_table.maxsize, decoder.header_table.dynamic_entries)
        sizes = [(name, value) for name, value in read if name == b"content-length"]
        if key:
            assert key == b"".join(_said(bytes(name), bytes(value)) for name, value in read)
        elif read and len(block) <= SLICE and number == 0 and not sizes:
            assert sum(len(name) + len(value) + 4 for name, value in read) > 2048 or any(
                b"?dns=" in value for _, value in read
            )


def _said(name: bytes, value: bytes) -> bytes:
    """A field in a key."""
    head = len(name).to_bytes(2, "big") + name
    if name == b"content-length":
        return head + b"\xff\xfe"
    return head + len(value).to_bytes(2, "big") + value


@table_only
@pytest.mark.usefixtures("is_native")
@given(st.binary(max_size=60), st.integers(0, 4096), st.lists(st.tuples(st.binary(), st.binary())))
def test_any_octets_leave_the_native_reader_in_order(
    octets: bytes, size: int, entries: list[tuple[bytes, bytes]]
) -> None:
    core = AnswerTable().new_scope().new_http2()
    core.set_table(size, entries)
    for whole in (octets, frame(HEADERS, 5, 1, octets), frame(HEADERS, 0x24, 1, octets)):
        key = core.key_of(whole)
        core.learn(key, bytes(4), "", False)
        assert taken(core, whole)[0] == 0


@given(st.binary(max_size=60))
def test_any_octets_are_a_block_that_changes_nothing_or_are_not(block: bytes) -> None:
    decoder = hpack.Decoder(max_header_list_size=HEADERS_MAX)
    if not changes_nothing(block):
        return
    with contextlib.suppress(hpack.HPACKError):
        decoder.decode(block, raw=True)
        assert not decoder.header_table.dynamic_entries


class Core:
    """Holds the forms of one connection."""

    def __init__(self) -> None:
        self.keys: dict[bytes, None] = {}

    def learn(self, key: bytes, *_form: object) -> None:
        self.keys[key] = None
        if len(self.keys) > HELD_MAX:
            del self.keys[next(iter(self.keys))]


def test_forms_of_all_connections_are_bounded_and_nobody_takes_those_of_others() -> None:
    answering, room = Answering(Handler(), "https", 65_535), Room()
    doh = Doh(answering, Networks())
    headers = [(b":method", b"GET"), (b":path", PATH + b"?dns=AAAA")]

    def connection() -> tuple[Http2NativeRepeats, Core]:
        core: Any = Core()
        http: Any = None  # it only learns
        return Http2NativeRepeats(http, doh, answering, core, PEER, "", room), core

    def learn(repeats: Http2NativeRepeats, count: int) -> None:
        for number in range(count):
            repeats.learn(b"%d" % number, headers)

    modest, of_modest = connection()
    learn(modest, 3)
    greedy = [connection() for _ in range(FORMS_HELD_MAX // HELD_MAX + 3)]
    for repeats, _ in greedy:
        learn(repeats, HELD_MAX + 50)
    assert room.held == sum(len(core.keys) for _, core in (*greedy, (modest, of_modest)))
    assert room.held <= FORMS_HELD_MAX + FORMS_SURE * len(greedy)
    late, of_late = connection()
    learn(late, 50)
    assert list(of_late.keys) == [b"%d" % number for number in range(FORMS_SURE)]
    for repeats, _ in (*greedy, (modest, of_modest), (late, of_late)):
        repeats.forget()
    assert room.held == 0
    learn(late, 50)
    assert room.held == 0, "what is over learns nothing"
