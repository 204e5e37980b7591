"""DNS over HTTPS (RFC 8484) without the HTTP: what a request asks and what its response says.

HTTP/1.1, /2 and /3 share it. The DNS answer decides nothing about the status: NXDOMAIN is a 200.
"""

import binascii
import re
import time
from collections.abc import Iterable
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

from kudurru.adapters.dns.answering import HEADER, Answering, Wire
from kudurru.adapters.networks import Networks, client_text
from kudurru.domain.dns.messages import AA, freshness_s
from kudurru.domain.later import Later
from kudurru.domain.notation import parse_address

PATH = b"/dns-query"
_PATH_WITH_ID = re.compile(rb"/dns-query/([A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?)(?![^?])")
MEDIA_TYPE = b"application/dns-message"
MESSAGE_MAX = 65_535
TARGET_MAX = 8 << 10  # octets of path and query
HEADERS_MAX = 32 << 10  # octets of all fields of a request

NO_STORE = b"no-store"

Headers = list[tuple[bytes, bytes]]

_KEPT = frozenset({b":method", b":path", b"content-type", b"x-forwarded-for"})
_ORIGIN = re.compile(rb"^https?://[^/?#]*", re.IGNORECASE)
_BASE64URL = re.compile(rb"[A-Za-z0-9_-]+")
_FORWARDED_MAX = 32  # addresses looked at


class Request(NamedTuple):
    method: bytes
    target: bytes  # path and query
    headers: Headers  # names in lower case
    body: bytes


class Response(NamedTuple):
    status: int
    headers: Headers
    body: bytes


class Form(NamedTuple):
    """What a request says but for its body: who asks, and what, where its target says that. Its
    body has `body_size` octets, None: it does not say."""

    client: str
    client_id: str
    packet: bytes | None
    body_size: int | None


class Doh:
    """The resource /dns-query. `trusted` are the proxies whose X-Forwarded-For is believed."""

    def __init__(self, answering: Answering, trusted: Networks) -> None:
        self._answering = answering
        self._trusted = trusted

    def respond(
        self, request: Request, peer: str, client_id: str = ""
    ) -> Response | Later[Wire] | None:
        """The response; None where nothing is to be sent. `client_id` is what the connection says
        of the client; the path says more. An answer to come is to be given to
        `response_of` when it is there."""
        response = self._respond(request, peer, client_id)
        if isinstance(response, Response) and request.method == b"HEAD":
            return _without_body(response)
        return response

    def response_of(self, wire: Wire, *, is_head: bool) -> Response | None:
        """The response that carries an answer; None for a drop."""
        if wire is None:
            return None
        self._answering.answered += 1
        control = self._cache_control(wire)
        response = _response(200, MEDIA_TYPE, wire, [(b"cache-control", control)])
        return _without_body(response) if is_head else response

    def form_of(self, headers: Headers, peer: str, client_id: str) -> Form | None:
        """What all requests with these fields say; None where each is to be looked at."""
        fields = dict(headers)
        kept = kept_fields(headers)
        request = Request(fields.get(b":method", b""), fields.get(b":path", b""), kept, b"")
        size = fields.get(b"content-length")
        if request.method not in (b"GET", b"POST") or not (size is None or size.isdigit()):
            return None
        try:
            packet = _message_of(request)
        except _Refused:
            return None
        return Form(
            self._client_of(request, peer),
            _client_id_of(request.target) or client_id,
            packet if request.method == b"GET" else None,
            None if size is None else int(size),
        )

    def repeat(
        self, packet: bytes, client: str, client_id: str, room: int = MESSAGE_MAX
    ) -> tuple[bytes, bytes] | None:
        """The answer that is known, of at most so many octets, and its cache-control; else None."""
        wire = self._answering.recall(packet, client, client_id, room)
        if wire is None:
            return None
        self._answering.received += 1
        self._answering.answered += 1
        return wire, self._cache_control(wire)

    def _cache_control(self, wire: bytes) -> bytes:
        """What a zone here says is the same for everybody. All else may be for this client, and no
        cache that others share may keep it then (RFC 9111 section 5.2.2.7)."""
        control = _cache_control(wire)
        is_for_all = wire[2] & AA >> 8 or not self._answering.tells_clients_apart
        return control if is_for_all or control == NO_STORE else b"private, " + control

    def _respond(
        self, request: Request, peer: str, client_id: str
    ) -> Response | Later[Wire] | None:
        try:
            packet = _message_of(request)
        except _Refused as refused:
            return refused.response
        answering = self._answering
        answering.received += 1
        if len(packet) < HEADER:
            answering.malformed += 1
            return refusal(400, "the message has no whole header")
        client = self._client_of(request, peer)
        client_id = _client_id_of(request.target) or client_id
        wire = answering.recall(packet, client, client_id)
        if wire is None:
            found = answering.ask(packet, client, client_id)
            if isinstance(found, Later):
                return found
            wire = found
        return self.response_of(wire, is_head=False)

    def _client_of(self, request: Request, peer: str) -> str:
        """The nearest address that is not one of our proxies'."""
        if peer not in self._trusted:
            return peer
        fields = [value for name, value in request.headers if name == b"x-forwarded-for"]
        hops = b",".join(fields).decode("ascii", "replace").split(",")
        for hop in hops[: -_FORWARDED_MAX - 1 : -1]:
            address = _address_in(hop.strip())
            if address is None:
                return peer
            if address not in self._trusted:
                return address
        return peer


