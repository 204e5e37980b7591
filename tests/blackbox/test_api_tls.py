"""The API over TLS: real commands, a certificate that changes, and who speaks in the clear."""

import http.client
import json
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.blackbox.program import Done, Serving, command, kudurru, serving, wait_until
from tests.certificates import make_pair, write_pair


class Far(NamedTuple):
    server: Serving
    folder: Path  # of certificate and key
    data: Path
    token: str

    @property
    def address(self) -> str:
        return self.server.addresses["http"]

    def run(self, *args: str, scheme: str = "https", ca: Path | None = None) -> Done:
        trust = ["--ca", str(ca)] if ca else []
        url = f"{scheme}://{self.address}"
        return command(*args, "--server", url, "--token", self.token, *trust)


@pytest.fixture(scope="module")
def far(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Far]:
    folder = tmp_path_factory.mktemp("tls")
    write_pair(folder)
    data = folder / "data"
    made = command("token", "create", "root", "--role", "admin", "--data", data, "-o", "json")
    env = {
        "KUDURRU__API__TLS": "true",
        "KUDURRU__TLS__CERT": f"file:{folder}/cert.pem",
        "KUDURRU__TLS__KEY": f"file:{folder}/key.pem",
    }
    with serving(data, "--demo", env=env) as server:
        yield Far(server, folder, data, made.json()["token"])


def test_commands_work_over_tls_with_the_ca_of_the_server(far: Far) -> None:
    near = command("get", "rs", "-A", "-o", "json", "--data", far.data)
    distant = far.run("get", "rs", "-A", "-o", "json", ca=far.folder / "cert.pem")
    assert (distant.code, distant.out) == (0, near.out), distant.err
    exported = far.run("audit", "export", "--format", "csv", ca=far.folder / "cert.pem")
    assert exported.out.count("demo.example") > 3
    shown = far.run("doctor", ca=far.folder / "cert.pem")
    assert "cert.pem is good for" in shown.out


def test_a_certificate_that_is_not_trusted_gets_no_token(far: Far, tmp_path: Path) -> None:
    other, _ = write_pair(tmp_path, make_pair())
    for ca in (None, other):
        done = far.run("get", "zone", ca=ca)
        assert (done.code, "is not trusted" in done.err, "--ca" in done.err) == (1, True, True)
    nothing = far.run("get", "zone", ca=tmp_path / "none.pem")
    assert (nothing.code, "none.pem" in nothing.err) == (1, True)
    empty = far.run("get", "zone", ca=write_pair(tmp_path, (b"", b""))[0])
    assert (empty.code, "no certificate in PEM" in empty.err) == (1, True)
    plain = far.run("get", "zone", scheme="http", ca=far.folder / "cert.pem")
    assert (plain.code, "give an https:// one" in plain.err) == (1, True)


def test_who_asks_in_the_clear_is_told_to_use_https(far: Far) -> None:
    done = far.run("get", "zone", scheme="http")
    assert (done.code, "speaks HTTPS only" in done.err) == (1, True), done.err
    connection = http.client.HTTPConnection(far.address, timeout=30)
    connection.request("GET", "/livez")
    answer = connection.getresponse()
    assert (answer.status, json.loads(answer.read())["kind"]) == (400, "Status")
    connection.close()


def test_a_certificate_that_is_renewed_is_served_without_a_restart(far: Far) -> None:
    host, _, port = far.address.rpartition(":")
    before = ssl.get_server_certificate((host, int(port)))
    write_pair(far.folder, make_pair())
    wait_until(lambda: ssl.get_server_certificate((host, int(port))) != before)
    done = far.run("get", "zone", ca=far.folder / "cert.pem")
    assert (done.code, "demo.example" in done.out) == (0, True), done.err


def test_a_server_without_a_certificate_says_which_settings_name_one(tmp_path: Path) -> None:
    env = {"KUDURRU__API__TLS": "true"}
    done = kudurru("serve", "--data", str(tmp_path), "--http", "127.0.0.1:0", env=env)
    assert (done.code, "tls.cert" in done.err) == (1, True), done.err
