"""Conversations over HTTP/2 made from chance, odd ones among them, with what is answered past h2
and without: what is sent, counted and logged, and how it ends, are the same."""

import base64
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import hpack
import pytest

from kudurru.adapters.dns import engine_native, https
from kudurru.adapters.dns.answering import Answering
from kudurru.adapters.dns.engine_native import AnswerTable
from kudurru.adapters.dns.http2_repeats import (
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    PRIORITY,
    Http2Repeats,
    window_update,
)
from kudurru.adapters.dns.memo import Memo
from kudurru.adapters.networks import Networks
from kudurru.domain.filtering.clients import packed_address
from kudurru.domain.notation import parse_network
from kudurru.domain.ports import Keep, Reply
from tests.absent import absent
from tests.adapters.test_http2_repeats import PATH, PEER, Connection, frame
from tests.dns_clients import MEDIA_TYPE
from tests.packets import name, query

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
PADDED, RST_STREAM, SETTINGS, PING, WINDOW_UPDATE, CONTINUATION = 8, 3, 4, 6, 8, 9
CONVERSATIONS = 60


def record(owner: bytes, ttl: int, rdata: bytes = b"\xc0\0\2\1") -> bytes:
    return owner + b"\0\1\0\1" + ttl.to_bytes(4, "big") + len(rdata).to_bytes(2, "big") + rdata


POINTER = b"\xc0\x0c"
# By the first label of what is asked: flags, how many records each section has, and the records.
ANSWERS = {
    b"one": (0x8180, (1, 0, 0), record(POINTER, 300)),
    b"zone": (0x8580, (2, 1, 0), record(POINTER, 70) + record(name("a.b"), 60) + record(b"\0", 90)),
    b"nothing": (0x8183, (0, 1, 1), record(name("example"), 900, bytes(40)) + record(POINTER, 5)),
    b"empty": (0x8180, (0, 0, 0), b""),
    b"failure": (0x8182, (1, 0, 0), record(POINTER, 300)),
    b"cut": (0x8380, (1, 0, 0), record(POINTER, 300)),
    b"never": (0x8180, (1, 0, 0), record(POINTER, 0)),
    b"large": (0x8180, (1, 0, 0), record(POINTER, 30, bytes(20_000))),
    b"each": (0x8180, (1, 0, 0), record(POINTER, 0xFFFFFFFF)),
}

LABELS = {query(f"{label.decode()}.example")[12:]: label for label in ANSWERS}


class Handler:
    """Tells whom it answers, where that is not for all."""

    takes_client_ids = tells_clients_apart = hears_repeats = True

    def __init__(self) -> None:
        self.named = {"phone"}
        self.asked = 0
        self.heard: list[tuple[object, ...]] = []

    def names_id(self, client_id: str) -> bool:
        return client_id in self.named

    def weigh(self) -> int:
        return 1

    def repeated(self, proto: str, repeats: Iterable[tuple[object, ...]]) -> None:
        self.heard += [(proto, *repeat) for repeat in repeats]

    def handle(self, packet: bytes, client: str, proto: str, client_id: str = "") -> Reply | None:
        self.asked += 1
        question = packet[12 : packet.find(b"\0", 12) + 5]
        label = LABELS.get(question)
        if label is None:
            return None
        flags, counts, records = ANSWERS[label]
        sizes = b"".join(count.to_bytes(2, "big") for count in (1, *counts))
        wire = packet[:2] + flags.to_bytes(2, "big") + sizes + question + records
        if label == b"never":
            return Reply(wire, memo=False)
        if label != b"each":
            return Reply(wire, memo=True)
        is_named = client_id in self.named
        who = packed_address(client)
        wire = wire[:-1] + bytes((0 if is_named else who[-1],))
        keep = None if is_named else Keep(client_class=1 + who[-1] % 3, client=who)
        return Reply(wire, memo=False, keep=keep)


class NoRepeats(Http2Repeats):
    def take(self, arrived: bytearray) -> tuple[int, list[bytes]]:
        return 0, []


class PlainConnection(Connection):
    def repeats_of(self, http: Any) -> Http2Repeats:
        return NoRepeats(http, self.doh, PEER, "")


