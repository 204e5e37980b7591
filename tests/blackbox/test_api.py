"""The API of a real server: the first token, the commands through it, what is left afterwards."""

import http.client
import json
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kudurru.entrypoints import verify_export
from tests.blackbox.program import (
    Done,
    Serving,
    command,
    files_in,
    records,
    serving,
    wait_until,
    write_json,
    zone,
)


class Asking:
    """Requests with a token, over one connection each."""

    def __init__(self, server: Serving, token: str) -> None:
        self.url = f"http://{server.addresses['http']}"
        self._address = server.addresses["http"]
        self.token = token

    def __call__(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        connection = http.client.HTTPConnection(self._address, timeout=30)
        sent = {"Authorization": f"Bearer {self.token}", **headers}
        octets = None
        if body is not None:
            octets = json.dumps(body).encode()
            sent.setdefault("Content-Type", "application/json")
        connection.request(method, f"/api/v1{path}", body=octets, headers=sent)
        response = connection.getresponse()
        found = response.read()
        connection.close()
        is_json = response.headers["Content-Type"] == "application/json"
        return response.status, json.loads(found) if is_json else found.decode()


def first_token(data: Path) -> str:
    return (data / "admin.token").read_text().strip()


def test_the_first_token_makes_an_admin_and_is_gone_then(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with serving(data) as server:
        file = data / "admin.token"
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        ask = Asking(server, first_token(data))
        assert ask("GET", "/dnszones")[0] == 403
        code, made = ask("POST", "/tokens", {"name": "root", "role": "admin"})
        assert code == 201
        wait_until(lambda: not file.exists())
        assert ask("POST", "/tokens", {"name": "more", "role": "admin"})[0] == 401
        admin = Asking(server, made["token"])
        assert admin("GET", "/info")[1]["role"] == "admin"
        code, listed = admin("GET", "/tokens")
        assert [one["name"] for one in listed] == ["root"]
    events = command("history", "--data", data, "-o", "json").json()
    told = [(e["verb"], e["object"], e["actor"]) for e in reversed(events)]
    assert ("created", "apitoken/bootstrap", "system") in told
    assert ("created", "apitoken/root", "token:bootstrap") in told
    assert ("deleted", "apitoken/bootstrap", "system") in told
    secret = made["token"].rpartition("_")[2].encode()
    assert [path for path, held in files_in(data).items() if secret in held] == []
    with serving(data) as server:
        assert not (data / "admin.token").exists()
        again = Asking(server, made["token"])
        assert again("GET", "/info")[0] == 200
        assert again("GET", "/tokens")[1][0]["lastUsed"]
    assert command("audit", "verify", "--level", "state", "--data", data).code == 0


def test_a_token_of_the_command_line_works_at_once_and_not_after_it_is_revoked(
    tmp_path: Path,
) -> None:
    data = tmp_path / "data"
    made = command(
        "token", "create", "ci", "--role", "operator", "--zone", "home.arpa", "--expires-in", "1h",
        "--data", data, "-o", "json",
    ).json()  # fmt: skip
    with serving(data) as server:
        assert not (data / "admin.token").exists()  # somebody made one already
        ask = Asking(server, made["token"])
        assert ask("GET", "/info")[1]["zones"] == ["home.arpa"]
        shown = command("token", "list", "--data", data)
        assert "home.arpa" in shown.out
        assert made["token"] not in shown.out
        assert command("token", "revoke", "ci", "--data", data).code == 0
        assert ask("GET", "/info")[0] == 401
        wrong = command("token", "create", "x", "--role", "king", "--data", data)
        assert (wrong.code, "none of viewer" in wrong.err) == (1, True)
        taken = command("token", "create", "bootstrap", "--role", "admin", "--data", data)
        assert taken.code == 1


# --- commands through the API ---------------------------------------------------------------


@pytest.fixture(scope="module")
def far(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, list[str]]]:
    """A data directory, and the options that lead to its server from far away."""
    folder = tmp_path_factory.mktemp("far")
    data, file = folder / "data", folder / "token"
    made = command("token", "create", "root", "--role", "admin", "--data", data, "-o", "json")
    file.write_text(made.json()["token"] + "\n")
    with serving(data, "--demo") as server:
        url = f"http://{server.addresses['http']}"
        yield data, ["--server", url, "--token", f"file:{file}"]


def both(far: tuple[Path, list[str]], *args: str | Path) -> tuple[Done, Done]:
    """Tried again where they differ: the server may sign a checkpoint between the two, as what
    came from far away is recorded."""
    data, options = far
    for _ in range(5):
        near, distant = command(*args, "--data", data), command(*args, *options)
        if ageless(near.out) == ageless(distant.out):
            break
    return near, distant


@pytest.mark.parametrize(
    "args",
    [
        ("get", "zone"),
        ("get", "zone", "-o", "json"),
        ("get", "rs", "-A", "-o", "wide"),
        ("get", "rs", "www.demo.example", "-o", "yaml"),
        ("get", "rs", "none"),
        ("get", "rs", "-l", "=="),
        ("get", "rs", "--at", "5"),
        ("get", "rs", "--at", "99999"),
        ("get", "rs", "apex.demo.example", "--at", "6", "-o", "json"),
        ("describe", "rs", "www.demo.example"),
        ("undo", "rs/www.demo.example", "--dry-run"),
        ("history", "rs/default/www.demo.example"),
        ("history", "rs/www.demo.example"),
        ("history", "rs/www.demo.example", "-o", "wide"),
        ("history", "--name", "www.demo.example", "--type", "A"),
        ("query", "www.demo.example"),
        ("query", "none.demo.example", "MX", "-o", "json"),
        ("query", "bad..name"),
        ("explain", "www.demo.example"),
        ("explain", "example.com", "--client", "nobody"),
        ("zone", "export", "demo.example"),
        ("zone", "export", "demo.example."),
        ("blocking", "status"),
        ("list", "status"),
        ("cache", "stats"),
        ("tsig", "list"),
        ("explain", "www.demo.example", "--at", "6"),
        ("explain", "nobody.example", "--at", "6", "-o", "json"),
        ("explain", "bad..name", "--at", "6"),
        ("explain", "www.demo.example", "--at", "99999"),
        ("diff", "--from", "3", "--to", "6"),
        ("diff", "--from", "3", "--to", "6", "--zone", "demo.example", "-o", "json"),
        ("diff", "--from", "6", "--to", "3"),
        ("diff", "--from", "mark:none"),
        ("restore", "--at", "6", "rs/www.demo.example"),
        ("restore", "--at", "6", "--zone", "none.example"),
        ("restore", "--at", "6"),
        ("restore", "--before-event", "99999", "--all"),
        ("restore", "--resume", "none"),
        ("audit", "export", "--until", "6"),
        ("audit", "export", "--until", "6", "--kind", "zone"),
        ("audit", "export", "--until", "6", "--format", "csv"),
        ("audit", "export", "--until", "6", "--format", "k8s"),
        ("audit", "export", "--until", "6", "--format", "ocsf", "--actor", "system"),
        ("audit", "export", "--until", "6", "--format", "cloudevents", "--zone", "demo.example"),
        ("audit", "export", "--since", "mark:none"),
        ("audit", "export", "--kind", "nonsense"),
    ],
)
def test_a_command_says_the_same_from_far_away(
    far: tuple[Path, list[str]], args: tuple[str, ...]
) -> None:
    near, distant = both(far, *args)
    assert distant.code == near.code, distant.err
    assert ageless(distant.out) == ageless(near.out)
    if "zone export" not in " ".join(args) and not {"--at", "--before-event"} & {*args}:
        assert distant.err.splitlines()[:1] == near.err.splitlines()[:1]


def ageless(text: str) -> str:
    """Without how long ago something was."""
    return re.sub(r"\b\d+[smh]\b", "AGE", text)


def test_changes_are_made_refused_and_undone_from_far_away(
    far: tuple[Path, list[str]], tmp_path: Path
) -> None:
    data, options = far
    file = write_json(
        tmp_path / "o.json",
        zone("far.example"),
        records("www.far.example", "far.example", ("www.far.example", "A", "192.0.2.1")),
    )
    done = command("apply", "-f", file, "--reason", "from afar", *options)
    assert (done.code, done.out.count("created")) == (0, 2)
    seq = command("history", "--zone", "far.example", "-o", "json", *options).json()
    made = next(event for event in seq if event["verb"] == "created")
    assert (made["actor"], made["reason"]) == ("token:root", "from afar")
    refused = command("apply", "-f", file, "--manager", "terraform", *options)
    assert (refused.code, "is managed by 'kudurru'" in refused.err) == (1, True)
    outside = write_json(
        tmp_path / "x.json", records("x", "far.example", ("x.example", "A", "192.0.2.1"))
    )
    wrong = command("apply", "-f", outside, *options)
    assert (wrong.code, "is outside the zone" in wrong.err) == (1, True)
    gone = command("delete", "rs", "www.far.example", *options)
    assert (gone.code, "deleted" in gone.out) == (0, True)
    newest = command("history", "rs/www.far.example", "-o", "json", *options).json()[0]["seq"]
    undone = command("undo", str(newest), *options)
    assert undone.code == 0, undone.err
    assert command("get", "rs", "www.far.example", "--data", data).code == 0
    paused = command("blocking", "disable", "--for", "10m", *options)
    assert "paused for everybody" in paused.out
    assert command("blocking", "enable", *options).code == 0
    token = command("token", "create", "from-afar", "--role", "viewer", *options, "-o", "json")
    assert token.json()["token"].startswith("kudurru_from-afar_")
    assert command("token", "revoke", "from-afar", *options).code == 0
    key = command("tsig", "create", "k.far", *options, "-o", "json").json()
    assert key["position"] > 0
    assert command("tsig", "revoke", "k.far", *options).code == 0


ZONE_FILE = """\
$ORIGIN imported.example.
$TTL 300
@ IN SOA ns1 hostmaster 2024010203 7200 900 1209600 300
@ IN NS ns1
ns1 IN A 192.0.2.53
web IN A 192.0.2.80
"""


def test_a_zone_is_imported_and_restored_from_far_away_as_where_its_server_is(
    far: tuple[Path, list[str]], tmp_path: Path
) -> None:
    data, options = far
    file = tmp_path / "imported.zone"
    file.write_text(ZONE_FILE)
    done = command("zone", "import", file, *options, "-o", "json")
    assert (done.code, done.json()["objects"]) == (0, {"created": 3}), done.err
    near, distant = both(far, "zone", "import", file, "--zone", "imported.example")
    assert (distant.code, distant.out) == (near.code, near.out)
    assert "unchanged" in distant.out
    imported = done.json()["position"]
    file.write_text(ZONE_FILE.replace("web IN A 192.0.2.80\n", ""))
    gone = command("zone", "import", file, "--replace", "--allow-mass-change", *options)
    assert "deleted" in gone.out, gone.err
    scope = ("--zone", "imported.example", "--at", str(imported))
    near, distant = both(far, "restore", *scope, "-o", "json")
    plan = near.json()
    parts = ("digest", "target", "scope", "steps", "skipped")
    assert [distant.json()[part] for part in parts] == [plan[part] for part in parts]
    assert f"--apply --plan-digest {plan['digest']}" in distant.err
    stale = command("restore", *scope, "--apply", "--plan-digest", "0" * 64, *options)
    assert (stale.code, "the plan is stale" in stale.err) == (1, True)
    agreed = ("--apply", "--plan-digest", plan["digest"], "--allow-mass-change")
    carried = command("restore", *scope, *agreed, *options)
    assert (carried.code, "recorded at position" in carried.err) == (0, True), carried.err
    again = command("restore", *scope, "--yes", *options)
    assert (again.code, "nothing to do" in again.out) == (0, True)
    exported = ("zone", "export", "imported.example", "--data", data)
    wait_until(lambda: "web" in command(*exported).out)  # from its next serial on
    by = command("history", "--zone", "imported.example", "--limit", "50", "-o", "json", *options)
    assert {event["actor"] for event in by.json()} <= {"token:root", "system"}


def test_what_files_would_change_is_the_same_from_far_away(
    far: tuple[Path, list[str]], tmp_path: Path
) -> None:
    file = write_json(
        tmp_path / "o.json",
        records("new", "demo.example", ("new.demo.example", "A", "192.0.2.1")),
    )
    near, distant = both(far, "diff", "-f", file)
    assert (near.code, near.out) == (distant.code, distant.out)
    assert "would be created" in near.out


def test_an_export_from_far_away_is_a_whole_file_that_proves_itself(
    far: tuple[Path, list[str]], tmp_path: Path
) -> None:
    data, options = far
    command("audit", "checkpoint", "--data", data)
    file = tmp_path / "log.jsonl"
    done = command("audit", "export", "--output", file, *options)
    assert done.code == 0, done.err
    assert f"{len(file.read_text().splitlines()) - 2} events written to {file}" in done.err
    assert verify_export.main([str(file)]) == 0
    table = command("audit", "export", "--format", "sqlite", "--output", tmp_path / "t", *options)
    assert (table.code, "where the data directory is" in table.err) == (1, True)
    assert not (tmp_path / "t").exists()


def test_more_objects_than_the_api_takes_are_refused_before_they_are_sent(
    far: tuple[Path, list[str]], tmp_path: Path
) -> None:
    hosts = "".join(f"h{i} IN A 192.0.2.1\n" for i in range(10_001))
    file = tmp_path / "large.zone"
    file.write_text(ZONE_FILE + hosts)
    done = command("zone", "import", file, *far[1])
    assert (done.code, "with --data" in done.err) == (1, True)


def test_the_environment_says_where_and_who_unless_the_command_does(
    far: tuple[Path, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, options = far
    monkeypatch.setenv("KUDURRU_SERVER", options[1])
    monkeypatch.setenv("KUDURRU_TOKEN", options[3])
    assert "demo.example" in command("get", "zone").out
    here = command("get", "zone", "--data", tmp_path / "none")
    assert (here.code, "no data directory" in here.err) == (1, True)
    replay = command("replay")
    assert (replay.code, "--data" in replay.err) == (1, True)
    two = command("get", "zone", "--data", tmp_path, "--server", options[1])
    assert (two.code, "either --data or --server" in two.err) == (2, True)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--server", "nonsense", "--token", "x"], "is not like http://127.0.0.1:8080"),
        (["--server", "http://127.0.0.1:1", "--token", "x"], "does not answer"),
        (["--server", "http://127.0.0.1:1"], "no token"),
        (["--server", "http://127.0.0.1:1", "--token", "file:/none"], "/none"),
        (["--server", "http://user:pw@127.0.0.1:1", "--token", "x"], "is not like"),
        (["--server", "http://127.0.0.1:99999", "--token", "x"], "is not like"),
    ],
)
def test_a_server_that_is_none_is_told_in_a_sentence(options: list[str], told: str) -> None:
    done = command("get", "zone", *options)
    assert (done.code, told in done.err) == (1, True), done.err


def test_https_to_a_listener_that_speaks_http_is_told(far: tuple[Path, list[str]]) -> None:
    url, token = far[1][1].replace("http://", "https://"), far[1][2:]
    done = command("get", "zone", "--server", url, *token)
    assert (done.code, "speaks HTTP: say http://" in done.err) == (1, True), done.err


def test_a_token_that_does_not_do_is_told(far: tuple[Path, list[str]]) -> None:
    done = command("get", "zone", *far[1][:2], "--token", "kudurru_x_" + "0" * 64)
    assert (done.code, "not known here" in done.err) == (1, True)
    assert "0" * 64 not in done.err


def test_browsers_of_other_sites_are_refused_by_the_real_listener(
    far: tuple[Path, list[str]],
) -> None:
    address = far[1][1].removeprefix("http://")
    for headers, code in (
        ({"Host": "evil.example"}, 421),
        ({"Origin": "https://evil.example"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
    ):
        connection = http.client.HTTPConnection(address, timeout=30)
        connection.request("POST", "/api/v1/batch", body=b"{}", headers=headers)
        response = connection.getresponse()
        assert (response.status, json.loads(response.read())["kind"]) == (code, "Status")
        assert response.headers.get("Access-Control-Allow-Origin") is None
        assert response.headers.get("Set-Cookie") is None
        connection.close()


def test_openapi_and_its_page_need_no_token_and_nothing_from_outside(
    far: tuple[Path, list[str]],
) -> None:
    address = far[1][1].removeprefix("http://")
    connection = http.client.HTTPConnection(address, timeout=30)
    connection.request("GET", "/api/docs")
    response = connection.getresponse()
    page = response.read().decode()
    assert response.headers["Content-Security-Policy"].startswith("default-src 'none'")
    assert "<script" not in page
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert "https://" not in page
    connection.request("GET", "/api/v1/openapi.json")
    document = json.loads(connection.getresponse().read())
    assert document["openapi"] == "3.1.0"
    connection.close()
