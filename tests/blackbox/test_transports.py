"""Every listener of the program: real clients, a certificate that changes, and bad ones."""

import asyncio
import http.client
import json
import shutil
import ssl
import subprocess
import urllib.request
from pathlib import Path

import pytest
from cryptography import x509

from tests.absent import absent
from tests.blackbox.program import PATIENCE_S, Serving, command, serving, wait_until
from tests.certificates import SERVER_NAME, make_pair, write_pair
from tests.dns_clients import (
    framed,
    open_doq,
    open_http1,
    open_http2,
    open_http3,
    open_tls,
    post,
    read_message,
)
from tests.packets import query

PROTOCOLS = ("udp", "tcp", "tls", "https", "h3", "quic")
PACKET = query("www.demo.example", ident=0)
WWW = bytes((192, 0, 2, 80))


def settings(folder: Path, *protocols: str) -> dict[str, str]:
    listeners = [{"proto": proto, "address": "127.0.0.1:0"} for proto in protocols or PROTOCOLS]
    return {
        "KUDURRU__LISTENERS": json.dumps(listeners),
        "KUDURRU__TLS__CERT": f"file:{folder}/cert.pem",
        "KUDURRU__TLS__KEY": f"file:{folder}/key.pem",
    }


def target(server: Serving, proto: str) -> tuple[str, int]:
    host, _, port = server.addresses[proto].rpartition(":")
    return host, int(port)


async def ask_everywhere(server: Serving) -> dict[str, bytes]:
    """The answer over each encrypted transport."""
    found = {}
    reader, writer = await open_tls(target(server, "tls"))
    writer.write(framed(PACKET))
    found["tls"] = await read_message(reader)
    writer.close()
    for name, opened, proto in (
        ("http1", open_http1, "https"),
        ("http2", open_http2, "https"),
        ("http3", open_http3, "h3"),
    ):
        async with opened(target(server, proto)) as client:
            response = await client.request(*post(PACKET))
            assert response.headers[b"cache-control"] == b"max-age=300"
            found[name] = response.body
    async with open_doq(target(server, "quic")) as doq:
        found["doq"] = await doq.ask(PACKET)
    return found


def test_one_zone_is_answered_alike_over_every_transport(tmp_path: Path) -> None:
    write_pair(tmp_path)
    with serving(tmp_path / "d", "--demo", dns_at=None, env=settings(tmp_path)) as server:
        assert server.texts("www.demo.example") == ["192.0.2.80"]
        found = asyncio.run(ask_everywhere(server))
        assert len(found) == 5
        assert len(set(found.values())) == 1
        assert found["tls"].endswith(WWW)
        assert target(server, "tls")[1] == target(server, "quic")[1]
        assert target(server, "https")[1] == target(server, "h3")[1]
        metrics = get(server, "metrics", "/metrics")
        for proto, count in (("tls", 1), ("https", 2), ("h3", 1), ("quic", 1)):
            name, where = "kudurru_dns_requests_total", server.addresses[proto]
            labels = f'family="ipv4",listener="{where}",proto="{proto}",qtype="A"'
            number = metrics.partition(f"{name}{{{labels}}} ")[2].partition("\n")[0]
            assert float(number) >= count  # and those of the node itself
        assert "component=kudurru" in server.stderr()
        assert "component=quic" not in server.stderr(), "clients fill the log"


def get(server: Serving, name: str, path: str) -> str:
    with urllib.request.urlopen(f"http://{server.addresses[name]}{path}") as answer:
        return answer.read().decode()


def test_the_node_may_be_asked_for_its_metrics_by_its_name(tmp_path: Path) -> None:
    """As a Prometheus beside it in compose does; other names are refused (DNS rebinding)."""
    with serving(tmp_path / "d", env={"KUDURRU__NODE__NAME": "ns9.example"}) as server:
        for listener, path in (("metrics", "/metrics"), ("ops", "/readyz"), ("http", "/readyz")):
            for host, code in (("ns9.example:1", 200), ("other.example", 421)):
                address = server.addresses[listener]
                connection = http.client.HTTPConnection(address, timeout=PATIENCE_S)
                connection.request("GET", path, headers={"Host": host})
                assert connection.getresponse().status == code
                connection.close()


def served_names(server: Serving) -> list[str]:
    pem = ssl.get_server_certificate(target(server, "tls"), timeout=PATIENCE_S)
    return [str(one.value) for one in x509.load_pem_x509_certificate(pem.encode()).subject]


@pytest.mark.slow
def test_a_renewed_certificate_is_served_and_a_broken_one_is_not(tmp_path: Path) -> None:
    cert, _ = write_pair(tmp_path, make_pair("old.test"))
    with serving(tmp_path / "d", "--demo", dns_at=None, env=settings(tmp_path)) as server:
        assert served_names(server) == ["old.test"]
        write_pair(tmp_path, make_pair("new.test", kind="rsa"))
        wait_until(lambda: served_names(server) == ["new.test"])
        assert len(asyncio.run(ask_everywhere(server))) == 5

        cert.write_text("not a certificate")
        wait_until(lambda: "warnings" in get(server, "ops", "/readyz"))
        ready = json.loads(get(server, "ops", "/readyz"))
        assert ready["status"] == "ok"
        assert "holds no certificate chain in PEM" in ready["warnings"][0]
        assert 'kudurru_tls_certificate_reloads_total{result="failed"} 1.0' in get(
            server, "metrics", "/metrics"
        )
        assert served_names(server) == ["new.test"]
        assert server.texts("www.demo.example") == ["192.0.2.80"]

        write_pair(tmp_path, make_pair("last.test"))
        wait_until(lambda: served_names(server) == ["last.test"])
        assert json.loads(get(server, "ops", "/readyz")) == {"status": "ok"}


