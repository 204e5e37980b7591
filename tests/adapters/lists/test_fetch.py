"""Fetching lists: what is asked, what is taken, and what is refused however it comes."""

import gzip
import ssl
import zlib
from collections.abc import Iterable, Iterator
from ipaddress import ip_address
from pathlib import Path

import pytest

from kudurru.adapters.lists.fetch import fetch
from kudurru.adapters.lists.jobs import CannotFetch, Request, Resolve, Response
from kudurru.domain.outbound import Address
from tests.adapters.lists.servers import answer, serving
from tests.certificates import make_pair

LIST = b"ads.example\n" * 1000
MIB = 1 << 20


def loopback(_host: str, _port: int) -> list[str]:
    return ["127.0.0.1"]


def only_this(address: Address) -> str | None:
    """Tests serve on 127.0.0.1, which is refused otherwise."""
    return None if address == ip_address("127.0.0.1") else "not for tests"


def get(
    url: str, *, resolve: Resolve = loopback, max_bytes: int = MIB, seconds: float = 10,
    etag: str = "", last_modified: str = "",
) -> tuple[Response, bytes]:  # fmt: skip
    got = bytearray()
    request = Request(url, max_bytes, etag, last_modified)
    response = fetch(
        request, got.extend, resolve=resolve, seconds_left=lambda: seconds, refusal=only_this
    )
    return response, bytes(got)


def test_a_list_comes_with_what_makes_the_next_request_cheap() -> None:
    heads = []

    def script(head: bytes) -> Iterator[bytes]:
        heads.append(head.decode().lower())
        if b"If-None-Match" in head:
            yield answer(status="304 Not Modified")
        else:
            yield answer(LIST, ETag='"v1"', Last_Modified="Sun, 29 Nov 2026 00:00:00 GMT")

    with serving(script) as port:
        url = f"http://lists.example:{port}/list.txt?x=1&y=ä"
        response, got = get(url)
        assert got == LIST
        assert response == Response("new", '"v1"', "Sun, 29 Nov 2026 00:00:00 GMT")
        again = get(url, etag=response.etag, last_modified=response.last_modified)
    assert again == (Response("unchanged", response.etag, response.last_modified), b"")
    assert heads[0].startswith("get /list.txt?x=1&y=%c3%a4 http/1.1\r\n")
    assert f"host: lists.example:{port}\r\n" in heads[0]
    assert "if-modified-since: sun, 29 nov 2026 00:00:00 gmt\r\n" in heads[1]


def raw_deflate(data: bytes) -> bytes:
    pack = zlib.compressobj(wbits=-15)
    return pack.compress(data) + pack.flush()


@pytest.mark.parametrize(
    ("coding", "packed"),
    [("gzip", gzip.compress(LIST)), ("x-gzip", gzip.compress(LIST)),
     ("deflate", zlib.compress(LIST)), ("deflate", raw_deflate(LIST)), ("identity", LIST)],
    ids=["gzip", "x-gzip", "deflate", "raw deflate", "identity"],
)  # fmt: skip
def test_compressed_lists_are_unpacked(coding: str, packed: bytes) -> None:
    with serving(lambda _: [answer(packed, Content_Encoding=coding)]) as port:
        assert get(f"http://lists.example:{port}/")[1] == LIST


def refused(port: int, **more: object) -> str:
    with pytest.raises(CannotFetch) as caught:
        get(f"http://lists.example:{port}/", **more)  # type: ignore[arg-type]  # of each test
    return str(caught.value)


def test_a_bomb_is_seen_when_it_goes_off() -> None:
    pack = zlib.compressobj(9, wbits=31)
    bomb = b"".join(pack.compress(bytes(MIB)) for _ in range(300)) + pack.flush()
    got = bytearray()
    with (
        serving(lambda _: [answer(bomb, Content_Encoding="gzip")]) as port,
        pytest.raises(CannotFetch, match="larger than 1048576 octets"),
    ):
        fetch(
            Request(f"http://lists.example:{port}/", MIB), got.extend,
            resolve=loopback, seconds_left=lambda: 10, refusal=only_this,
        )  # fmt: skip
    assert len(got) <= MIB


def test_a_stream_without_end_is_cut_at_the_limit() -> None:
    def script(_: bytes) -> Iterator[bytes]:
        yield b"HTTP/1.1 200 OK\r\n\r\n"
        while True:
            yield b"x" * 65536

    with serving(script) as port:
        assert refused(port) == "it is larger than 1048576 octets"


