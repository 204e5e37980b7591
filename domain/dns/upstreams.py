"""Where questions are sent, as people write it.

    192.0.2.1  192.0.2.1:5353  [2001:db8::1]:53     UDP, and TCP for long answers
    udp://…  tcp://…                                the same; TCP only
    tls://dns.example  tls://192.0.2.1#name=dns.example
    https://dns.example/dns-query  h3://…  quic://…
    sdns://…                                        a stamp

After a `#` stand options, joined by `&`: `ip=` an address of the host (repeats), so that its name
need not be looked up; `name=` the name its certificate must have; `pin=` the SHA-256 of its public
key in base64 (RFC 7858 section 4.2; repeats), instead of a name; `trusted`, when its word counts
that an answer is validated (AD). In a list `[/corp.example/home.arpa/]192.0.2.1` is asked for names
in those domains only.
"""

import base64
import binascii
import re
from typing import Literal
from urllib.parse import urlsplit

import msgspec

from kudurru.domain.dns import names
from kudurru.domain.dns.names import Name
from kudurru.domain.dns.stamps import HASH_SIZE, SCHEME, BadStamp, Stamp, parse_stamp
from kudurru.domain.notation import parse_address

Transport = Literal["udp", "tcp", "dot", "doh", "doh3", "doq", "dnscrypt"]

PORTS: dict[Transport, int] = {
    "udp": 53, "tcp": 53, "dot": 853, "doh": 443, "doh3": 443, "doq": 853, "dnscrypt": 443,
}  # fmt: skip
_SCHEMES: dict[str, Transport] = {
    "udp": "udp", "tcp": "tcp", "tls": "dot", "https": "doh", "h3": "doh3", "quic": "doq",
}  # fmt: skip
_STAMPED: dict[str, Transport] = {
    "plain": "udp", "dnscrypt": "dnscrypt", "doh": "doh", "dot": "dot", "doq": "doq",
}  # fmt: skip
PATH = "/dns-query"
WANTED = "write 192.0.2.1, tls://dns.example, https://dns.example/dns-query or sdns://…"

_HOST_NAME = re.compile(r"(?:[A-Za-z0-9_-]{1,63}\.)*[A-Za-z0-9_-]{1,63}\.?")
_MISTYPED = re.compile(r"[A-Za-z0-9_.-]*\.[0-9]+")
_FOR_DOMAINS = re.compile(r"\[/([^\]]*)/\](.*)")


class UpstreamAddress(msgspec.Struct, frozen=True, kw_only=True):
    """One upstream, parsed."""

    text: str  # as written; what it is called in metrics and logs
    transport: Transport
    host: str  # a name or an address
    port: int
    path: str = ""  # of HTTP
    addresses: tuple[str, ...] = ()  # none: `host` is to be looked up
    name: str = ""  # the certificate's; empty: any, with a pin
    pins: tuple[bytes, ...] = ()  # SHA-256 of the public key
    hashes: tuple[bytes, ...] = ()  # SHA-256 of the TBS part of a certificate, of stamps
    public_key: bytes = b""  # of a DNSCrypt provider, as is
    provider: str = ""
    is_trusted: bool = False


class ForDomains(msgspec.Struct, frozen=True):
    """An upstream, and the domains it is asked for; none: all."""

    address: UpstreamAddress
    domains: tuple[Name, ...] = ()


def parse_entry(text: str) -> ForDomains:
    """An upstream with or without `[/domain/]` before it. Raises ValueError."""
    match = _FOR_DOMAINS.fullmatch(text)
    if match is None:
        return ForDomains(parse_upstream(text))
    domains = tuple(names.key(names.from_text(one)) for one in match[1].split("/") if one)
    if not domains:
        raise ValueError(f"{text!r} names no domain; write [/corp.example/]192.0.2.1")
    return ForDomains(parse_upstream(match[2]), domains)


def parse_upstream(text: str) -> UpstreamAddress:
    """Raises ValueError with a message that shows the right form."""
    try:
        if text.startswith(SCHEME):
            return _stamped(text)
        return _written(text)
    except BadStamp as fault:
        raise ValueError(f"{text[:60]!r}: {fault}") from None


def check_host(found: UpstreamAddress) -> None:
    """Of an upstream that somebody writes anew: a name that ends in a number is an address with a
    slip in it (RFC 1123 section 2.1). What was recorded with one is still read. Raises ValueError.
    """
    if not found.addresses and _MISTYPED.fullmatch(found.host):
        raise ValueError(f"{found.text!r}: {found.host} is neither an IP address nor a host name")


