"""The program as a resolver, with real servers as its upstreams."""

import json
import random
import socket
import urllib.request
from pathlib import Path
from typing import Any

import dns.flags
import dns.message
import dns.query
import pytest

from tests.blackbox.program import (
    Serving,
    command,
    records,
    serve_arguments,
    serving,
    wait_until,
    write_json,
    zone,
)
from tests.blackbox.test_transports import settings as listener_settings
from tests.certificates import SERVER_NAME, write_pair
from tests.real_servers import knot, named, unbound

TRANSPORTS = ("udp", "tcp", "tls")
WWW = ["192.0.2.1"]


def configured(folder: Path, **upstreams: Any) -> str:
    """Path of a file of settings. Unless it is told otherwise, an upstream has all the time that it
    needs on a busy machine, and is not asked again meanwhile."""
    path = folder / "settings.json"
    document = {"upstreams": {"timeout": "60s", **upstreams}}
    path.write_text(json.dumps(document))
    return str(path)


def metrics(server: Serving) -> dict[str, float]:
    with urllib.request.urlopen(f"http://{server.addresses['metrics']}/metrics") as page:
        lines = [line for line in page.read().decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_unbound_is_asked_and_its_answers_are_kept(tmp_path: Path, transport: str) -> None:
    folder = tmp_path / "unbound"
    folder.mkdir()
    write_pair(folder)
    with unbound(folder) as (port, tls_port):
        options = f"#name={SERVER_NAME}" if transport == "tls" else ""
        upstream = f"{transport}://127.0.0.1:{tls_port if transport == 'tls' else port}{options}"
        config = configured(tmp_path, groups={"default": [upstream]}, ca=f"file:{folder}/cert.pem")
        with serving(tmp_path / "data", "--config", config) as server:
            assert server.texts("www.up.example") == WWW
            assert server.texts("WWW.up.example") == WWW
            assert server.texts("www.up.example", "AAAA") == ["2001:db8::1"]
            assert server.texts("alias.up.example") == ["192.0.2.1", "www.up.example."]
            assert server.texts("nope.up.example") == ["NXDOMAIN"]
            assert server.texts("inside.up.example") == ["REFUSED"]
            assert server.ask("big.up.example", "TXT").flags & dns.flags.TC
            assert len(server.ask("big.up.example", "TXT", tcp=True).answer[0][0].strings) == 20
            seen = metrics(server)
            label = {"udp": "udp", "tcp": "tcp", "tls": "dot"}[transport]
            requests = f'kudurru_upstream_requests_total{{proto="{label}",upstream="{upstream}"}}'
            assert seen[requests] == 6
            assert seen[f'kudurru_upstream_healthy{{upstream="{upstream}"}}'] == 1
            assert seen['kudurru_cache_hits_total{type="positive"}'] == 2


def test_knot_is_asked_for_its_domain_and_nothing_else(tmp_path: Path) -> None:
    folder = tmp_path / "knot"
    folder.mkdir()
    with knot(folder) as port:
        config = configured(tmp_path, conditional={"up.example": [f"127.0.0.1:{port}"]})
        with serving(tmp_path / "data", "--config", config) as server:
            assert server.texts("www.up.example") == WWW
            assert server.texts("inside.up.example") == ["192.168.1.1"]  # its own network
            assert server.texts("www.other.example") == ["REFUSED"]
            assert server.ask("www.up.example").flags & dns.flags.RA


@pytest.mark.parametrize("server", ["knot", "named"])
def test_an_upstream_that_wants_cookies_is_shown_its_own(tmp_path: Path, server: str) -> None:
    """Both answer BADCOOKIE to who shows none; so the second query of the first question has one,
    and every other question has one at once."""
    folder = tmp_path / server
    folder.mkdir()
    with knot(folder, wants_cookies=True) if server == "knot" else named(folder) as port:
        upstream = f"127.0.0.1:{port}"
        config = configured(tmp_path, conditional={"up.example": [upstream]})
        with serving(tmp_path / "data", "--config", config) as program:
            assert program.texts("www.up.example") == WWW
            assert program.texts("www.up.example", "AAAA") == ["2001:db8::1"]
            assert program.texts("nope.up.example") == ["NXDOMAIN"]
            seen = metrics(program)
            assert seen[f'kudurru_upstream_cookies{{upstream="{upstream}"}}'] == 1
            requests = f'kudurru_upstream_requests_total{{proto="udp",upstream="{upstream}"}}'
            assert seen[requests] == 4
            assert (
                f'kudurru_upstream_requests_total{{proto="tcp",upstream="{upstream}"}}' not in seen
            )


def test_a_forward_zone_sends_its_names_elsewhere_at_once(tmp_path: Path) -> None:
    folder = tmp_path / "knot"
    folder.mkdir()
    data = tmp_path / "data"
    config = configured(tmp_path)
    with knot(folder) as port, serving(data, "--config", config) as server:
        assert server.texts("www.up.example") == ["REFUSED"]
        forward = {"type": "Forward", "forward": {"upstreams": [f"127.0.0.1:{port}"]}}
        outer = records(
            "outer",
            "example",
            ("www.up.example", "A", "192.0.2.99"),
            ("alias.example", "CNAME", "www.up.example"),
        )
        file = write_json(tmp_path / "z.json", zone("example"), outer)
        assert command("apply", "-f", file, "--data", data).code == 0
        assert server.texts("www.up.example") == ["192.0.2.99"]
        assert server.texts("alias.example") == ["192.0.2.99", "www.up.example."]
        write_json(file, zone("up.example", **forward))
        assert command("apply", "-f", file, "--data", data).code == 0
        assert server.texts("www.up.example") == WWW  # the closer zone has it
        assert server.texts("inside.up.example") == ["192.168.1.1"]
        assert server.texts("alias.example") == ["www.up.example."]  # as to any name elsewhere
        assert server.texts("nope.example") == ["NXDOMAIN"]
        assert command("delete", "DNSZone", "up.example", "--data", data).code == 0
        assert server.texts("www.up.example") == ["192.0.2.99"]
        bad = {"type": "Forward", "forward": {"upstreams": ["ftp://x"]}}
        write_json(file, zone("bad.example", **bad))
        done = command("apply", "-f", file, "--data", data)
        assert done.code == 1
        assert "spec.forward.upstreams[0]" in done.err


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["tls", "https", "h3", "quic"])
def test_another_kudurru_is_an_upstream_over_every_encrypted_transport(
    tmp_path: Path, scheme: str
) -> None:
    write_pair(tmp_path)
    env = listener_settings(tmp_path, scheme, "udp", "tcp")
    with serving(tmp_path / "up", "--demo", dns_at=None, env=env) as upstream:
        text = f"{scheme}://{upstream.addresses[scheme]}#name={SERVER_NAME}"
        config = configured(tmp_path, groups={"default": [text]}, ca=f"file:{tmp_path}/cert.pem")
        with serving(tmp_path / "data", "--config", config) as server:
            assert server.texts("www.demo.example") == ["192.0.2.80"]
            assert server.texts("nope.demo.example") == ["NXDOMAIN"]