@pytest.mark.parametrize(
    "sent",
    [[answer(gzip.compress(LIST)[:-20], Content_Encoding="gzip")],
     [answer(b"no gzip", Content_Encoding="gzip")],
     [answer(LIST, Content_Encoding="br")],
     [b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nads.example\n"],
     [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nads.e\r\n"],
     [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nads.e\r\n"],
     [b"\x00\x01\x02"], [b""], [b"HTTP/1.1 200 OK\r\n" + b"A: " + b"a" * 100_000 + b"\r\n\r\n"],
     [b"HTTP/1.1 200 OK\r\n" + b"A: a\r\n" * 1000 + b"\r\n"]],
)  # fmt: skip
def test_what_is_cut_short_or_damaged_is_no_list(sent: list[bytes]) -> None:
    with serving(lambda _: sent) as port:
        assert refused(port)


def test_an_error_of_the_server_is_named_and_its_page_is_not_quoted() -> None:
    page = answer(b"secret of the intranet", "503 secret-reason", Retry_After="120")
    with serving(lambda _: [page]) as port:
        with pytest.raises(CannotFetch) as caught:
            get(f"http://lists.example:{port}/")
        assert str(caught.value) == "the server answered 503 Service Unavailable"
        assert caught.value.retry_after_s == 120


def hops(count: int, path: bytes = b"/") -> list[bytes]:
    if (at := int(path.strip(b"/") or b"0")) < count:
        return [answer(status="302 Found", Location=f"/{at + 1}")]
    return [answer(LIST)]


def test_five_redirects_are_followed_and_no_more() -> None:
    with serving(lambda head: hops(5, head.split()[1])) as port:
        assert get(f"http://lists.example:{port}/")[1] == LIST
    with serving(lambda head: hops(10**6, head.split()[1])) as port:
        assert refused(port) == "more than 5 redirects"


@pytest.mark.parametrize(
    ("location", "why"),
    [("http://127.0.0.2/", "127.0.0.2 is not for tests"),
     ("http://inside.example/", "169.254.169.254 is not for tests"),
     ("http://[::1]/", "::1 is not for tests"),
     ("http://user:secret@lists.example/", "no plain http or https URL"),
     ("file:///etc/passwd", "no plain http or https URL"),
     ("gopher://lists.example/", "no plain http or https URL"),
     ("http://[::1/", "a redirect to what is no URL"),
     ("http://lists.example:99999/", "an address that is no URL"),
     ("", "a redirect to nowhere"), ("/" + "x" * 3000, "a redirect to nowhere")],
)  # fmt: skip
def test_every_redirect_is_checked_again(location: str, why: str) -> None:
    def resolve(host: str, port: int) -> Iterable[str]:
        return ["169.254.169.254"] if host == "inside.example" else ["127.0.0.1"]

    with serving(lambda _: [answer(status="301 Moved", Location=location)]) as port:
        message = refused(port, resolve=resolve)
    assert why in message
    assert "secret" not in message


def test_a_name_is_resolved_once_and_that_address_is_connected_to() -> None:
    asked = []

    def resolve(host: str, port: int) -> list[str]:
        asked.append(host)
        return ["127.0.0.1"] if len(asked) == 1 else ["127.0.0.2"]

    with serving(lambda _: [answer(LIST)]) as port:
        assert get(f"http://lists.example:{port}/", resolve=resolve)[1] == LIST
    assert asked == ["lists.example"]


def test_another_address_of_the_name_is_tried_when_one_is_silent() -> None:
    with serving(lambda _: [answer(LIST)]) as port, serving(lambda _: [b""]) as other:
        assert other != port
        addresses = ["192.0.2.1", "127.0.0.1"]  # the first one is refused, the second taken
        assert get(f"http://l.example:{port}/", resolve=lambda h, p: addresses)[1] == LIST


def test_names_without_addresses_and_closed_ports_are_told_apart() -> None:
    def nowhere(host: str, port: int) -> list[str]:
        raise OSError("no such name")

    assert refused(1, resolve=nowhere) == "the name of its server has no address"
    assert refused(1, resolve=lambda h, p: []) == "the name of its server has no address"
    with serving(lambda _: []) as port:
        pass
    assert refused(port) == "its server refuses the connection, or cannot be reached"


def test_a_fetch_that_takes_too_long_ends() -> None:
    with serving(lambda _: [answer(LIST)]) as port:
        assert refused(port, seconds=0) == "it took too long"


def test_https_wants_a_certificate_that_is_trusted_and_is_never_left_for_http(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate, key = make_pair("lists.example")
    (tmp_path / "pair").write_bytes(certificate + key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "pair")

    def script(head: bytes) -> list[bytes]:
        if b"GET /down" in head:
            return [answer(status="302 Found", Location="http://lists.example/")]
        return [answer(LIST)]

    with serving(script, context) as port:
        url = f"https://lists.example:{port}/"
        with pytest.raises(CannotFetch, match="TLS failed"):
            get(url)
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "pair"))
        assert get(url)[1] == LIST
        with pytest.raises(CannotFetch, match="TLS failed"):
            get(url.replace("lists.example", "other.example"))
        with pytest.raises(CannotFetch, match="from https to http"):
            get(url + "down")


def test_proxies_of_the_environment_are_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    with serving(lambda _: [answer(LIST)]) as port:
        assert get(f"http://lists.example:{port}/")[1] == LIST