def kept_fields(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """The fields that a request is answered by, none longer than what we look at, so that many
    requests under way are not much to hold."""
    return [
        (bytes(name), bytes(value[: TARGET_MAX + 1])) for name, value in headers if name in _KEPT
    ]


def refusal(status: int, message: str, headers: Iterable[tuple[bytes, bytes]] = ()) -> Response:
    """A response without a DNS message that says why."""
    more = [(b"cache-control", NO_STORE), *headers]
    return _response(status, b"text/plain; charset=utf-8", f"{message}\n".encode(), more)


def _cache_control(wire: bytes) -> bytes:
    return _made_cache_control(wire[2:]) if len(wire) <= _SHORT else _make_cache_control(wire)


def _make_cache_control(wire: bytes) -> bytes:
    seconds = freshness_s(wire)
    return NO_STORE if seconds is None else b"max-age=%d" % seconds


_SHORT = 512  # octets of answers whose freshness is remembered
_made_cache_control = lru_cache(1024)(lambda tail: _make_cache_control(b"\0\0" + tail))


def _without_body(response: Response) -> Response:
    headers = [field for field in response.headers if field[0] != b"content-length"]
    return Response(response.status, headers, b"")


def phrase(status: int) -> bytes:
    return HTTPStatus(status).phrase.encode()


class _Refused(Exception):
    def __init__(
        self, status: int, message: str, headers: Iterable[tuple[bytes, bytes]] = ()
    ) -> None:
        self.response = refusal(status, message, headers)
        super().__init__(message)


def _message_of(request: Request) -> bytes:
    """The DNS message of a request. Raises _Refused."""
    # A whole URL is the same as its path (RFC 9112 section 3.2.2).
    path, _, parameters = _ORIGIN.sub(b"", request.target, 1).partition(b"?")
    if len(request.target) > TARGET_MAX:
        raise _Refused(414, f"at most {TARGET_MAX} octets of path and query")
    if path != PATH and not _PATH_WITH_ID.fullmatch(path):
        raise _Refused(404, "queries go to /dns-query")
    if request.method == b"POST":
        return _posted(request)
    if request.method not in (b"GET", b"HEAD"):
        raise _Refused(405, "GET and POST", [(b"allow", b"GET, HEAD, POST")])
    for parameter in parameters.split(b"&"):
        name, _, value = parameter.partition(b"=")
        if name == b"dns":
            return _decoded(unquote_to_bytes(value))
    raise _Refused(400, "the parameter dns is missing: it is the message in base64url")


def _client_id_of(target: bytes) -> str:
    """What the client calls itself in the path: /dns-query/ID."""
    found = _PATH_WITH_ID.match(target)
    return found[1].decode() if found else ""


def _posted(request: Request) -> bytes:
    kinds = [value for name, value in request.headers if name == b"content-type"]
    if [kind.partition(b";")[0].strip().lower() for kind in kinds] != [MEDIA_TYPE]:
        raise _Refused(415, "the body is to be application/dns-message, and said to be")
    if len(request.body) > MESSAGE_MAX:
        raise _Refused(413, f"at most {MESSAGE_MAX} octets of message")
    return request.body


def message_in(text: bytes) -> bytes | None:
    """What base64url without padding says (RFC 8484 section 6); None of all else."""
    if _BASE64URL.fullmatch(text):
        plain = text.translate(_TO_BASE64) + b"=" * (-len(text) % 4)
        try:
            return binascii.a2b_base64(plain, strict_mode=True)
        except binascii.Error:
            pass
    return None


def _decoded(text: bytes) -> bytes:
    message = message_in(text)
    if message is None:
        raise _Refused(400, "dns is no base64url without padding (RFC 8484 section 6)")
    return message


_TO_BASE64 = bytes.maketrans(b"-_", b"+/")


def _response(status: int, media_type: bytes, body: bytes, more: Headers) -> Response:
    headers = [
        (b"date", http_date()),
        (b"content-type", media_type),
        (b"content-length", b"%d" % len(body)),
        *more,
    ]
    return Response(status, headers, body)


_dated = 0, b""


def http_date() -> bytes:
    global _dated
    now = int(time.time())
    if now != _dated[0]:
        _dated = now, formatdate(now, usegmt=True).encode()
    return _dated[1]


def _address_in(text: str) -> str | None:
    """Address of 192.0.2.1, 192.0.2.1:80, 2001:db8::1 or [2001:db8::1]:80, None of all else."""
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        return client_text(parse_address(text))
    except ValueError:
        return None
