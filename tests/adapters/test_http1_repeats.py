"""Known answers over HTTP/1.1 past h11: what is said is what h11 says, whatever comes and in
whatever pieces."""

import base64
import re
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kudurru.adapters.dns import https
from kudurru.adapters.dns.answering import Answering
from kudurru.adapters.dns.doh import Doh, Request, Response
from kudurru.adapters.dns.http1_repeats import (
    FORMS_HELD_MAX,
    FORMS_MAX,
    FORMS_SURE,
    HEAD_MAX,
    Http1Repeats,
    Room,
    head_at,
)
from kudurru.adapters.networks import Networks
from kudurru.domain.later import Later
from kudurru.domain.ports import Reply
from tests.packets import query

PEER = "192.0.2.1"
TYPE = b"Content-Type: application/dns-message\r\n"


class Handler:
    def handle(self, packet: bytes, client: str, proto: str) -> Reply:
        is_kept = b"never" not in packet
        return Reply(packet[:2] + b"\x81\x80" + bytes(8) + packet[12:], memo=is_kept)


class NoRepeats(Http1Repeats):
    def take(self, arrived: bytearray) -> tuple[int, bytes]:
        return 0, b""


class Counted(Http1Repeats):
    past_h11 = 0

    def take(self, arrived: bytearray) -> tuple[int, bytes]:
        used, responses = super().take(arrived)
        self.past_h11 += responses.count(b"HTTP/1.1 200 OK\r\n")
        return used, responses


class Connection:
    """What HTTP/1.1 is given by its connection, without one."""

    now_s = 0.0

    def __init__(self, repeats: type[Http1Repeats], room: Room | None = None) -> None:
        self.doh = Doh(Answering(Handler(), "https", 65_535), Networks())
        self.repeats = repeats(self.doh, PEER, "", room or Room())
        self.sent = b""
        self.is_cut = False
        self.http = https._Http1(self)  # type: ignore[arg-type]  # as much as it uses
        self._arrived = bytearray()

    @property
    def past_h11(self) -> int:
        assert isinstance(self.repeats, Counted)
        return self.repeats.past_h11

    def http1_repeats(self) -> Http1Repeats:
        return self.repeats

    def respond(self, request: Request, _later: object) -> Response | None:
        found = self.doh.respond(request, PEER)
        assert not isinstance(found, Later)
        return found

    def write(self, octets: bytes) -> None:
        self.sent += octets

    def note_response(self) -> None:
        pass

    def cut(self) -> None:
        self.is_cut = True

    def arrives(self, octets: bytes) -> bytes:
        """What is said then; the date is left out."""
        self._arrived += octets
        while not self.is_cut:
            if not self.http.work():
                used = self.http.receive(self._arrived) if self._arrived else 0
                if not used:
                    break
                del self._arrived[:used]
        said, self.sent = self.sent, b""
        return re.sub(rb"\r\ndate: [^\r]+", b"", said)


def get(packet: bytes, more: bytes = b"", line: bytes = b"GET /dns-query?dns=%b HTTP/1.1") -> bytes:
    text = base64.urlsafe_b64encode(packet).rstrip(b"=")
    return line % text + b"\r\nHost: dns.test\r\n" + more + b"\r\n"


def post(packet: bytes, more: bytes = TYPE, line: bytes = b"POST /dns-query HTTP/1.1") -> bytes:
    size = b"Content-Length: %d\r\n" % len(packet)
    return line + b"\r\nHost: dns.test\r\n" + size + more + b"\r\n" + packet


ONE, OTHER, NEVER = (query(f"{name}.example", ident=0) for name in ("one", "other", "never"))


@pytest.mark.parametrize("request_", [get(ONE), post(ONE)], ids=["GET", "POST"])
def test_a_repeat_is_answered_past_h11_as_h11_answers(request_: bytes) -> None:
    connection = Connection(Counted)
    first = connection.arrives(request_)
    assert first.startswith(b"HTTP/1.1 200 OK\r\n")
    assert first.endswith(ONE[12:])
    for _ in range(3):
        assert connection.arrives(request_) == first
    assert connection.past_h11 == 3


def test_another_message_in_a_known_form_is_read_past_h11() -> None:
    connection = Connection(Counted)
    for packet in (ONE, OTHER):
        connection.arrives(get(packet))
    assert connection.arrives(get(OTHER) + get(ONE)).count(b"200 OK") == 2
    assert connection.past_h11 == 2
    connection.arrives(get(NEVER))
    connection.arrives(get(NEVER))
    assert connection.past_h11 == 2


def test_forms_are_bounded() -> None:
    connection = Connection(Counted)
    long = b"x" * 800
    lines = [b"GET /dns-query/%063d?dns=%%b HTTP/1.1" % number for number in range(3 * FORMS_MAX)]
    heads = [head_at(bytearray(get(ONE, b"X-Long: %b\r\n" % long, line)), 0) for line in lines]
    tracemalloc.start()
    try:
        for head in heads:
            assert head is not None
            target = head.key.split(b" ")[1]
            connection.repeats.learn(head, b"GET", target + text_of(ONE), [])
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(connection.repeats._forms) == FORMS_MAX
    assert held < 512 * FORMS_MAX


def get_for(client: int) -> bytes:
    """As a proxy forwards it."""
    return get(ONE, b"X-Forwarded-For: 198.51.%d.%d\r\n" % divmod(client, 256))


