"""TSIG against dnspython, which is another implementation, and against packets with faults."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dns.message
import dns.tsig
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kudurru.domain.dns import names, tsig
from kudurru.domain.dns.tsig import ALGORITHMS, BadTsig, TsigKey, Unverified

unhurried = settings(deadline=None)  # the machine may be busy

NOW_S = 1_700_000_000
SECRET = bytes(range(32))
CASES = [
    json.loads(line)
    for line in (Path(__file__).parents[1] / "conformance/data/tsig/vectors.jsonl")
    .read_text()
    .splitlines()
]
STATIC = [case for case in CASES if not case["live"] and "tcp" not in case["expect"]]
VECTOR_KEYS = {
    names.from_text(name): TsigKey(names.from_text(name), ALGORITHMS["hmac-sha256"], secret)
    for name, secret in (("k1", SECRET), ("k2", bytes(range(1, 33))))
}
algorithms = pytest.mark.parametrize("algorithm", ALGORITHMS)


def key_of(algorithm: str = "hmac-sha256", name: str = "key.example") -> TsigKey:
    return TsigKey(names.from_text(name), ALGORITHMS[algorithm], SECRET)


def theirs(key: TsigKey) -> dns.tsig.Key:
    return dns.tsig.Key(names.to_text(key.name), key.secret, names.to_text(key.algorithm.name))


def query(name: str = "www.example.") -> dns.message.Message:
    return dns.message.make_query(name, "A", id=0x1234)


@pytest.fixture
def at_now(monkeypatch: pytest.MonkeyPatch) -> None:
    """dnspython reads the clock."""
    monkeypatch.setattr("time.time", lambda: float(NOW_S))


def verified(packet: bytes, key: TsigKey, now_s: int = NOW_S) -> tsig.Signer:
    signature = tsig.find(packet)
    assert signature is not None
    return tsig.verify(packet, signature, {key.name: key}.get, now_s)


@algorithms
@pytest.mark.usefixtures("at_now")
def test_a_request_signed_by_dnspython_verifies_and_it_verifies_the_answer(algorithm: str) -> None:
    key = key_of(algorithm)
    request = query()
    request.use_tsig(theirs(key))
    signer = verified(request.to_wire(), key)
    answer = signer.sign(dns.message.make_response(query()).to_wire(), NOW_S)
    read = dns.message.from_wire(answer, keyring=theirs(key), request_mac=request.mac)
    assert read.had_tsig


@algorithms
@pytest.mark.usefixtures("at_now")
def test_dnspython_verifies_our_request_and_we_verify_its_answer(algorithm: str) -> None:
    key = key_of(algorithm)
    packet, reader = tsig.sign_request(query().to_wire(), key, NOW_S)
    request = dns.message.from_wire(packet, keyring=theirs(key))
    plain = dns.message.make_response(query()).to_wire()
    answer = dns.message.make_response(request)
    answer.use_tsig(theirs(key))
    answer.request_mac = request.mac
    assert reader.take(answer.to_wire(), NOW_S) == plain
    reader.finish()


@pytest.mark.usefixtures("at_now")
def test_a_stream_that_we_sign_is_right_for_dnspython() -> None:
    key = key_of()
    request = query()
    request.use_tsig(theirs(key))
    signer = verified(request.to_wire(), key)
    context = None
    for _ in range(5):
        wire = signer.sign(dns.message.make_response(query()).to_wire(), NOW_S)
        read = dns.message.from_wire(
            wire, keyring=theirs(key), request_mac=request.mac, tsig_ctx=context, multi=True
        )
        context = read.tsig_ctx
        assert read.had_tsig


def messages(count: int) -> list[bytes]:
    return [dns.message.make_response(query(f"h{i}.example.")).to_wire() for i in range(count)]


def signed_stream(key: TsigKey, request_mac: bytes, every: int, count: int) -> Iterator[bytes]:
    """As dnspython signs one: the first, each `every`th, the last."""
    context = None
    for i, wire in enumerate(messages(count)):
        if i % every and i != count - 1:
            context.update(wire)
            yield wire
            continue
        message = dns.message.from_wire(wire)
        message.use_tsig(theirs(key))
        message.request_mac = request_mac
        yield message.to_wire(multi=True, tsig_ctx=context)
        context = message.tsig_ctx


@pytest.mark.usefixtures("at_now")
@unhurried
@given(every=st.integers(1, 100), count=st.integers(1, 230))
def test_a_stream_that_dnspython_signs_here_and_there_verifies(every: int, count: int) -> None:
    key = key_of()
    packet, reader = tsig.sign_request(query().to_wire(), key, NOW_S)
    mac = tsig.find(packet).mac  # type: ignore[union-attr]  # it has just been signed
    taken = [reader.take(wire, NOW_S) for wire in signed_stream(key, mac, every, count)]
    reader.finish()
    assert taken == messages(count)


def test_a_hundred_messages_without_a_signature_are_too_many() -> None:
    reader, stream = ours(102)
    reader.take(stream[0], NOW_S)
    for wire in messages(99):
        reader.take(wire, NOW_S)
    with pytest.raises(BadTsig, match="99"):
        reader.take(messages(1)[0], NOW_S)


@pytest.mark.parametrize("octets", [b"", b"\0", bytes(11)])
def test_an_answer_shorter_than_a_header_is_refused(octets: bytes) -> None:
    _, reader = tsig.sign_request(query().to_wire(), key_of(), NOW_S)
    with pytest.raises(BadTsig):
        reader.take(octets, NOW_S)


def test_a_stream_whose_last_message_is_not_signed_has_not_ended() -> None:
    reader, stream = ours(1)
    reader.take(stream[0], NOW_S)
    reader.take(messages(1)[0], NOW_S)
    with pytest.raises(BadTsig, match="last message"):
        reader.finish()


def ours(count: int) -> tuple[tsig.Reader, list[bytes]]:
    key = key_of()
    packet, reader = tsig.sign_request(query().to_wire(), key, NOW_S)
    signer = verified(packet, key)
    return reader, [signer.sign(wire, NOW_S) for wire in messages(count)]


@pytest.mark.parametrize("fault", ["left out", "swapped", "altered", "unsigned first"])
def test_a_stream_that_somebody_had_a_hand_in_is_refused(fault: str) -> None:
    reader, stream = ours(3)
    match fault:
        case "left out":
            del stream[1]
        case "swapped":
            stream[1], stream[2] = stream[2], stream[1]
        case "altered":
            stream[1] = stream[1].replace(b"h1", b"h9")
        case _:
            stream.insert(0, messages(1)[0])
    with pytest.raises((Unverified, BadTsig)):
        [reader.take(wire, NOW_S) for wire in stream]


@unhurried
@given(at=st.integers(0, 10_000), bit=st.integers(0, 7))
def test_any_flipped_bit_is_found(at: int, bit: int) -> None:
    key = key_of()
    packet, _ = tsig.sign_request(query().to_wire(), key, NOW_S)
    at %= len(packet)
    flipped = bytearray(packet)
    flipped[at] ^= 1 << bit
    is_id = at < 2  # forwarders may change it
    is_case = bytes(flipped).lower() == packet.lower()  # of the key's name
    try:
        signature = tsig.find(bytes(flipped))
        if signature is None:
            return
        tsig.verify(bytes(flipped), signature, {key.name: key}.get, NOW_S)
    except (BadTsig, Unverified):
        return
    assert is_id or is_case


@unhurried
@given(st.binary(min_size=12, max_size=300))
def test_octets_are_read_or_refused(packet: bytes) -> None:
    try:
        tsig.find(packet)
    except BadTsig:
        return


@unhurried
@given(st.integers(0, 400), st.binary(max_size=40))
def test_a_damaged_record_is_read_or_refused(at: int, patch: bytes) -> None:
    packet, _ = tsig.sign_request(query().to_wire(), key_of(), NOW_S)
    at %= len(packet)
    damaged = packet[:at] + patch + packet[at + len(patch) :]
    if len(damaged) < 12:
        return
    try:
        tsig.find(damaged)
    except BadTsig:
        return


@pytest.mark.parametrize(
    ("apart_s", "fudge_s", "holds"),
    [(300, 300, True), (301, 300, False), (-300, 300, True), (-301, 300, False),
     (301, 3600, False), (11, 10, False), (10, 10, True)],
)  # fmt: skip
def test_the_fudge_is_what_the_message_says_and_at_most_300_s(
    apart_s: int, fudge_s: int, holds: bool
) -> None:
    key = key_of()
    request = query()
    request.use_tsig(theirs(key), fudge=fudge_s)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("time.time", lambda: float(NOW_S - apart_s))
        packet = request.to_wire()
    if holds:
        verified(packet, key)
        return
    with pytest.raises(Unverified) as refused:
        verified(packet, key)
    assert refused.value.error == tsig.BADTIME


def test_a_client_whose_clock_is_wrong_learns_the_time_and_can_believe_it() -> None:
    key = key_of()
    packet, reader = tsig.sign_request(query().to_wire(), key, NOW_S - 4000)
    with pytest.raises(Unverified) as refused:
        verified(packet, key)
    answer = refused.value.mark(dns.message.make_response(query()).to_wire(), NOW_S)
    signature = tsig.find(answer)
    assert signature is not None
    assert int.from_bytes(signature.other, "big") == NOW_S
    assert signature.time_s == NOW_S - 4000  # section 5.2.3: that of the client
    assert signature.mac
    with pytest.raises(Unverified, match=r"\+4000 s"):
        reader.take(answer, NOW_S - 4000)


def test_truncated_macs_are_refused_unless_they_are_let_pass() -> None:
    key = key_of()
    packet, _ = tsig.sign_request(query().to_wire(), key, NOW_S)
    signature = tsig.find(packet)
    assert signature is not None
    short = signature.mac[:16]
    packet = packet[: -len(signature.mac) - 8] + (16).to_bytes(2, "big") + short + packet[-6:]
    at = signature.at + len(key.name) + 8
    length = int.from_bytes(packet[at : at + 2], "big") - 16
    packet = packet[:at] + length.to_bytes(2, "big") + packet[at + 2 :]
    signature = tsig.find(packet)
    assert signature is not None
    with pytest.raises(Unverified) as refused:
        tsig.verify(packet, signature, {key.name: key}.get, NOW_S)
    assert refused.value.error == tsig.BADTRUNC
    tsig.verify(packet, signature, {key.name: key}.get, NOW_S, may_truncate=True)


def test_the_name_of_an_algorithm_is_not_compressed() -> None:
    """RFC 8945 section 4.2. The answer has it in full: it would be much longer than the query."""
    question = names.from_text(".".join(["a" * 63] * 3 + ["b" * 61]))
    algorithm = msgspec.structs.replace(ALGORITHMS["hmac-sha256"], name=question)
    key = TsigKey(question, algorithm, SECRET)
    message = bytes.fromhex("123400000001000000000000") + question + b"\0\1\0\1"
    packet, _ = tsig.sign_request(message, key, NOW_S)
    signature = tsig.find(packet)
    assert signature is not None
    rdata = b"\xc0\x0c" + packet[signature.at + len(question) * 2 + 10 :]
    short = packet[: signature.at] + b"\xc0\x0c" + packet[signature.at + len(question) :][:8]
    short += len(rdata).to_bytes(2, "big") + rdata
    assert len(short) < 400
    with pytest.raises(BadTsig, match="compressed"):
        tsig.find(short)


@pytest.mark.parametrize("case", STATIC, ids=lambda case: case["id"])
def test_faulty_requests_get_the_verdict_of_the_vectors(case: dict[str, Any]) -> None:
    packet = bytes.fromhex(case["packet"])
    expect = case["expect"]
    try:
        signature = tsig.find(packet)
        assert signature is not None
        tsig.verify(packet, signature, VECTOR_KEYS.get, NOW_S)
    except BadTsig:
        assert "FORMERR" in (expect.get("rcode"), *expect.get("rcode_in", ()))
        return
    except Unverified as refused:
        assert "NOTAUTH" in (expect.get("rcode"), *expect.get("rcode_in", ()))
        name = tsig.ERROR_NAMES[refused.error]
        assert name in (expect.get("tsig_error"), *expect.get("tsig_error_in", ()))
        marked = tsig.find(refused.mark(messages(1)[0], NOW_S))
        assert marked is not None
        assert bool(marked.mac) == expect.get("tsig_mac", bool(marked.mac))
        assert len(marked.other) == expect.get("other_len", len(marked.other))
        return
    pytest.fail("it verified")


def test_a_secret_is_never_shown() -> None:
    key = TsigKey(names.from_text("k"), ALGORITHMS["hmac-sha256"], b"very secret indeed")
    assert "secret indeed" not in f"{key!r} {key} {tsig.Signer(key, b'')!r}"