class Server:
    """Whom octets are given to."""

    def __init__(self, connection: type[Connection], trusted: Networks, *, is_native: bool) -> None:
        self.handler = Handler()
        self.memo = AnswerTable().new_scope() if is_native else Memo()
        self.answering = Answering(self.handler, "https", 65_535, self.memo)
        self.connection = connection(self.answering, trusted)
        self.http = https._Http2(self.connection)  # type: ignore[arg-type]  # as much as it uses
        self.arrived = bytearray()
        self.sent = bytearray()

    def takes(self, octets: bytes) -> None:
        self.arrived += octets
        while not self.connection.is_cut:
            if self.http.work():
                continue
            used = self.http.receive(self.arrived) if self.arrived else 0
            if not used:
                break
            del self.arrived[:used]
        self.sent += self.connection.sent
        self.connection.sent = bytearray()

    def told(self) -> dict[str, object]:
        """All that shows from outside."""
        answering, http = self.answering, self.http._http
        said = read(bytes(self.sent))
        return {
            "streams": said.streams,
            "others": said.others,
            "counters": (answering.received, answering.answered, answering.malformed),
            "by handler": (answering.by_handler, self.handler.asked),
            "from the memo": sum(self.memo.counts().values()),
            "log": self.handler.heard,
            "is cut": self.connection.is_cut,
            "window": http.outbound_flow_control_window,
            "last stream": http.highest_inbound_stream_id,
        }


@dataclass
class Stream:
    headers: list[list[tuple[bytes, bytes]]] = field(default_factory=list)
    body: bytes = b""
    end: bytes | None = None  # the code of its reset; empty: it ended


@dataclass
class Said:
    """But for the date, and the windows that are given back."""

    streams: dict[int, Stream] = field(default_factory=dict)
    others: list[tuple[int, int, bytes]] = field(default_factory=list)


def read(octets: bytes) -> Said:
    decoder = hpack.Decoder()
    decoder.max_allowed_table_size = 1 << 32
    said = Said()
    while octets:
        size, kind, flags = int.from_bytes(octets[:3], "big"), octets[3], octets[4]
        number, body = int.from_bytes(octets[5:9], "big"), octets[9 : 9 + size]
        octets = octets[9 + size :]
        if kind not in (HEADERS, DATA, RST_STREAM):
            if kind != WINDOW_UPDATE:
                said.others.append((kind, flags, body))
            continue
        stream = said.streams.setdefault(number, Stream())
        if kind == RST_STREAM:
            stream.end = body
        elif kind == DATA:
            stream.body += body
        else:
            fields = decoder.decode(body, raw=True)
            stream.headers.append([(bytes(k), bytes(v)) for k, v in fields if k != b"date"])
        if kind != RST_STREAM and flags & END_STREAM:
            stream.end = b""
    return said


KNOWN = [query(f"{label.decode()}.example", ident=0) for label in ANSWERS]
USUAL = [packet for packet in KNOWN if b"large" not in packet and b"never" not in packet]
PACKETS = [*KNOWN, query("drop.example"), b"", b"abc", bytes(12), KNOWN[0] + b"x"]
FIELDS = [
    (b"x-a", b"1"), (b"x-b", b"2"), (b"cookie", b"a=b"),
    (b"x-forwarded-for", b"198.51.100.1"), (b"x-forwarded-for", b"198.51.100.2, 192.0.2.1"),
]  # fmt: skip
ODD_FIELDS = [
    (b"te", b"trailers"), (b"te", b"x"), (b"connection", b"close"), (b"host", b"other"),
    (b"X-Up", b"1"), (b"accept", b" x "), (b"content-type", b"text/plain"), (b":path", b"/x"),
    (b":method", b"GET"), (b"x", b"a\r\nb"), (b"x-long", b"y" * 900), (b"expect", b"100-continue"),
    (b"x-forwarded-for", b"bad"), (b"content-length", b"3"),
]  # fmt: skip
PATHS = [PATH] * 9 + [PATH + more for more in (b"/phone", b"/tablet", b"/", b"?x=1")]
KINDS = [hpack.HeaderTuple, hpack.NeverIndexedHeaderTuple]