def test_a_restart_keeps_the_cache(tmp_path: Path) -> None:
    folder = tmp_path / "unbound"
    folder.mkdir()
    write_pair(folder)
    with unbound(folder) as (port, _):
        config = configured(tmp_path, groups={"default": [f"127.0.0.1:{port}"]})
        with serving(tmp_path / "data", "--config", config) as server:
            assert server.texts("www.up.example") == WWW
            assert server.texts("nope.up.example") == ["NXDOMAIN"]
            assert server.stop() == 0
    with serving(tmp_path / "data", "--config", config) as server:  # and nobody to ask
        assert server.texts("www.up.example") == WWW
        assert server.texts("nope.up.example") == ["NXDOMAIN"]
        answer = server.ask("www.up.example").answer[0]
        assert 0 < answer.ttl <= 3600


@pytest.mark.slow
def test_the_first_minute_after_a_restart_is_answered_from_the_cache(tmp_path: Path) -> None:
    """A site asks few names often and many seldom. After a restart it goes on as before; with the
    dump gone it begins anew."""
    rng = random.Random(7)

    def hit_ratio(server: Serving) -> float:
        for _ in range(1000):
            assert server.ask(f"n{int(rng.paretovariate(1))}.many.up.example").answer
        seen = metrics(server)
        hits = seen['kudurru_cache_hits_total{type="positive"}']
        return hits / (hits + seen["kudurru_cache_misses_total"])

    data = tmp_path / "data"
    with knot(tmp_path) as port:
        config = configured(tmp_path, groups={"default": [f"127.0.0.1:{port}"]})
        ratios = []
        for is_kept in (True, True, False):
            if not is_kept:
                (data / "cache.dump").unlink()
            with serving(data, "--config", config) as server:
                ratios.append(hit_ratio(server))
                assert server.stop() == 0
    cold, kept, lost = ratios
    print(
        f"suite restart: hit ratio {kept:.2f} in the first minute after a restart, "
        f"{lost:.2f} where the dump is lost, {cold:.2f} at the first start"
    )
    assert kept > max(cold, lost)


def test_the_cache_is_shown_and_flushed(tmp_path: Path) -> None:
    folder = tmp_path / "unbound"
    folder.mkdir()
    write_pair(folder)
    data = tmp_path / "data"
    with unbound(folder) as (port, _):
        config = configured(tmp_path, groups={"default": [f"127.0.0.1:{port}"]})
        with serving(data, "--config", config) as server:
            assert server.texts("www.up.example") == WWW
            assert server.texts("alias.up.example")[0] == "192.0.2.1"
            asked = command("query", "www.up.example", "--data", data, "-o", "json").json()
            assert [record["data"] for record in asked["answer"]] == WWW
            stats = command("cache", "stats", "--data", data, "-o", "json").json()
            assert (stats["entries"], stats["hits"]) == (2, 1)
            for args, count in (
                (("WWW.up.example",), 1),
                (("other.example", "--subtree"), 0),
                (("example", "--subtree"), 1),
                ((), 0),
            ):
                done = command("cache", "flush", *args, "--data", data)
                shown = "1 answer" if count == 1 else f"{count} answers"
                assert done.out == f"{shown} forgotten\n"
            assert command("cache", "flush", "a..b", "--data", data).code == 1
            assert command("cache", "flush", "--subtree", "--data", data).code == 1
    assert command("cache", "stats", "--data", data).code == 1  # nobody has one


