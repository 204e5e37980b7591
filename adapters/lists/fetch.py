"""Fetching one text over HTTP, in a process that may be killed.

What comes is untrusted until it is a file: octets are counted after decompression, in small steps,
so that a bomb is seen when it goes off and not after; every address is checked before it is
connected to, also after a redirect; the environment's proxies are not asked. Errors say what
happened and quote nothing that came.
"""

import http.client
import os
import ssl
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from ipaddress import ip_address
from typing import NamedTuple
from urllib.parse import quote, urljoin, urlsplit

import urllib3
from urllib3.exceptions import (
    ConnectTimeoutError,
    HTTPError,
    NewConnectionError,
    ReadTimeoutError,
    SSLError,
)
from urllib3.util import Timeout

from kudurru import __version__
from kudurru.adapters.lists.jobs import CannotFetch, Request, Resolve, Response
from kudurru.domain.outbound import THIS_MACHINE, Address, why_refused

REDIRECTS_MAX = 5
CONNECT_S = 10.0
SILENCE_S = 30.0
"""Longest wait for the next octets."""
ADDRESSES_MAX = 4
"""Addresses of one name that are tried."""
_STEP = 1 << 16

Refusal = Callable[[Address], str | None]
"""Why an address may not be connected to."""


def fetch(
    request: Request,
    write: Callable[[bytes], object],
    *,
    resolve: Resolve,
    seconds_left: Callable[[], float],
    refusal: Refusal | None = None,
) -> Response:
    """Fetch a text and hand it to `write` piece by piece. Raises: CannotFetch; what `write`
    raises."""
    may_not = refusal or (lambda a: why_refused(a, allow_private=request.allow_private))
    url = request.url
    for _ in range(REDIRECTS_MAX + 1):
        with _opened(url, request, resolve, seconds_left, may_not) as answer:
            if answer.status in (301, 302, 303, 307, 308):
                url = _next(url, answer.headers.get("Location", ""))
                continue
            if answer.status == 304 and (request.etag or request.last_modified):
                return Response("unchanged", request.etag, request.last_modified)
            if answer.status != 200:
                raise CannotFetch(_status_text(answer.status), _retry_after_s(answer.headers))
            for piece in _decoded(_pieces(answer, seconds_left), answer.headers, request.max_bytes):
                write(piece)
            return Response(
                "new",
                _validator(answer.headers, "ETag"),
                _validator(answer.headers, "Last-Modified"),
            )
    raise CannotFetch(f"more than {REDIRECTS_MAX} redirects")


@contextmanager
def _opened(
    url: str,
    request: Request,
    resolve: Resolve,
    seconds_left: Callable[[], float],
    may_not: Refusal,
) -> Iterator[urllib3.BaseHTTPResponse]:
    """The answer to a request, from the first address that gives one."""
    place = _place_of(url)
    headers = _headers(place.authority, request)
    error: CannotFetch | None = None
    for address in _addresses(place.host, place.port, resolve, may_not):
        pool = _pool(place.scheme, address, place.port, place.host)
        try:
            answer = pool.urlopen(
                "GET", place.target, headers=headers, preload_content=False,
                decode_content=False, redirect=False, retries=False, assert_same_host=False,
                timeout=Timeout(
                    min(CONNECT_S, _left(seconds_left)), min(SILENCE_S, _left(seconds_left))
                ),
            )  # fmt: skip
        except (HTTPError, OSError, http.client.HTTPException) as caught:
            error = CannotFetch(_why(caught))
            pool.close()
            continue
        try:
            yield answer
        finally:
            answer.close()
            pool.close()
        return
    assert error is not None
    raise error


class _Place(NamedTuple):
    """Where a request goes."""

    scheme: str
    authority: str  # as the URL has it
    host: str
    port: int
    target: str


def _place_of(url: str) -> _Place:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:  # brackets that do not close, a port that is none
        raise CannotFetch("it leads to an address that is no URL") from None
    if parts.scheme not in ("http", "https") or not host or parts.username or parts.password:
        raise CannotFetch("it leads to an address that is no plain http or https URL")
    if not parts.netloc.isascii():
        raise CannotFetch("the name of its server is not ASCII; write it as xn-- labels")
    path = parts._replace(scheme="", netloc="", fragment="").geturl() or "/"
    target = quote(path, safe="!#$%&'()*+,/:;=?@[]~")
    return _Place(parts.scheme, parts.netloc, host, port, target)


def _headers(authority: str, request: Request) -> dict[str, str]:
    headers = {
        "Host": authority,
        "User-Agent": f"kudurru/{__version__}",
        "Accept": "text/plain, */*;q=0.1",
        "Accept-Encoding": "gzip, deflate",
        "Connection": "close",
    }
    if request.etag:
        headers["If-None-Match"] = request.etag
    if request.last_modified:
        headers["If-Modified-Since"] = request.last_modified
    return headers


