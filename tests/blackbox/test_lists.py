"""Lists as people meet them: subscribed, fetched, matched, explained, kept over a restart."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.blackbox.program import PATIENCE_S, Serving, command, kudurru, serving, write_json
from tests.blackbox.test_filtering import document, explained, told

CLIENT = "127.0.0.5"


def block_list(name: str, *sources: dict[str, Any], **more: Any) -> dict[str, Any]:
    return document("BlockList", name, {"sources": list(sources), **more})


def policy(*lists: str) -> dict[str, Any]:
    return document("Policy", "all", {"blockListRefs": list(lists), "blockMode": "nxdomain"})


def applied(data: Path, folder: Path, *objects: dict[str, Any]) -> None:
    done = command("apply", "--data", data, "-f", write_json(folder / "objects.json", *objects))
    assert done.code == 0, done.err


def rows(data: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(
        command("list", "status", "--data", data, "-o", "json").out
    )
    return found


def sources(data: Path) -> list[dict[str, Any]]:
    return [source for row in rows(data) for source in row["sources"]]


def status(data: Path, name: str) -> dict[str, Any]:
    stored = command("get", "bl", name, "--data", data, "-o", "json").json()
    return stored.get("status") or {}


def until(is_so: Callable[[], object]) -> None:
    """Wait for a condition."""
    deadline = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def until_told(server: Serving, name: str, wanted: str) -> None:
    until(lambda: told(server, CLIENT, name) == wanted)


def test_an_inline_list_acts_when_its_apply_returns(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with serving(data) as server:
        lines = ["0.0.0.0 ads.example", "||track.example^", "@@||ok.track.example^", "# x"]
        applied(data, tmp_path, block_list("own", {"inline": lines}), policy("own"))
        assert told(server, CLIENT, "ads.example") == "NXDOMAIN"
        assert told(server, CLIENT, "x.ads.example") == "REFUSED"
        assert told(server, CLIENT, "x.track.example", "HTTPS") == "NXDOMAIN"
        assert told(server, CLIENT, "ok.track.example") == "REFUSED"
        why = explained(data, "x.track.example", "--client", CLIENT)
        assert "||track.example^" in json.dumps(why)
        applied(data, tmp_path, block_list("own", {"inline": ["b.example"]}))
        assert told(server, CLIENT, "ads.example") == "REFUSED"
        assert told(server, CLIENT, "b.example") == "NXDOMAIN"
        assert command("delete", "--data", data, "bl", "own").code == 0
        assert told(server, CLIENT, "b.example") == "REFUSED"


def test_a_fetched_list_is_matched_explained_and_there_after_a_restart(tmp_path: Path) -> None:
    data, file = tmp_path / "data", tmp_path / "list.txt"
    file.write_text("# a list\n0.0.0.0 ads.example\n||track.example^\nnonsense here\n")
    with serving(data) as server:
        applied(data, tmp_path, block_list("file", {"url": f"file:{file}"}), policy("file"))
        until_told(server, "x.track.example", "NXDOMAIN")
        why = json.dumps(explained(data, "ads.example", "--client", CLIENT))
        assert f"file:{file}" in why
        assert "0.0.0.0 ads.example" in why
        row = sources(data)[0]
        assert (row["phase"], row["entries"], row["invalidEntries"]) == ("Fresh", 2, 1)
        until(lambda: status(data, "file").get("entries") == 2)  # written after it is matched
    # Without a server, and with the file gone: what was fetched is there.
    file.unlink()
    assert "track.example" in json.dumps(explained(data, "x.track.example", "--client", CLIENT))
    with serving(data) as server:
        assert told(server, CLIENT, "x.track.example") == "NXDOMAIN"
        done = command("list", "refresh", "file", "--data", data)
        assert done.code == 0, done.err
        until(lambda: sources(data)[0]["phase"] == "Stale")
        assert sources(data)[0]["error"] == "there is no such file"
        assert told(server, CLIENT, "x.track.example") == "NXDOMAIN"
        file.write_text("c.example\n")
        assert command("list", "refresh", "--data", data).code == 0
        until_told(server, "c.example", "NXDOMAIN")
        assert told(server, CLIENT, "x.track.example") == "REFUSED"


def test_this_machine_and_pages_are_no_lists_and_the_status_says_why(tmp_path: Path) -> None:
    data, page = tmp_path / "data", tmp_path / "page"
    page.write_text("<!DOCTYPE html><p>the secret of the intranet")
    lists = [
        block_list("here", {"url": "http://127.0.0.1:1/list"}),
        block_list("page", {"url": f"file:{page}"}),
        block_list("map", {"configMapRef": {"name": "x"}}),
    ]
    with serving(data):
        applied(data, tmp_path, *lists)
        until(lambda: [source["phase"] for source in sources(data)] == ["Failed"] * 3)
        found = sources(data)
        errors = {source["source"]: source["error"] for source in found}
        why = "127.0.0.1 is this machine itself; a file of it is file:/path"
        assert errors["http://127.0.0.1:1/list"] == why
        assert "HTML" in errors[f"file:{page}"]
        assert "secret" not in json.dumps(found)
        assert command("list", "refresh", "nosuch", "--data", data).code == 1


def test_a_list_that_is_switched_off_is_unloaded_and_its_copy_collected(tmp_path: Path) -> None:
    data, file = tmp_path / "data", tmp_path / "list.txt"
    file.write_text("ads.example\n")
    off = block_list("file", {"url": f"file:{file}"})
    on = json.loads(json.dumps(off))
    off["metadata"]["annotations"] = {"kudurru.io/enabled": "false"}
    on["metadata"]["annotations"] = {"kudurru.io/enabled": "true"}
    with serving(data) as server:
        applied(data, tmp_path, on, policy("file"))
        until_told(server, "ads.example", "NXDOMAIN")
        assert list((data / "lists" / "bodies").iterdir())
        applied(data, tmp_path, off)
        assert told(server, CLIENT, "ads.example") == "REFUSED"
        until(lambda: not list((data / "lists" / "bodies").iterdir()))
        assert not rows(data)[0]["enabled"]
        assert command("list", "refresh", "file", "--data", data).code == 1
        applied(data, tmp_path, on)
        until_told(server, "ads.example", "NXDOMAIN")


def test_lists_without_a_server_are_shown_and_not_fetched(tmp_path: Path) -> None:
    data = tmp_path / "data"
    applied(data, tmp_path, block_list("own", {"inline": ["a.example"]}))
    assert rows(data)[0]["name"] == "own"
    done = command("list", "refresh", "--data", data)
    assert done.code == 1
    assert "kudurru serve" in done.err


def test_a_server_that_shall_not_start_without_lists_does_not(tmp_path: Path) -> None:
    data = tmp_path / "data"
    applied(data, tmp_path, block_list("gone", {"url": f"file:{tmp_path}/gone"}))
    config = tmp_path / "settings.yaml"
    config.write_text("lists:\n  startup: failOnError\n")
    addresses = [f"--{name}=127.0.0.1:0" for name in ("dns", "http", "ops", "metrics")]
    done = kudurru("serve", "--data", data, "--config", config, *addresses)
    assert done.code == 1
    assert "there is no such file" in done.err
