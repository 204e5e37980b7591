"""What a node tells other nodes, and nobody else: over mutual TLS, with certificates of one CA."""

import datetime
import http.client
import http.server
import json
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from kudurru.adapters.peer_client import PEER_NAME
from tests.blackbox.program import (
    Done,
    Serving,
    command,
    records,
    serving,
    wait_until,
    write_json,
    zone,
)
from tests.blackbox.test_metrics import scraped
from tests.primaries import Script, SocketPrimary, whole


class Authority:
    """A CA in a folder: `ca.pem`, and pairs that it signs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, f"CA {folder.name}")])
        made = self._certificate(self._name, self._key.public_key(), is_ca=True)
        (folder / "ca.pem").write_bytes(made)

    def sign(self, stem: str, dns_name: str = PEER_NAME) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, stem)])
        made = self._certificate(subject, key.public_key(), dns_name)
        (self.folder / f"{stem}.pem").write_bytes(made)
        pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        (self.folder / f"{stem}.key").write_bytes(pem)

    def _certificate(
        self, subject: x509.Name, key: Any, dns_name: str = "", *, is_ca: bool = False
    ) -> bytes:
        now, day = datetime.datetime.now(datetime.UTC), datetime.timedelta(days=1)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - day)
            .not_valid_after(now + 30 * day)
            .add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
        )
        if dns_name:
            names = x509.SubjectAlternativeName([x509.DNSName(dns_name)])
            builder = builder.add_extension(names, critical=False)
        return builder.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM)

    def settings(self, stem: str) -> dict[str, str]:
        files = {"CA": "ca.pem", "CERT": f"{stem}.pem", "KEY": f"{stem}.key"}
        return {
            f"KUDURRU__TLS__INTERNAL__{name}": f"file:{self.folder}/{file}"
            for name, file in files.items()
        }


class Peered(NamedTuple):
    server: Serving
    authority: Authority
    data: Path

    @property
    def address(self) -> str:
        return self.server.addresses["internal"]

    def context(self, stem: str = "") -> ssl.SSLContext:
        """A client's, with the certificate of that name."""
        context = ssl.create_default_context(cafile=self.authority.folder / "ca.pem")
        if stem:
            folder = self.authority.folder
            context.load_cert_chain(folder / f"{stem}.pem", folder / f"{stem}.key")
        return context

    def ask(self, method: str, path: str, stem: str = "two", body: bytes | None = None) -> Any:
        host, _, port = self.address.rpartition(":")
        context = self.context(stem)
        context.check_hostname = False  # by its address
        connection = http.client.HTTPSConnection(host, int(port), context=context, timeout=30)
        try:
            connection.request(method, path, body=body)
            response = connection.getresponse()
            return response.status, json.loads(response.read())
        finally:
            connection.close()


@pytest.fixture(scope="module")
def peered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peered]:
    """A server with zones of each kind, and a listener for other nodes."""
    folder = tmp_path_factory.mktemp("peers")
    authority = Authority(folder)
    for stem in ("one", "two"):
        authority.sign(stem)
    data = folder / "data"
    file = write_json(
        folder / "o.json",
        zone("b.example"),
        records("www.b.example", "b.example", ("www.b.example", "A", "192.0.2.1")),
        zone("a.example"),
        zone("fwd.example", type="Forward", forward={"upstreams": ["192.0.2.53"]}),
    )
    assert command("apply", "-f", file, "--data", data).code == 0
    env = {
        "KUDURRU__LISTENERS__INTERNAL": "127.0.0.1:0",
        "KUDURRU__NODE__NAME": "ns1",
        **authority.settings("one"),
    }
    with serving(data, env=env) as server:
        yield Peered(server, authority, data)


