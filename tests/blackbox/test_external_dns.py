"""The webhook provider of external-dns, asked over its own listener of a real server."""

import json
import urllib.request
from pathlib import Path
from typing import Any

from tests.blackbox.program import kudurru, serving, write_json, zone

MEDIA_TYPE = "application/external.dns.webhook+json;version=1"


def ask(url: str, body: Any = None) -> tuple[int, str, bytes]:
    headers = {"Accept": MEDIA_TYPE} if body is None else {"Content-Type": MEDIA_TYPE}
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, headers)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return answer.status, answer.headers["Content-Type"], answer.read()


def test_what_external_dns_plans_is_served_and_shows_in_history(tmp_path: Path) -> None:
    config = tmp_path / "kudurru.yaml"
    config.write_text("externalDNS:\n  listen: 127.0.0.1:0\n")
    data = tmp_path / "data"
    with serving(data, "--config", str(config)) as server:
        url = "http://" + server.addresses["external-dns"]
        objects = write_json(tmp_path / "zone.json", zone("example.org"))
        assert kudurru("apply", "-f", objects, "--data", data).code == 0
        assert ask(url) == (200, MEDIA_TYPE, b'{"filters":["example.org"]}')
        wanted = {"dnsName": "www.example.org", "recordType": "A", "targets": ["192.0.2.7"]}
        assert ask(f"{url}/records", {"create": [wanted]})[0] == 204
        assert server.texts("www.example.org") == ["192.0.2.7"]
        assert json.loads(ask(f"{url}/records")[2]) == [wanted]
        history = kudurru("history", "--data", data).out
        assert "external-dns" in history