BAD = {
    "missing": (None, "cert.pem cannot be read: No such file"),
    "text": ((b"a", b"b"), "holds no certificate chain in PEM"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_server_does_not_start_with_a_broken_certificate(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, fault = BAD[name]
    if made is not None:
        write_pair(tmp_path, made)
    for variable, value in settings(tmp_path, "tls", "udp").items():
        monkeypatch.setenv(variable, value)
    done = command("serve", "--data", tmp_path / "d")
    assert done.code == 1
    assert done.out == ""
    assert fault in done.err
    assert done.err.startswith("error")


def test_a_server_starts_with_an_expired_certificate_and_says_so(tmp_path: Path) -> None:
    """DNS in the clear is what the certificate is renewed over."""
    write_pair(tmp_path, make_pair(since_days=-9, until_days=-1))
    with serving(tmp_path / "d", "--demo", dns_at=None, env=settings(tmp_path)) as server:
        assert server.texts("www.demo.example") == ["192.0.2.80"]
        assert len(asyncio.run(ask_everywhere(server))) == 5
        (warning,) = json.loads(get(server, "ops", "/readyz"))["warnings"]
        assert "expired at" in warning


# Real clients.


def need(command: str) -> str:
    """Skips where a client is not installed, but not in CI: nobody would notice."""
    found = shutil.which(command)
    if found is None:
        absent(f"{command} is not installed")
    return found


def output_of(*command: str | Path) -> str:
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, timeout=PATIENCE_S, check=True
    )
    return done.stdout.decode()


@pytest.mark.slow
def test_kdig_is_answered_over_tls_https_and_quic(tmp_path: Path) -> None:
    kdig = need("kdig")
    cert, _ = write_pair(tmp_path)
    with serving(tmp_path / "d", "--demo", dns_at=None, env=settings(tmp_path)) as server:
        for proto, option in (
            ("dns", "+notcp"),
            ("dns", "+tcp"),
            ("tls", "+tls"),
            ("https", "+https"),
            ("https", "+https-get"),
            ("quic", "+quic"),
        ):
            host, port = target(server, proto)
            checked = [f"+tls-ca={cert}", f"+tls-hostname={SERVER_NAME}"]
            if proto in ("dns", "quic"):
                checked = []  # kdig 3.2 crashes when it is to check a certificate over QUIC
            shown = output_of(
                kdig, f"@{host}", "-p", str(port), option,
                *checked,
                "+short", "www.demo.example", "A",
            )  # fmt: skip
            assert shown == "192.0.2.80\n", (proto, option)


@pytest.mark.slow
def test_kdig_sees_padding_and_keepalive(tmp_path: Path) -> None:
    kdig = need("kdig")
    write_pair(tmp_path)
    with serving(tmp_path / "d", "--demo", dns_at=None, env=settings(tmp_path)) as server:
        host, port = target(server, "tls")
        shown = output_of(kdig, f"@{host}", "-p", str(port), "+tls", "www.demo.example", "A")
        assert "Received 468 B" in shown
        ednsopt = "+ednsopt=11"
        shown = output_of(kdig, f"@{host}", "-p", str(port), "+tls", ednsopt, "www.demo.example")
        assert "KEEPALIVE: 10.000 sec" in shown or "0064" in shown, shown


@pytest.mark.slow
def test_curl_is_answered_over_http_1_and_2_and_3_where_it_can(tmp_path: Path) -> None:
    curl = need("curl")
    cert, _ = write_pair(tmp_path)
    question = tmp_path / "question"
    question.write_bytes(PACKET)
    versions = ["--http1.1", "--http2"]
    if "HTTP3" in output_of(curl, "--version"):
        versions.append("--http3-only")
    with serving(tmp_path / "d", "--demo", dns_at=None, env=settings(tmp_path)) as server:
        for version in versions:
            _, port = target(server, "https")
            answer = tmp_path / "answer"
            shown = output_of(
                curl, "--silent", "--show-error", "--fail", version, "--cacert", cert,
                "--resolve", f"{SERVER_NAME}:{port}:127.0.0.1",
                "--header", "content-type: application/dns-message",
                "--data-binary", f"@{question}", "--output", answer,
                "--write-out", "%{http_version} %{content_type}",
                f"https://{SERVER_NAME}:{port}/dns-query",
            )  # fmt: skip
            assert shown.split()[1] == "application/dns-message"
            assert answer.read_bytes().endswith(WWW), version


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["tcp", "dot", "doh"])
def test_dnsperf_loses_nothing(mode: str, tmp_path: Path) -> None:
    dnsperf = need("dnsperf")
    write_pair(tmp_path)
    names = tmp_path / "names"
    names.write_text("www.demo.example A\nmail.demo.example A\nnone.demo.example A\n")
    with serving(tmp_path / "d", "--demo", dns_at=None, env=settings(tmp_path)) as server:
        host, port = target(server, {"tcp": "dns", "dot": "tls", "doh": "https"}[mode])
        uri = ["-O", f"doh-uri=https://{host}:{port}/dns-query"] if mode == "doh" else []
        shown = output_of(
            dnsperf, "-m", mode, "-s", host, "-p", str(port), "-d", names,
            "-n", "2000", "-c", "4", "-q", "40", *uri,
        )  # fmt: skip
        assert "Queries lost:         0 " in shown, shown
        assert "Queries completed:    6000 " in shown, shown