@pytest.fixture
def as_node(peered: Peered, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands have the certificate of the node `two`."""
    for name, value in peered.authority.settings("two").items():
        monkeypatch.setenv(name, value)


def asking(peered: Peered, *options: str) -> Done:
    return command("peer", peered.address, *options)


@pytest.mark.usefixtures("as_node")
def test_a_node_tells_another_which_zones_it_serves_and_leaves_forwarded_ones_out(
    peered: Peered,
) -> None:
    found = asking(peered, "-o", "json")
    assert found.code == 0, found.err
    told = found.json()
    assert told["node"] == "ns1"
    assert [(z["zone"], z["type"], z["records"]) for z in told["zones"]] == [
        ("a.example.", "Primary", 1), ("b.example.", "Primary", 2),
    ]  # fmt: skip
    soa = peered.server.ask("b.example", "SOA").answer[0][0]
    assert told["zones"][1]["serial"] == soa.serial
    table = asking(peered)
    assert table.out.split()[:4] == ["ZONE", "TYPE", "SERIAL", "RECORDS"]


def test_what_is_asked_is_counted_under_labels_that_are_bounded(peered: Peered) -> None:
    assert peered.ask("GET", "/internal/zones")[0] == 200
    assert peered.ask("GET", "/internal/else")[0] == 404
    assert peered.ask("GET", "/api/v1/dnszones")[0] == 404
    assert peered.ask("POST", "/internal/zones")[0] == 405
    assert peered.ask("GET", "/internal/zones", body=b"x")[0] == 400
    counted = {
        dict(labels)["route"]: dict(labels)["code"]
        for (name, labels), _ in scraped(peered.server).items()
        if name == "internal_requests_total"
    }
    assert counted.keys() == {"zones", "none"}


def test_nobody_without_a_certificate_of_the_ca_is_told_anything(
    peered: Peered, tmp_path: Path
) -> None:
    strangers = Authority(tmp_path)
    strangers.sign("three")
    for pair in (None, (tmp_path / "three.pem", tmp_path / "three.key")):
        context = peered.context()
        context.check_hostname = False
        if pair is not None:
            context.load_cert_chain(*pair)
        host, _, port = peered.address.rpartition(":")
        connection = http.client.HTTPSConnection(host, int(port), context=context, timeout=30)
        with pytest.raises((ssl.SSLError, ConnectionError, http.client.RemoteDisconnected)):
            answer_of(connection)
        connection.close()


def answer_of(connection: http.client.HTTPConnection) -> http.client.HTTPResponse:
    connection.request("GET", "/internal/zones")
    return connection.getresponse()


def test_a_server_that_is_no_node_is_told_nothing_and_not_believed(
    peered: Peered, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    strangers = Authority(tmp_path)
    strangers.sign("me")
    for name, value in strangers.settings("me").items():
        monkeypatch.setenv(name, value)
    done = asking(peered)
    assert (done.code, "is not that of a node" in done.err) == (1, True), done.err
    for name, value in peered.authority.settings("none").items():
        monkeypatch.setenv(name, value)
    done = asking(peered)
    assert (done.code, "none.pem" in done.err) == (1, True)
    for name in peered.authority.settings("none"):
        monkeypatch.delenv(name)
    done = asking(peered)
    assert (done.code, "tls.internal.ca" in done.err) == (1, True)


class Older(http.server.BaseHTTPRequestHandler):
    """A node that knows nothing of zones."""

    def do_GET(self) -> None:
        self.send_error(404)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.mark.usefixtures("as_node")
def test_a_node_of_an_older_version_is_said_to_be_one(peered: Peered) -> None:
    folder = peered.authority.folder
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "one.pem", folder / "one.key")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Older) as older:
        older.socket = context.wrap_socket(older.socket, server_side=True)
        thread = threading.Thread(target=older.serve_forever, daemon=True)
        thread.start()
        done = command("peer", f"127.0.0.1:{older.server_address[1]}")
        older.shutdown()
        thread.join()
    assert (done.code, "does not know /internal/zones" in done.err) == (1, True), done.err


@pytest.mark.usefixtures("as_node")
def test_a_renewed_certificate_is_served_without_a_restart(peered: Peered) -> None:
    def served() -> bytes | None:
        host, _, port = peered.address.rpartition(":")
        context = peered.context("two")
        with (
            socket.create_connection((host, int(port)), 30) as plain,
            context.wrap_socket(plain, server_hostname=PEER_NAME) as stream,
        ):
            return stream.getpeercert(binary_form=True)

    before = served()
    peered.authority.sign("one")
    wait_until(lambda: served() != before)
    assert asking(peered).code == 0


def test_zones_that_came_from_elsewhere_are_served_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority, script = Authority(tmp_path), Script()
    authority.sign("one")
    script.steps["sec.example"] = whole(7, 'www 60 TXT "one"')
    with SocketPrimary(script).serving() as primary:
        primaries = {"primaries": [{"address": "127.0.0.1", "port": primary.port}]}
        manifest = zone("sec.example", type="Secondary", secondary=primaries)
        file = write_json(tmp_path / "o.json", manifest)
        assert command("apply", "-f", file, "--data", tmp_path / "data").code == 0
        own = authority.settings("one")
        env = {"KUDURRU__LISTENERS__INTERNAL": "127.0.0.1:0", **own}
        with serving(tmp_path / "data", env=env) as server:
            wait_until(lambda: server.texts("www.sec.example", "TXT") == ['"one"'])
            for name, value in own.items():
                monkeypatch.setenv(name, value)
            told = command("peer", server.addresses["internal"], "-o", "json").json()["zones"]
    assert [(z["zone"], z["type"], z["serial"]) for z in told] == [("sec.example.", "Secondary", 7)]


def test_without_the_setting_there_is_no_such_listener(tmp_path: Path) -> None:
    with serving(tmp_path / "data") as server:
        assert "internal" not in server.addresses
        connection = http.client.HTTPConnection(server.addresses["http"], timeout=30)
        connection.request("GET", "/internal/zones")
        assert connection.getresponse().status in (401, 404)
        connection.close()
