"""Suites about what carries queries: PROXY headers, requests of DoH, streams of DoQ."""

import asyncio
import contextlib
import re
import socket
import struct
from collections.abc import Awaitable, Callable

import dns.flags
import dns.message
import dns.rcode
import pytest

from kudurru.adapters.sockets import split_address
from kudurru.domain.ports import Reply
from tests.conformance.answers import pipeline_of
from tests.conformance.cases import DATA, Row, rows
from tests.dns_clients import (
    Answered,
    Http1,
    Http2,
    Http3,
    framed,
    open_doq,
    open_http1,
    open_http2,
    open_http3,
    read_message,
)
from tests.engines import LOOPBACK, serving
from tests.packets import query
from tests.zone_files import zone_from_text

PROXIED_ZONE = (
    "pp.example. 60 IN SOA ns host 1 2 3 4 5\npp.example. 60 IN NS ns\nw 60 IN A 192.0.2.5"
)


class Watched:
    """A pipeline that remembers who asked."""

    def __init__(self, *zones) -> None:
        self._pipeline = pipeline_of(*zones)
        self.clients: list[str] = []

    def handle(self, packet: bytes, client: str, proto: str) -> Reply | None:
        self.clients.append(client)
        reply = self._pipeline.handle(packet, client, proto)
        return reply and reply._replace(memo=False)


def bug_zone() -> Watched:
    text = (DATA / "bugs/zones/bug.example.zone").read_text()
    return Watched(zone_from_text(text, "bug.example."))


# PROXY headers


def test_proxy_headers_are_read_as_their_specification_says(report) -> None:
    async def main() -> dict[str, list[str]]:
        handler = Watched(zone_from_text(PROXIED_ZONE, "pp.example."))
        cases = list(rows(DATA / "proxyv2/vectors.jsonl"))
        results = {}
        for proto, ask in (("udp", over_datagrams), ("tcp", over_stream)):
            async with serving(proto, handler, proxies=LOOPBACK) as engine:
                target = split_address(engine.addresses[0])
                for row in cases:
                    if row["transport"] == proto:
                        handler.clients.clear()
                        got = await ask(target, row)
                        results[row["id"]] = proxy_faults(row, got, handler.clients)
                assert engine.statistics().dropped_proxyproto >= 3
        return results

    report("proxyv2", asyncio.run(main()))


def proxy_faults(row: Row, answers: int, clients: list[str]) -> list[str]:
    wanted = {"drop": (0,), "either": (0, 1), "answer2": (2,), "answer1": (1,), "answer": (1,)}
    faults = []
    if answers not in wanted[row["want"]]:
        faults.append(f"{answers} answers")
    source = "127.0.0.1" if row["source"] == "peer" else row["source"]
    own = [client for client in clients if client != CONTROL_CLIENT]
    if answers and source and set(own) != {source}:
        faults.append(f"attributed to {own}, want {source}")
    return faults


CONTROL_CLIENT = "203.0.113.1"
CONTROL_ID = 0x7777


def control(proto: int) -> bytes:
    """A header that is right, for the query that must still be answered after each case."""
    addresses = socket.inet_aton(CONTROL_CLIENT) + socket.inet_aton("203.0.113.2")
    block = addresses + struct.pack("!2H", 5353, 53)
    return b"\r\n\r\n\0\r\nQUIT\n" + bytes((0x21, 0x10 | proto, 0, len(block))) + block


def queries_of(row: Row) -> list[bytes]:
    count = {"query": 1, "query2": 2, "none": 0}[row["payload"]]
    return [bytes.fromhex(row["dns_payload_hex"])] * count


async def over_datagrams(target, row: Row) -> int:
    loop = asyncio.get_running_loop()
    last = control(2) + query("w.pp.example", ident=CONTROL_ID)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.setblocking(False)
        await loop.sock_connect(sock, target)
        await loop.sock_sendall(sock, bytes.fromhex(row["header"]) + b"".join(queries_of(row)))
        await loop.sock_sendall(sock, last)
        answers = 0
        while int.from_bytes((await loop.sock_recv(sock, 4096))[:2], "big") != CONTROL_ID:
            answers += 1
    return answers


async def over_stream(target, row: Row) -> int:
    header, message = bytes.fromhex(row["header"]), framed(*queries_of(row))
    pieces = {
        "whole": [header + message],
        "bytewise": [bytes((octet,)) for octet in header + message],
        "split": [header[:10], header[10:], message],
    }[row["send"]]
    reader, writer = await asyncio.open_connection(*target)
    answers = 0
    with contextlib.suppress(OSError, EOFError):
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)
        writer.write_eof()
        while await read_message(reader):
            answers += 1
    writer.close()
    reader, writer = await asyncio.open_connection(*target)
    writer.write(control(1) + framed(query("w.pp.example", ident=CONTROL_ID)))
    assert (await read_message(reader))[:2] == CONTROL_ID.to_bytes(2, "big")
    writer.close()
    return answers


# DoH


Client = Http1 | Http2 | Http3
OPENERS: dict[str, tuple[str, Callable]] = {
    "http1": ("https", open_http1),
    "http2": ("https", open_http2),
    "http3": ("h3", open_http3),
}