def _written(text: str) -> UpstreamAddress:
    body, _, options = text.partition("#")
    scheme, separator, rest = body.partition("://")
    host, slash, path = (rest if separator else body).partition("/")
    url = f"{scheme if separator else 'udp'}://{_bracketed(host)}{slash}{path}"
    transport = _SCHEMES.get(scheme if separator else "udp")
    if transport is None or not body.isascii() or not text.isprintable() or " " in text:
        raise ValueError(f"{text!r} is no upstream; {WANTED}")
    parts = urlsplit(url)
    try:
        host, port = parts.hostname or "", parts.port
    except ValueError:
        raise ValueError(f"{text!r}: the port is no number up to 65535") from None
    if parts.username is not None:
        raise ValueError(f"{host!r}: user names and passwords do not belong into an upstream")
    is_http = transport in ("doh", "doh3")
    if not is_http and (parts.path not in ("", "/") or parts.query):
        raise ValueError(f"{text!r}: only https:// and h3:// have a path")
    address = _address_of(host)
    if address is None and not _HOST_NAME.fullmatch(host):
        raise ValueError(f"{text!r} is no upstream; {WANTED}")
    path = (parts.path if parts.path not in ("", "/") else PATH) if is_http else ""
    found = UpstreamAddress(
        text=text,
        transport=transport,
        host=host,
        port=PORTS[transport] if port is None else port,
        path=path + (f"?{parts.query}" if parts.query else ""),
        addresses=(address,) if address else (),
        name=host,
    )
    if not found.port:
        raise ValueError(f"{text!r}: port 0 cannot be asked")
    return _with_options(found, options) if options else found


def _with_options(found: UpstreamAddress, options: str) -> UpstreamAddress:
    values: dict[str, list[str]] = {}
    for option in options.split("&"):
        key, _, value = option.partition("=")
        values.setdefault(key, []).append(value)
    unknown = sorted(values.keys() - {"ip", "name", "pin", "trusted"})
    if unknown and unknown[0].isdecimal():  # as dnsmasq and unbound write a port
        raise ValueError(f"{found.text!r}: a port is written {found.host}:{unknown[0]}")
    if unknown:
        raise ValueError(
            f"{found.text!r}: unknown option {unknown[0]!r}; there are ip=, name=, pin=, trusted"
        )
    pins = tuple(_pin(found.text, text) for text in values.get("pin", ()))
    name = values.get("name", ["" if pins else found.name])[0]
    return msgspec.structs.replace(
        found,
        addresses=tuple(str(parse_address(text)) for text in values.get("ip", found.addresses)),
        name=name,
        pins=pins,
        is_trusted="trusted" in values,
    )


def _pin(upstream: str, text: str) -> bytes:
    try:
        octets = base64.b64decode(text.removeprefix("sha256/"), validate=True)
    except binascii.Error:
        octets = b""
    if len(octets) != HASH_SIZE:
        raise ValueError(f"{upstream!r}: a pin is the SHA-256 of a public key in base64")
    return octets


def _stamped(text: str) -> UpstreamAddress:
    body, _, options = text.partition("#")
    stamp = parse_stamp(body)
    transport = _STAMPED.get(stamp.protocol)
    if transport is None:
        raise BadStamp(f"a stamp of {stamp.protocol} names no resolver that can be asked directly")
    host, port = _host_and_port(stamp.host or stamp.address)
    address, address_port = _host_and_port(stamp.address)
    ip = _address_of(address)
    if address and ip is None:
        raise BadStamp(f"the stamp's address {address!r} is no IP address")
    if not stamp.host and ip is None:
        raise BadStamp("the stamp has no address")
    found = UpstreamAddress(
        text=text,
        transport=transport,
        host=host,
        port=port or address_port or PORTS[transport],
        path=_path(stamp) if transport == "doh" else "",
        addresses=(ip,) if ip else (),
        name=host if stamp.host else "",
        hashes=stamp.hashes,
        public_key=stamp.public_key,
        provider=stamp.provider,
    )
    return _with_options(found, options) if options else found


def _path(stamp: Stamp) -> str:
    return stamp.path if stamp.path.startswith("/") else f"/{stamp.path}"


def _host_and_port(text: str) -> tuple[str, int]:
    """`host`, `host:port`, `[v6]:port`, `[v6]` or a bare IPv6 address; port 0: none given."""
    if text.startswith("["):
        host, _, rest = text[1:].partition("]")
        return host, _port(rest.removeprefix(":"))
    if text.count(":") == 1:
        host, _, rest = text.partition(":")
        return host, _port(rest)
    return text, 0


def _port(text: str) -> int:
    if not text:
        return 0
    if not text.isascii() or not text.isdecimal() or not 0 < int(text) < 65536:
        raise BadStamp(f"{text!r} is no port")
    return int(text)


def _bracketed(text: str) -> str:
    """A bare IPv6 address as a URL wants it."""
    return f"[{text}]" if text.count(":") > 1 and not text.startswith("[") else text


def _address_of(host: str) -> str | None:
    try:
        return str(parse_address(host))
    except ValueError:
        return None