class Client:
    """What one says, from chance; `oddness` is how much of it is not as it should be."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.oddness = chance.choice([0, 0.02, 0.1, 0.5])
        self.encoder = hpack.Encoder()
        self.stream = 1
        self.packets = [*chance.choices(USUAL, k=3) * 20, *PACKETS]
        self.forms = [[], [], [], *([chance.choice(FIELDS)] for _ in range(2))]

    def odd(self, share: float = 1.0) -> bool:
        return self.chance.random() < share * self.oddness

    def parts(self) -> Iterator[bytes | str]:
        """Octets, and what happens at the server between them."""
        yield PREFACE + frame(SETTINGS, 0, 0, b"") + window_update(1 << 24)
        for _ in range(self.chance.randrange(5, 70)):
            rolled = self.chance.random()
            if rolled < 0.87:
                yield self.request()
            elif rolled < 0.9:
                yield frame(PING, 0, 0, bytes(8))
            elif rolled < 0.94:
                number, value = self.chance.choice(
                    [(4, 10), (4, 65_535), (4, 0), (1, 0), (1, 64), (1, 4096), (5, 1 << 15)]
                )
                yield frame(SETTINGS, 0, 0, bytes((0, number)) + value.to_bytes(4, "big"))
            elif rolled < 0.96:
                yield frame(2, 0, self.stream, b"\0\0\0\0\1") + frame(0xEE, 7, self.stream, b"odd")
            elif rolled < 0.97 and self.odd():
                yield frame(7, 0, 0, bytes(8))
            else:
                yield self.chance.choice(["forget", "phone", "tablet"])

    def request(self) -> bytes:
        chance, packet = self.chance, self.chance.choice(self.packets)
        is_get = chance.random() < 0.5
        stream = self.stream
        if self.odd(0.1):
            stream = chance.choice([stream + 1, max(1, stream - 2), 0, stream + 10])
        self.stream += 2
        flags = END_STREAM if is_get != self.odd(0.1) else 0
        frames = self.framed(stream, flags, self.block(packet, is_get=is_get))
        if not flags:
            frames += self.body(stream, packet)
        if chance.random() < 0.03:
            frames += frame(RST_STREAM, 0, stream, b"\0\0\0\x08")
        if chance.random() < 0.03:
            frames += frame(WINDOW_UPDATE, 0, stream, b"\0\0\0\1")
        return frames + (frame(DATA, END_STREAM, stream, b"x") if self.odd(0.1) else b"")

    def block(self, packet: bytes, *, is_get: bool) -> bytes:
        chance, path = self.chance, self.chance.choice(PATHS)
        fields = [] if is_get else [MEDIA_TYPE]
        if is_get:
            text = base64.urlsafe_b64encode(packet).rstrip(b"=")
            if self.odd(0.3):
                text = chance.choice([text + b"=", text + b"&x=1", b"%41" + text, text + b"A", b""])
            path += (b"&" if b"?" in path else b"?") + b"dns=" + text
        elif chance.random() < 0.7:
            size = len(packet) + self.odd(0.1)
            fields.append((b"content-length", b"x" if self.odd(0.05) else b"%d" % size))
        method = b"GET" if is_get else b"POST"
        fields = [
            (b":method", chance.choice([b"HEAD", b"PUT", b"get"]) if self.odd(0.1) else method),
            (b":scheme", b"https"),
            (b":path", path),
            (b":authority", b"dns.test"),
            *fields,
            *chance.choice(self.forms),
            *([chance.choice(ODD_FIELDS)] if self.odd(0.3) else []),
        ]
        if self.odd(0.05):
            chance.shuffle(fields)
        if chance.random() < 0.02:
            self.encoder.header_table_size = chance.choice([0, 100, 512, 4096])
        kind = chance.choice([*KINDS, KINDS[1], None])
        made = [(kind or chance.choice(KINDS))(*one) for one in fields]
        return self.encoder.encode(made, huffman=chance.random() < 0.7)

    def framed(self, stream: int, flags: int, block: bytes) -> bytes:
        """A block in frames of headers."""
        rolled = self.chance.random()
        if rolled < 0.1:
            on = stream if self.odd(0.3) else 0
            return frame(
                HEADERS,
                flags | END_HEADERS | PRIORITY,
                stream,
                on.to_bytes(4, "big") + b"\1" + block,
            )
        if rolled < 0.13:
            return frame(HEADERS, flags | END_HEADERS | PADDED, stream, b"\3" + block + bytes(3))
        if rolled < 0.16:
            cut = self.chance.randrange(len(block))
            between = frame(PING, 0, 0, bytes(8)) if self.odd(0.3) else b""
            first = frame(HEADERS, flags, stream, block[:cut])
            return first + between + frame(CONTINUATION, END_HEADERS, stream, block[cut:])
        return frame(HEADERS, flags | END_HEADERS, stream, block)

    def body(self, stream: int, packet: bytes) -> bytes:
        rolled = self.chance.random()
        if rolled < 0.85:
            return frame(DATA, END_STREAM, stream, packet)
        if rolled < 0.9:
            cut = self.chance.randrange(len(packet) + 1)
            first = frame(DATA, 0, stream, packet[:cut])
            return first + frame(DATA, END_STREAM, stream, packet[cut:])
        if rolled < 0.95:
            return frame(DATA, END_STREAM | PADDED, stream, b"\2" + packet + bytes(2))
        if not self.odd():
            return frame(DATA, 0, stream, packet) + frame(DATA, END_STREAM, stream, b"")
        trailers = self.encoder.encode([(b"x-trailer", b"1")])
        return self.chance.choice([
            frame(DATA, 0, stream, packet) + frame(HEADERS, 5, stream, trailers),
            frame(DATA, END_STREAM, stream, bytes(16_385)),
            frame(RST_STREAM, 0, stream, bytes(4)),
        ])  # fmt: skip


def pieces(chance: random.Random) -> list[bytes | str]:
    """A conversation as it arrives: frames together, alone, and cut."""
    style = chance.random()
    found: list[bytes | str] = [b""]
    parts = list(Client(chance).parts())
    if chance.random() < 0.1:
        at = chance.randrange(1, len(parts))
        parts[at] = _changed(parts[at], chance)
    for part in parts:
        last = found[-1]
        if isinstance(part, str) or isinstance(last, str):
            found.append(part)
            continue
        if style < 0.4 or chance.random() < 0.3:
            found.append(part)
        else:
            found[-1] = last + part
    if style < 0.8:
        return found
    cut: list[bytes | str] = []
    for one in found:
        at = chance.randrange(len(one) + 1)
        cut += [one] if isinstance(one, str) else [one[:at], one[at:]]
    return cut


def _changed(octets: bytes | str, chance: random.Random) -> bytes | str:
    """With another bit somewhere."""
    if isinstance(octets, str):
        return octets
    changed = bytearray(octets)
    changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
    return bytes(changed)


@pytest.mark.parametrize("is_native", [False, True], ids=["memo", "table"])
def test_conversations_go_as_they_would_without_repeats(is_native: bool) -> None:
    if is_native and not engine_native.is_available():
        absent("the native engine was not built")
    asked = past_h2 = ended = 0
    for seed in range(CONVERSATIONS):
        chance = random.Random(seed)
        trusted = Networks([parse_network(f"{PEER}/32")] if chance.random() < 0.5 else [])
        servers = [
            Server(kind, trusted, is_native=is_native) for kind in (Connection, PlainConnection)
        ]
        for piece in pieces(chance):
            for server in servers:
                if isinstance(piece, bytes):
                    server.takes(piece)
                    continue
                if piece != "forget":
                    server.handler.named ^= {piece}
                server.memo.invalidate()
        one, other = (server.told() for server in servers)
        assert one == other, f"conversation {seed}"
        asked += servers[0].answering.received
        past_h2 += servers[0].connection.past_h2
        ended += servers[0].connection.is_cut
    assert past_h2 > asked // (5 if is_native else 50)
    assert 0 < ended < CONVERSATIONS * 3 // 4


def test_a_client_may_have_any_number_of_names() -> None:
    """Also the 100th is fast. Who has a name that a group goes by has no answer of others."""
    if not engine_native.is_available():
        absent("the native engine was not built")
    server = Server(Connection, Networks(), is_native=True)
    server.takes(PREFACE + frame(SETTINGS, 0, 0, b"") + window_update(1 << 24))
    encoder = hpack.Encoder()
    packet = query("each.example", ident=0)
    streams = iter(range(1, 10_000, 2))

    def past_h2_of_all() -> int:
        before = server.connection.past_h2
        for number in range(100):
            path = PATH + b"/phone-%d" % number
            fields = [(b":method", b"POST"), (b":scheme", b"https"), (b":path", path)]
            fields += [(b":authority", b"dns.test"), MEDIA_TYPE]
            block = encoder.encode([hpack.NeverIndexedHeaderTuple(*one) for one in fields])
            stream = next(streams)
            head = frame(HEADERS, END_HEADERS, stream, block)
            server.takes(head + frame(DATA, END_STREAM, stream, packet))
        return server.connection.past_h2 - before

    assert [past_h2_of_all() for _ in range(3)] == [0, 100, 100]
    server.handler.named.add("phone-39")
    asked = server.handler.asked
    assert past_h2_of_all() == 99
    assert server.handler.asked == asked + 1
