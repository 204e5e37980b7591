"""Dynamic updates of a running server, by dnspython and by BIND's nsupdate."""

import concurrent.futures
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import dns.message
import dns.query
import dns.rcode
import dns.tsig
import dns.update
import pytest

from tests.absent import absent
from tests.blackbox.program import Serving, kudurru, records, serving, write_json, zone

ZONE = "example.org"


class Scene:
    def __init__(self, server: Serving, data: Path, secret: str) -> None:
        self.server, self.data, self.secret = server, data, secret

    def message(self) -> dns.update.UpdateMessage:
        made = dns.update.UpdateMessage(ZONE)
        made.use_tsig({dns.name.from_text("k."): dns.tsig.Key("k.", self.secret, "hmac-sha256")})
        return made

    def send(self, message: dns.message.Message, *, tcp: bool = False) -> str:
        send = dns.query.tcp if tcp else dns.query.udp
        answer = send(message, self.server.host, port=self.server.port, timeout=30)
        assert answer.id == message.id
        return dns.rcode.to_text(answer.rcode())

    def events(self) -> list[dict]:
        """Those that updates caused: serials come when their time is."""
        found = kudurru("history", "--data", self.data, "-o", "json").json()
        return [event for event in found if event["actor"] != "system"]


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    folder = tmp_path_factory.mktemp("updates")
    data = folder / "data"
    manifests = write_json(
        folder / "zone.json",
        zone(ZONE, nameservers=["ns1.example.net", "ns2.example.net"]),
        records("www", ZONE, (f"www.{ZONE}", "A", "192.0.2.1")),
        zone("sec.example", type="Secondary", secondary={"primaries": [{"address": "127.0.0.1"}]}),
    )
    assert kudurru("apply", "-f", manifests, "--data", data).code == 0
    rule = f"{ZONE}::A,AAAA,TXT,CNAME,NS,SOA"
    made = kudurru("tsig", "create", "k", "--data", data, "--update", rule, "-o", "json").json()
    with serving(data) as server:
        yield Scene(server, data, made["secret"])


def test_a_key_that_may_not_update_a_zone_learns_nothing_of_what_it_holds(scene: Scene) -> None:
    made = kudurru("tsig", "create", "other", "--data", scene.data, "-o", "json").json()
    for present in ("www", "absent"):
        message = dns.update.UpdateMessage(ZONE)
        key = dns.tsig.Key("other.", made["secret"], "hmac-sha256")
        message.use_tsig({dns.name.from_text("other."): key})
        message.present(present)
        message.add("new", 60, "A", "192.0.2.7")
        assert scene.send(message) == "REFUSED"


@pytest.mark.parametrize("tcp", [False, True])
def test_an_update_is_answered_when_it_is_durable_and_visible(scene: Scene, tcp: bool) -> None:
    name, message = f"new{tcp:d}", scene.message()
    message.absent(name)
    message.add(name, 60, "A", "192.0.2.7")
    message.add(name, 60, "TXT", "two of a name")
    assert scene.send(message, tcp=tcp) == "NOERROR"
    assert scene.server.texts(f"{name}.{ZONE}") == ["192.0.2.7"]
    (event,) = [e for e in scene.events() if e["object"].endswith(f"/{name}.{ZONE}")]
    assert (event["actor"], event["manager"]) == ("update:k", "update:k")


def test_an_update_happens_whole_or_not_at_all(scene: Scene) -> None:
    message = scene.message()
    message.add("half", 60, "A", "192.0.2.7")
    message.add("www", 60, "A", "192.0.2.7")  # another manager's
    assert scene.send(message) == "REFUSED"
    assert scene.server.texts(f"half.{ZONE}") == ["NXDOMAIN"]
    assert scene.server.texts(f"www.{ZONE}") == ["192.0.2.1"]


def test_what_others_hold_is_seen_by_prerequisites(scene: Scene) -> None:
    message = scene.message()
    message.absent("www")
    message.add("seen", 60, "A", "192.0.2.7")
    assert scene.send(message) == "YXDOMAIN"
    message = scene.message()
    message.present("www", "A", "192.0.2.1")
    message.add("seen", 60, "A", "192.0.2.7")
    assert scene.send(message) == "NOERROR"


def test_a_name_of_the_key_is_replaced_and_deleted(scene: Scene) -> None:
    for change, wanted in (("192.0.2.1", ["192.0.2.1"]), ("192.0.2.2", ["192.0.2.2"])):
        message = scene.message()
        message.replace("mine", 60, "A", change)
        assert scene.send(message) == "NOERROR"
        assert scene.server.texts(f"mine.{ZONE}") == wanted
    message = scene.message()
    message.delete("mine", "A")
    assert scene.send(message) == "NOERROR"
    assert scene.server.texts(f"mine.{ZONE}") == ["NXDOMAIN"]


def test_the_apex_takes_records_and_its_soa_and_name_servers_stay(scene: Scene) -> None:
    message = scene.message()
    message.add("@", 60, "TXT", '"of the apex"')
    assert scene.send(message) == "NOERROR"
    assert scene.server.texts(ZONE, "TXT") == ['"of the apex"']
    message = scene.message()
    message.delete("@", "NS", "ns1.example.net.")
    assert scene.send(message) == "REFUSED"
    assert len(scene.server.texts(ZONE, "NS")) == 2