@pytest.mark.parametrize("clients", [70, 500])
def test_many_clients_of_a_proxy_by_turns_are_answered_past_h11(clients: int) -> None:
    connection = Connection(Counted)
    for _ in range(3):
        for client in range(clients):
            connection.arrives(get_for(client))
    assert connection.past_h11 == 2 * clients


def test_one_form_more_than_there_may_be_pushes_out_the_oldest() -> None:
    connection = Connection(Counted)
    for client in range(FORMS_MAX + 1):
        connection.arrives(get_for(client))
    for client in (*range(1, FORMS_MAX + 1), 0):
        connection.arrives(get_for(client))
    assert connection.past_h11 == FORMS_MAX


def test_forms_of_all_connections_are_bounded_and_nobody_takes_those_of_others() -> None:
    room = Room()
    greedy = [Connection(Counted, room) for _ in range(FORMS_HELD_MAX // FORMS_MAX + 3)]
    modest = Connection(Counted, room)
    modest.arrives(get_for(0))
    for connection in greedy:
        for client in range(FORMS_MAX):
            head = head_at(bytearray(get_for(client)), 0)
            assert head is not None
            connection.repeats.learn(head, b"GET", b"/dns-query?dns=" + text_of(ONE), [])
    assert room.held == sum(len(one.repeats._forms) for one in (*greedy, modest))
    assert room.held <= FORMS_HELD_MAX + FORMS_SURE * len(greedy)
    modest.arrives(get_for(0))
    assert modest.past_h11 == 1
    late = Connection(Counted, room)
    for _ in range(3):
        for client in range(FORMS_SURE):
            late.arrives(get_for(client))
    assert late.past_h11 == 2 * FORMS_SURE
    for one in (*greedy, modest, late):
        one.repeats.forget()
    assert room.held == 0
    late.arrives(get_for(0))
    assert room.held == 0, "what is over learns nothing"


CHUNKED = b"Transfer-Encoding: chunked\r\n" + TYPE
REQUESTS = [
    get(ONE), get(ONE), get(OTHER), get(NEVER), post(ONE), post(ONE), post(OTHER), post(NEVER),
    get(ONE, b"Connection: keep-alive\r\n"),
    get(ONE, b"Connection: close\r\n"),
    get(ONE, b"Content-Length: 3\r\n") + b"abc",
    get(ONE, b"X-Long: " + b"x" * HEAD_MAX + b"\r\n"),
    get(ONE, line=b"GET /dns-query?dns=%b HTTP/1.0"),
    get(ONE, line=b"HEAD /dns-query?dns=%b HTTP/1.1"),
    get(ONE, line=b"GET /dns-query?dns=%b&x=1 HTTP/1.1"),
    get(ONE, line=b"GET /dns-query?dns=A%b HTTP/1.1"),
    get(ONE, line=b"GET /dns-query?dns=%b"),
    post(ONE, b"Content-Type: text/plain\r\n"),
    post(ONE, line=b"POST /dns-query?dns=AAAA HTTP/1.1"),
    post(ONE, b"Content-Length: 1\r\n" + TYPE),
    post(ONE, b"Expect: 100-continue\r\n" + TYPE),
    post(b"%x\r\n%b\r\n0\r\n\r\n" % (len(ONE), ONE), CHUNKED),
    b"POST /dns-query HTTP/1.1\r\nHost: a\r\n" + CHUNKED + b"\r\n3\r\nabc\r\n0\r\n\r\n",
    b"\r\n", b"x", b"\r\n\r\n",
    get(ONE).replace(b"\r\n", b"\n"),
    get(ONE, b"X: ?dns=x y\r\n", b"GET /dns-query?x=1&dns=%b HTTP/1.1").replace(b"\r\n", b"\n", 1),
    get(ONE).replace(b"\r\n", b"\n", 2),
    post(ONE).replace(b"\r\n", b"\n"),
]  # fmt: skip


def text_of(packet: bytes) -> bytes:
    return base64.urlsafe_b64encode(packet).rstrip(b"=")


@pytest.mark.parametrize(
    "request_",
    [
        get(ONE, b"\r\n").replace(b"\r\n", b"\n")[:-1] + get(OTHER),
        b"GET /dns-query?x=1&dns=%b HTTP/1.1\nX: ?dns=%b y\r\nHost: dns.test\r\n\r\n"
        % (text_of(ONE), text_of(OTHER)),
    ],
    ids=["two requests", "two messages"],
)
def test_lines_that_end_with_lf_alone_are_read_by_h11(request_: bytes) -> None:
    """Its head may end before ours does, and its target as well."""
    with_repeats, without = Connection(Counted), Connection(NoRepeats)
    for _ in range(3):
        for packet in (ONE, OTHER):
            assert with_repeats.arrives(get(packet)) == without.arrives(get(packet))
        said = with_repeats.arrives(request_)
        assert said == without.arrives(request_)
        assert said.startswith(b"HTTP/1.1 200 OK")


@given(st.lists(st.sampled_from(REQUESTS), max_size=12), st.lists(st.integers(1, 300)))
def test_conversations_go_as_they_would_without_repeats(
    requests: list[bytes], sizes: list[int]
) -> None:
    octets = b"".join(requests)
    with_repeats, without = Connection(Counted), Connection(NoRepeats)
    for size in [*sizes, len(octets)]:
        piece, octets = octets[:size], octets[size:]
        assert with_repeats.arrives(piece) == without.arrives(piece)
    assert with_repeats.is_cut == without.is_cut
    answerings = [one.doh._answering for one in (with_repeats, without)]
    assert len({(one.received, one.answered, one.malformed) for one in answerings}) == 1