@pytest.mark.parametrize("version", OPENERS)
def test_requests_of_doh_get_what_rfc_8484_says(version, report) -> None:
    proto, opened = OPENERS[version]

    async def main() -> dict[str, list[str]]:
        results = {}
        async with serving(proto, bug_zone()) as engine:
            target = split_address(engine.addresses[0])
            for row in rows(DATA / "doh/cases.jsonl"):
                async with opened(target) as client:
                    results[row["id"]] = doh_faults(row["expect"], await doh_request(client, row))
        return results

    report(f"doh/{version}", asyncio.run(main()))


def doh_request(client: Client, row: Row) -> Awaitable[Answered]:
    body = bytes.fromhex(row["body"])
    headers = [(name.lower().encode(), value.encode()) for name, value in row["headers"].items()]
    if body:
        headers.append((b"content-length", b"%d" % len(body)))
    return client.request(row["method"].encode(), row["path"].encode(), headers, body)


def doh_faults(expected: Row, found: Answered) -> list[str]:
    faults = []
    if found.status not in expected.get("status_in", [expected.get("status")]):
        faults.append(f"status {found.status}")
    kind = found.headers.get(b"content-type", b"").decode()
    if "content_type" in expected and kind != expected["content_type"]:
        faults.append(f"content-type {kind}")
    if expected.get("empty_body") and found.body:
        faults.append("a body")
    if found.status != 200 or not found.body:
        return faults
    answer = dns.message.from_wire(found.body)
    rcode = dns.rcode.to_text(answer.rcode())
    if rcode != expected.get("rcode", expected.get("rcode_if_200", rcode)):
        faults.append(f"rcode {rcode}")
    if answer.id != expected.get("dns_id", answer.id):
        faults.append(f"id {answer.id}")
    if expected.get("tc") is False and answer.flags & dns.flags.TC:
        faults.append("truncated")
    return faults + freshness_faults(answer, found.headers.get(b"cache-control", b"").decode())


def freshness_faults(answer: dns.message.Message, control: str) -> list[str]:
    seconds = re.fullmatch(r"max-age=(\d+)", control)
    ttls = [rrset.ttl for rrset in answer.answer]
    ttls += [min(rrset.ttl, rrset[0].minimum) for rrset in answer.authority if rrset.rdtype == 6]
    if seconds is None:
        return [] if control == "no-store" and not ttls else [f"cache-control {control!r}"]
    return [] if ttls and int(seconds[1]) <= min(ttls) else [f"kept for {control}, TTLs {ttls}"]


# DoQ


def test_streams_of_doq_get_what_rfc_9250_says(report) -> None:
    async def main() -> dict[str, list[str]]:
        results = {}
        async with serving("quic", bug_zone()) as engine:
            target = split_address(engine.addresses[0])
            for row in rows(DATA / "doq/cases.jsonl"):
                results[row["id"]] = await doq_faults(target, row)
        return results

    report("doq", asyncio.run(main()))


async def doq_faults(target, row: Row) -> list[str]:
    send, expect = row["send"], row["expect"]
    if "TLS alert" in expect:
        with contextlib.suppress(ConnectionError):
            async with open_doq(target, send["alpn"]):
                return ["connected"]
        return []
    async with open_doq(target) as client:
        early = send.get("early_data", [])  # no ticket, so it goes when the handshake is done
        whole = map(bytes.fromhex, [*send.get("streams", []), *early])
        streams = [await send_doq(client, send, octets) for octets in whole]
        for octets in map(bytes.fromhex, send.get("uni", [])):
            uni = client._quic.get_next_available_stream_id(is_unidirectional=True)
            client.send(octets, stream=uni)
        if send.get("stop_sending"):
            client._quic.stop_stream(streams[0], 3)
            client.transmit()
            streams = [client.send(bytes.fromhex(send["streams"][0]))]
        if "DOQ_PROTOCOL_ERROR" in expect:
            code = await client.terminated
            return [] if code == 2 else [f"code {code}"]
        return [fault for stream in streams for fault in await reply_faults(client, stream, row)]


async def send_doq(client, send: Row, octets: bytes) -> int:
    if "chunk" not in send and send.get("fin", True) is True:
        return client.send(octets)
    size = send.get("chunk", len(octets))
    stream = client.send(octets[:size], fin=False)
    for at in range(size, len(octets), size):
        client.send(octets[at : at + size], stream=stream, fin=False)
        await asyncio.sleep(0)
    await client.ping()  # what was sent has been looked at
    client.send(b"", stream=stream)
    return stream


async def reply_faults(client, stream: int, row: Row) -> list[str]:
    code = await client.ends[stream]
    octets = client.arrived.get(stream, b"")
    if code is not None:
        return [f"reset with {code}"]
    if int.from_bytes(octets[:2], "big") != len(octets) - 2:
        return [f"{len(octets)} octets that are no one message"]
    answer = dns.message.from_wire(octets[2:])
    faults = [] if answer.id == 0 else [f"id {answer.id}"]
    if not answer.answer:
        faults.append(f"no answer: {dns.rcode.to_text(answer.rcode())}")
    return faults