def test_what_changes_nothing_writes_nothing(scene: Scene) -> None:
    before = len(scene.events())
    message = scene.message()
    message.delete("never-there")
    message.add("www", 300, "A", "192.0.2.1")
    assert scene.send(message) == "NOERROR"
    assert len(scene.events()) == before


def test_types_that_the_key_may_not_write_are_refused(scene: Scene) -> None:
    message = scene.message()
    message.add("mail", 60, "MX", "1 a.")
    assert scene.send(message) == "REFUSED"


def test_who_does_not_sign_and_who_signs_wrongly_is_refused(scene: Scene) -> None:
    unsigned = dns.update.UpdateMessage(ZONE)
    unsigned.add("x", 60, "A", "192.0.2.1")
    assert scene.send(unsigned) == "REFUSED"
    wrong = dns.update.UpdateMessage(ZONE)
    wrong.add("x", 60, "A", "192.0.2.1")
    key = dns.tsig.Key("k.", b"another secret, and a long one, too", "hmac-sha256")
    wrong.use_tsig({key.name: key})
    assert _raw(scene, wrong.to_wire()) == "NOTAUTH"
    assert scene.server.texts(f"x.{ZONE}") == ["NXDOMAIN"]


@pytest.mark.parametrize(
    ("of", "rcode"), [("other.example", "NOTAUTH"), ("sec.example", "REFUSED")]
)
def test_zones_that_are_not_updated_here_are_refused(scene: Scene, of: str, rcode: str) -> None:
    message = dns.update.UpdateMessage(of)
    message.use_tsig({dns.name.from_text("k."): dns.tsig.Key("k.", scene.secret, "hmac-sha256")})
    message.add("x", 60, "A", "192.0.2.1")
    assert scene.send(message) == rcode


def test_the_same_octets_are_not_carried_out_twice(scene: Scene) -> None:
    message = scene.message()
    message.add("once", 60, "A", "192.0.2.1")
    octets = message.to_wire()
    assert _raw(scene, octets) == "NOERROR"
    again = scene.message()
    again.delete("once")
    assert scene.send(again) == "NOERROR"
    assert _raw(scene, octets) == "REFUSED"
    assert scene.server.texts(f"once.{ZONE}") == ["NXDOMAIN"]


def test_an_update_that_was_signed_before_the_last_is_refused(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time()
    first = scene.message()
    first.add("order", 60, "A", "192.0.2.1")
    assert scene.send(first) == "NOERROR"
    late = scene.message()
    late.add("order", 60, "A", "192.0.2.2")
    with monkeypatch.context() as patch:
        patch.setattr("time.time", lambda: now - 60)
        octets = late.to_wire()
    assert _raw(scene, octets) == "REFUSED"
    assert scene.server.texts(f"order.{ZONE}") == ["192.0.2.1"]


def _raw(scene: Scene, octets: bytes) -> str:
    """Send octets as they are; the code of the answer."""
    with socket.socket(type=socket.SOCK_DGRAM) as sock:
        sock.settimeout(30)
        sock.sendto(octets, (scene.server.host, scene.server.port))
        return dns.rcode.to_text(sock.recv(65535)[3] & 0xF)


def test_many_updates_at_once_are_all_carried_out(scene: Scene) -> None:
    def one(i: int) -> str:
        message = scene.message()
        message.add(f"many{i}", 60, "A", f"192.0.2.{i}")
        return scene.send(message, tcp=i % 2 == 0)

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        assert set(pool.map(one, range(64))) == {"NOERROR"}
    assert all(scene.server.texts(f"many{i}.{ZONE}") == [f"192.0.2.{i}"] for i in range(64))


NSUPDATES = [
    ("prereq nxdomain nsu.example.org\nupdate add nsu.example.org 60 A 192.0.2.1", "NOERROR"),
    ("prereq yxrrset nsu.example.org AAAA\nupdate delete nsu.example.org", "NXRRSET"),
    ("prereq nxrrset nsu.example.org A\nupdate delete nsu.example.org", "YXRRSET"),
    ("prereq yxdomain nope.example.org\nupdate delete nsu.example.org", "NXDOMAIN"),
    ("update add nsu.example.com 60 A 192.0.2.1", "NOTZONE"),
    ("update delete nsu.example.org A", "NOERROR"),
]


def test_nsupdate_is_understood(scene: Scene) -> None:
    if shutil.which("nsupdate") is None:
        absent("nsupdate of BIND is not installed")
    for lines, rcode in NSUPDATES:
        server = f"server {scene.server.host} {scene.server.port}\nzone {ZONE}\n"
        done = subprocess.run(
            ["nsupdate", "-y", f"hmac-sha256:k:{scene.secret}"],
            input=f"{server}{lines}\nsend\n",
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        said = done.stdout + done.stderr
        assert (f"update failed: {rcode}" in said) if rcode != "NOERROR" else not said