def _pool(scheme: str, address: str, port: int, host: str) -> urllib3.HTTPConnectionPool:
    """Connections to an address that was checked; the certificate is for the name."""
    if scheme == "http":
        return urllib3.HTTPConnectionPool(address, port)
    return urllib3.HTTPSConnectionPool(
        address,
        port,
        server_hostname=host,
        assert_hostname=host,
        ssl_context=ssl.create_default_context(),
    )


def _addresses(host: str, port: int, resolve: Resolve, may_not: Refusal) -> list[str]:
    """Addresses of a host that may be connected to. Raises CannotFetch."""
    try:
        found = [str(ip_address(host))]
    except ValueError:
        try:
            found = list(dict.fromkeys(resolve(host, port)))
        except (OSError, UnicodeError) as error:
            raise CannotFetch("the name of its server has no address") from error
    refusals = []
    allowed = []
    for text in found:
        why = may_not(ip_address(text.partition("%")[0]))
        if why is None:
            allowed.append(text)
        else:
            hint = "; a file of it is file:/path" if why == THIS_MACHINE else ""
            refusals.append(f"{text} is {why}{hint}")
    if not allowed:
        raise CannotFetch("; ".join(refusals[:3]) or "the name of its server has no address")
    return allowed[:ADDRESSES_MAX]


def _next(url: str, location: str) -> str:
    if not location or len(location) > 2048:
        raise CannotFetch("a redirect to nowhere")
    try:
        following = urljoin(url, location)
    except ValueError:
        raise CannotFetch("a redirect to what is no URL") from None
    if url.lower().startswith("https:") and not following.lower().startswith("https:"):
        raise CannotFetch("a redirect from https to http, which is not followed")
    return following


def _pieces(answer: urllib3.BaseHTTPResponse, seconds_left: Callable[[], float]) -> Iterator[bytes]:
    try:
        # `read1` gives what is there: a server that trickles is seen to.
        while piece := answer.read1(_STEP, decode_content=False):
            _left(seconds_left)
            yield piece
    except (HTTPError, OSError, http.client.HTTPException) as error:
        raise CannotFetch(_why(error)) from error


def _decoded(
    pieces: Iterable[bytes], headers: Mapping[str, str], max_bytes: int
) -> Iterator[bytes]:
    """Decompressed, at most 64 KiB at once. Raises CannotFetch."""
    coding = headers.get("Content-Encoding", "").strip().lower()
    total = 0
    for piece in _plain(pieces, coding):
        total += len(piece)
        if total > max_bytes:
            raise CannotFetch(f"it is larger than {max_bytes} octets")
        yield piece


def _plain(pieces: Iterable[bytes], coding: str) -> Iterator[bytes]:
    if coding in ("", "identity"):
        yield from pieces
        return
    if coding not in ("gzip", "x-gzip", "deflate"):
        raise CannotFetch("it came in a compression that was not asked for")
    # 32: gzip or zlib, whichever comes
    unpack = zlib.decompressobj(zlib.MAX_WBITS | 32)
    is_first = True
    try:
        for piece in pieces:
            if is_first and coding == "deflate" and piece[0] & 0x0F != 8:
                unpack = zlib.decompressobj(-zlib.MAX_WBITS)  # as old servers understood it
            is_first = False
            while piece:
                yield unpack.decompress(piece, _STEP)
                piece = unpack.unconsumed_tail
        yield unpack.flush(_STEP)
    except zlib.error:
        raise CannotFetch("its compression is damaged") from None
    if not unpack.eof:
        raise CannotFetch("it is cut short")


def _left(seconds_left: Callable[[], float]) -> float:
    left = seconds_left()
    if left <= 0:
        raise CannotFetch("it took too long")
    return left


def _validator(headers: Mapping[str, str], name: str) -> str:
    """What the server wants to be shown again; nothing that would not go into a header."""
    value = headers.get(name, "")
    return value if len(value) <= 512 and value.isascii() and value.isprintable() else ""


def _retry_after_s(headers: Mapping[str, str]) -> int:
    value = headers.get("Retry-After", "")
    return min(int(value), 86_400) if value.isascii() and value.isdecimal() else 0


def _status_text(status: int) -> str:
    known = http.client.responses.get(status)
    return f"the server answered {status}" + (f" {known}" if known else "")


def _why(error: Exception) -> str:
    """What a library's error means; its own text may hold what came."""
    match error:
        case CannotFetch():
            return str(error)
        case SSLError() | ssl.SSLError():
            return "TLS failed: the certificate does not fit, or is not trusted"
        case NewConnectionError():  # before its base, which means silence
            return "its server refuses the connection, or cannot be reached"
        case ConnectTimeoutError():
            return "its server does not answer"
        case ReadTimeoutError() | TimeoutError():
            return "its server fell silent"
        case OSError() if error.strerror:
            return os.strerror(error.errno or 0)
        case _:
            return "the connection broke, or what came is no HTTP"
