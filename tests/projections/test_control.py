"""Messages that are no questions: NOTIFY, signed and not, and what is wrong with one."""

import dns.flags
import dns.message
import dns.opcode
import dns.rcode
import dns.tsig
import dns.update
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kudurru.domain.dns import names
from kudurru.domain.dns.names import Name
from kudurru.domain.dns.tsig import ALGORITHMS, TsigKey
from kudurru.domain.later import Later
from kudurru.projections.pipeline.control import NOTIFY, UPDATE, Control
from kudurru.projections.pipeline.signatures import Signatures

SECRET = b"0123456789abcdef0123456789abcdef"
KEY = TsigKey(names.from_text("k."), ALGORITHMS["hmac-sha256"], SECRET)
RING = {dns.name.from_text("k."): dns.tsig.Key("k.", SECRET, "hmac-sha256")}
WRONG = {dns.name.from_text("k."): dns.tsig.Key("k.", SECRET[::-1], "hmac-sha256")}
NOW_S = 1_760_000_000


class Scene:
    def __init__(self, verdict: str = "taken") -> None:
        self.heard: list[tuple[str, str, Name | None]] = []
        self.verdict = verdict
        self.updates: list[Later[int]] = []
        self.refused: list[tuple[str, Name | None]] = []
        self.control = Control(
            Signatures(lambda name: KEY if name == KEY.name else None),
            on_notify=self._on_notify,
            on_update=self._on_update,
            on_refused=lambda client, refusal: self.refused.append((client, refusal.key)),
            now_s=lambda: NOW_S,
        )

    def _on_notify(self, zone: Name, client: str, key: Name | None) -> str:
        self.heard.append((names.to_text(zone), client, key))
        return self.verdict

    def _on_update(self, _message: object, _client: str, _opened: object) -> Later[int]:
        self.updates.append(Later())
        return self.updates[-1]

    def send(self, octets: bytes) -> dns.message.Message:
        wire = self.control.handle(octets, "192.0.2.1")
        assert isinstance(wire, bytes)
        return dns.message.from_wire(wire, keyring=False)


def notify(zone: str = "sec.example.", rtype: str = "SOA") -> dns.message.Message:
    message = dns.message.make_query(zone, rtype)
    message.flags = dns.flags.AA
    message.set_opcode(dns.opcode.NOTIFY)
    return message


@pytest.mark.parametrize(("verdict", "rcode"), [("taken", 0), ("refused", 5), ("unknown", 9)])
def test_a_notify_is_answered_with_its_question(verdict: str, rcode: int) -> None:
    scene, asked = Scene(verdict), notify("SEC.example.")
    answer = scene.send(asked.to_wire())
    assert answer.rcode() == rcode
    assert answer.opcode() == dns.opcode.NOTIFY
    assert answer.id == asked.id
    assert answer.flags & dns.flags.QR
    assert answer.flags & dns.flags.AA
    assert answer.question == asked.question
    assert scene.heard == [("SEC.example.", "192.0.2.1", None)]
    assert scene.control.statistics().notifies == {verdict: 1}


def test_a_signed_notify_names_its_key_and_gets_a_signed_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("time.time", lambda: NOW_S)
    scene, asked = Scene(), notify()
    asked.use_tsig(RING, "k.")
    octets = asked.to_wire()
    wire = scene.control.handle(octets, "192.0.2.1")
    answer = dns.message.from_wire(wire, keyring=RING, request_mac=asked.mac)
    assert answer.had_tsig
    assert answer.rcode() == 0
    assert scene.heard == [("sec.example.", "192.0.2.1", KEY.name)]


def test_a_notify_with_a_wrong_signature_is_heard_by_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("time.time", lambda: NOW_S)
    scene, asked = Scene(), notify()
    asked.use_tsig(WRONG, "k.")
    answer = scene.send(asked.to_wire())
    assert answer.rcode() == dns.rcode.NOTAUTH
    assert answer.tsig is not None
    assert not scene.heard
    assert scene.control.statistics().notifies == {"unverified": 1}


@pytest.mark.parametrize(
    ("octets", "rcode"),
    [
        (notify(rtype="A").to_wire(), dns.rcode.NOTIMP),
        (notify().to_wire()[:-1], dns.rcode.FORMERR),
        (notify().to_wire() + b"x", dns.rcode.FORMERR),
        (notify().to_wire()[:12], dns.rcode.FORMERR),
        (b"\0\1\x20\0" + bytes(8), dns.rcode.FORMERR),
    ],
    ids=["of an address", "cut short", "with more", "without a question", "of no opcode"],
)
def test_what_is_no_notify_is_refused(octets: bytes, rcode: int) -> None:
    scene = Scene()
    answer = dns.message.from_wire(scene.control.handle(octets, "192.0.2.1"), ignore_trailing=True)
    assert answer.rcode() == rcode
    assert not scene.heard


def test_an_update_is_answered_when_what_it_led_to_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("time.time", lambda: NOW_S)
    scene, asked = Scene(), dns.update.UpdateMessage("sec.example.")
    asked.use_tsig(RING, "k.")
    octets = asked.to_wire()
    later = scene.control.handle(octets, "192.0.2.1")
    assert isinstance(later, Later)
    assert not later.is_over
    scene.updates[0].settle(8)
    answer = dns.message.from_wire(later.value, keyring=RING, request_mac=asked.mac)
    assert answer.rcode() == dns.rcode.NXRRSET
    assert answer.opcode() == dns.opcode.UPDATE


def test_an_update_with_a_wrong_signature_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time", lambda: NOW_S)
    scene, asked = Scene(), dns.update.UpdateMessage("sec.example.")
    asked.use_tsig(WRONG, "k.")
    assert scene.send(asked.to_wire()).rcode() == dns.rcode.NOTAUTH
    assert scene.refused == [("192.0.2.1", KEY.name)]
    assert not scene.updates


@pytest.mark.parametrize("verdict", ["taken", "refused"])
def test_a_notify_whose_name_points_into_the_header_is_answered_with_the_name(verdict: str) -> None:
    scene = Scene(verdict)
    octets = bytes.fromhex("0261 2000 0001000000000000 c004 0006 0001")
    answer = scene.control.handle(octets, "192.0.2.1")
    assert scene.heard == [(".", "192.0.2.1", None)]
    assert isinstance(answer, bytes)
    assert answer[12:] == bytes.fromhex("00 0006 0001")


@given(st.binary(max_size=64), st.integers(0, 120), st.sampled_from([NOTIFY, UPDATE]))
def test_any_octets_get_an_answer_or_are_left_to_wait(noise: bytes, at: int, opcode: int) -> None:
    scene = Scene()
    for made in (notify(), dns.update.UpdateMessage("sec.example.")):
        made.id = 0x1234
        octets = bytearray(made.to_wire())
        octets[at : at + len(noise)] = noise
        octets = octets.ljust(12, b"\0")
        octets[2] = opcode << 3
        answer = scene.control.handle(bytes(octets), "192.0.2.1")
        assert isinstance(answer, Later) or answer[:2] == octets[:2]
