"""kudurru tsig, on a directory and through a server."""

import stat
from base64 import b64encode
from pathlib import Path

import dns.message
import dns.query
import dns.tsig
import pytest

from tests.blackbox.program import command, files_in, serving, write_json, zone

SECRET = b64encode(bytes(range(32))).decode()


def test_a_key_is_made_listed_and_revoked_without_a_server(tmp_path: Path) -> None:
    data = tmp_path / "data"
    made = command("tsig", "create", "k1.example", "--data", data)
    assert made.code == 0
    for server in ("# BIND", "# NSD", "# Knot"):
        assert server in made.out
    secret = made.out.split('secret "')[1].split('"')[0]
    assert stat.S_IMODE((data / "keys/node.key").stat().st_mode) == 0o600
    assert command("tsig", "list", "--data", data, "-o", "json").json()[0]["problem"] == ""
    assert [path for path, held in files_in(data).items() if secret.encode() in held] == []
    assert command("tsig", "revoke", "k1.example", "--data", data).code == 0
    assert command("tsig", "list", "--data", data, "-o", "json").json() == []
    assert command("audit", "verify", "--data", data).code == 0
    assert command("replay", "--verify", "--data", data).code == 0


def test_a_backup_holds_no_secrets_and_says_which_keys_to_give_again(tmp_path: Path) -> None:
    data, other, file = tmp_path / "data", tmp_path / "other", tmp_path / "secret"
    file.write_text(SECRET)
    assert command("tsig", "create", "k1", "--secret-file", file, "--data", data).code == 0
    done = command("log", "export", tmp_path / "backup", "--data", data)
    assert done.code == 0, done.err
    done = command("log", "import", tmp_path / "backup", "--data", other)
    assert done.code == 0, done.err
    with serving(other):
        (state,) = command("tsig", "list", "--data", other, "-o", "json").json()
        assert "its secret is not here" in state["problem"]
        again = ("tsig", "create", "k1", "--secret-file", file, "--replace", "--data", other)
        assert command(*again).code == 0
        (state,) = command("tsig", "list", "--data", other, "-o", "json").json()
        assert state["problem"] == ""


def test_an_export_holds_no_keys(tmp_path: Path) -> None:
    data = tmp_path / "data"
    command("tsig", "create", "k1.example", "--data", data)
    command("apply", "-f", write_json(tmp_path / "zone.json", zone("home.example")), "--data", data)
    done = command("replay", "--export", tmp_path / "out", "--data", data)
    assert done.code == 0
    written = [path.read_text() for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert written
    assert not any("k1.example" in text for text in written)


def test_a_revoked_key_that_is_restored_does_not_work(tmp_path: Path) -> None:
    data = tmp_path / "data"
    seq = command("tsig", "create", "k1", "--data", data, "-o", "json").json()["position"]
    command("tsig", "revoke", "k1", "--data", data)
    done = command("restore", "--at", str(seq), "--all", "--yes", "--data", data)
    assert done.code == 0, done.err
    (state,) = command("tsig", "list", "--data", data, "-o", "json").json()
    assert "its secret is not here" in state["problem"]


def test_a_key_that_is_made_through_a_server_works_there_and_after_a_restart(
    tmp_path: Path,
) -> None:
    data, file = tmp_path / "data", tmp_path / "secret"
    file.write_text(SECRET + "\n")
    with serving(data, "--demo") as server:
        made = command("tsig", "create", "k1", "--secret-file", file, "--data", data, "-o", "json")
        assert made.json()["secret"] == SECRET
        states = command("tsig", "list", "--data", data, "-o", "json").json()
        assert [(s["name"], s["problem"]) for s in states] == [("k1", "")]
        again = command("tsig", "create", "k1", "--data", data)
        assert (again.code, "--replace" in again.err) == (1, True)
    with serving(data) as server:
        query = dns.message.make_query("demo.example", "SOA")
        query.use_tsig(dns.tsig.Key("k1.", SECRET))
        answer = dns.query.udp(query, server.host, port=server.port, timeout=60)
        assert answer.had_tsig
        assert command("tsig", "revoke", "k1", "--data", data).code == 0
        query = dns.message.make_query("demo.example", "SOA")
        query.use_tsig(dns.tsig.Key("k1.", SECRET))
        with pytest.raises(dns.tsig.PeerBadKey):
            dns.query.udp(query, server.host, port=server.port, timeout=60)


def test_a_key_is_not_made_by_apply_and_goes_with_delete(tmp_path: Path) -> None:
    data, file = tmp_path / "data", tmp_path / "key.yaml"
    command("tsig", "create", "k1", "--data", data)
    file.write_text(command("get", "tsig", "k1", "--data", data, "-o", "yaml").out)
    refused = command("apply", "-f", file, "--data", data)
    assert refused.code == 1
    assert "kudurru tsig create" in refused.err
    assert command("delete", "tsig", "k1", "--data", data).code == 0
    made = command("tsig", "create", "k1", "--data", data)
    assert made.code == 0


def test_secrets_may_be_sealed_with_a_key_from_elsewhere(tmp_path: Path) -> None:
    data, file = tmp_path / "data", tmp_path / "node.key"
    config = tmp_path / "node.yaml"
    config.write_text(f"node.secretsKey: file:{file}\n")
    missing = command("tsig", "create", "k1", "--data", data, "--config", config)
    assert (missing.code, "does not exist" in missing.err) == (1, True)
    file.write_text("ab" * 32 + "\n")
    file.chmod(0o600)
    assert command("tsig", "create", "k1", "--data", data, "--config", config).code == 0
    assert not (data / "keys/node.key").exists()
    (state,) = command("tsig", "list", "--data", data, "-o", "json").json()
    assert "sealed with node key" in state["problem"]
    with serving(data, "--config", str(config)):
        (state,) = command("tsig", "list", "--data", data, "-o", "json").json()
        assert state["problem"] == ""


def test_transfers_that_are_open_to_addresses_alone_are_warned_of(tmp_path: Path) -> None:
    file = tmp_path / "zone.yaml"
    file.write_text(
        "apiVersion: kudurru.io/v1alpha1\nkind: DNSZone\nmetadata: {name: z.example}\n"
        "spec: {zoneName: z.example, transfer: {allow: [192.0.2.0/24]}}\n"
    )
    done = command("apply", "-f", file, "--data", tmp_path / "data")
    assert done.code == 0
    assert "name a TSIG key" in done.err


@pytest.mark.parametrize("content", ["no base64!", "", "ÿ"])
def test_a_secret_file_that_holds_no_secret_is_refused_unquoted(
    tmp_path: Path, content: str
) -> None:
    file = tmp_path / "secret"
    file.write_text(content)
    refused = command("tsig", "create", "k1", "--secret-file", file, "--data", tmp_path / "d")
    assert refused.code == 1
    assert not content or content not in refused.err