def test_without_a_server_explain_says_where_a_question_would_go(tmp_path: Path) -> None:
    data = tmp_path / "data"
    lab = {
        "apiVersion": "kudurru.io/v1alpha1", "kind": "DNSZone",
        "metadata": {"name": "lab.example"},
        "spec": {
            "zoneName": "lab.example", "type": "Forward", "forward": {"upstreams": ["10.0.0.53"]},
        },
    }  # fmt: skip
    command("apply", "--data", data, "-f", write_json(tmp_path / "lab.json", lab))
    config = configured(
        tmp_path, groups={"default": ["192.0.2.1"], "office": ["10.0.0.1", "10.0.1.1"]},
        conditional={"corp.example": ["office"]},
    )  # fmt: skip

    def explained(name: str, *options: str) -> Any:
        shown = command("explain", "--data", data, name, "-o", "json", *options).out
        found = json.loads(shown)
        return found["answeredBy"], found.get("upstreams", [])

    assert explained("www.example") == ("resolver", [])
    shown = command("explain", "--data", data, "www.example").out
    assert "which upstreams is a setting of the server: give its --config" in shown
    assert explained("host.lab.example") == ("resolver", ["10.0.0.53"])
    assert explained("printer.local") == ("special", [])
    settings = ("--config", config)
    assert explained("www.example", *settings) == ("resolver", ["192.0.2.1"])
    assert explained("www.corp.example", *settings) == ("resolver", ["10.0.0.1", "10.0.1.1"])
    assert explained("host.lab.example", *settings) == ("resolver", ["10.0.0.53"])
    assert explained("www.example", "--client", "203.0.113.9", *settings) == ("nobody", [])
    outer = records(
        "outer", "example",
        ("host.lab.example", "A", "192.0.2.99"), ("alias.example", "CNAME", "host.lab.example"),
    )  # fmt: skip
    file = write_json(tmp_path / "outer.json", zone("example"), outer)
    assert command("apply", "--data", data, "-f", file).code == 0
    assert explained("alias.example", *settings) == ("zone", [])
    for options in ((), settings):
        assert explained("host.lab.example", *options) == ("resolver", ["10.0.0.53"])
    shown = command("query", "alias.example", "--data", data).out
    assert "host.lab.example." in shown
    assert "192.0.2.99" not in shown
    assert "REFUSED" in command("query", "host.lab.example", "--data", data).out
    newest = json.loads(command("history", "--data", data, "dnszone/lab.example", "-o", "json").out)
    at = str(newest[-1]["seq"])
    assert explained("host.lab.example", "--at", at, *settings) == ("resolver", ["10.0.0.53"])


def test_an_upstream_by_name_alone_is_refused_with_what_to_do(tmp_path: Path) -> None:
    config = configured(tmp_path, groups={"default": ["tls://dns.example"]})
    done = command(*serve_arguments(tmp_path / "data", "--config", config))
    assert done.code == 1
    assert "upstreams.bootstrap" in done.err


def test_a_host_by_name_is_found_by_the_bootstrap_servers(tmp_path: Path) -> None:
    folder = tmp_path / "unbound"
    folder.mkdir()
    write_pair(folder)
    with unbound(folder) as (port, _):
        config = configured(
            tmp_path,
            groups={"default": [f"udp://resolver.up.example:{port}"]},
            bootstrap=[f"127.0.0.1:{port}"],
        )
        with serving(tmp_path / "data", "--config", config) as server:
            assert server.texts("www.up.example") == WWW


def test_while_upstreams_are_silent_the_rest_is_answered_and_sigterm_ends_it(
    tmp_path: Path,
) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
        silent.bind(("127.0.0.1", 0))
        at = f"127.0.0.1:{silent.getsockname()[1]}"
        config = configured(tmp_path, groups={"default": [at]}, timeout="1s")
        with serving(tmp_path / "data", "--demo", "--config", config) as server:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
                client.settimeout(20)
                client.connect((server.host, server.port))
                client.send(dns.message.make_query("www.up.example", "A", id=77).to_wire())
                silent.settimeout(20)
                silent.recv(4096)  # it is under way
                assert server.texts("www.demo.example") == ["192.0.2.80"]
                server.process.terminate()
                answer = dns.message.from_wire(client.recv(4096))
                assert (answer.id, answer.rcode()) == (77, 2)
            wait_until(lambda: server.process.poll() is not None)
            assert server.process.returncode == 0
