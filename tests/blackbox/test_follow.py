"""A node that follows another one, as people run them."""

from pathlib import Path
from typing import Any

from tests.blackbox.program import (
    Serving,
    kudurru,
    records,
    serve_arguments,
    serving,
    wait_until,
    write_json,
    zone,
)
from tests.certificates import write_pair


def token_file(data: Path, place: Path, role: str = "follower") -> Path:
    made = kudurru("token", "create", f"ns-{role}", "--role", role, "--data", data, "-o", "json")
    place.write_text(made.json()["token"])
    return place


def url_of(node: Serving) -> str:
    return f"http://{node.addresses['http']}"


def follow(node: Serving, token: Path, *more: str) -> list[str]:
    return ["--follow", url_of(node), "--token", f"file:{token}", *more]


def apply(data: Path, tmp: Path, *documents: dict[str, Any]) -> int:
    return kudurru("apply", "-f", write_json(tmp / "some.json", *documents), "--data", data).code


def www(address: str) -> dict[str, Any]:
    return records("www", "one.example", ("www.one.example", "A", address))


def serial(node: Serving) -> int:
    answer = node.ask("one.example", "SOA").answer
    return int(answer[0][0].serial) if answer else 0


def test_a_follower_answers_as_its_leader_does_and_is_written_to_by_nobody(
    tmp_path: Path,
) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    with serving(one) as leader:
        token = token_file(one, tmp_path / "token")
        assert apply(one, tmp_path, zone("one.example"), www("192.0.2.1")) == 0
        with serving(two, *follow(leader, token)) as follower:
            assert follower.texts("www.one.example") == ["192.0.2.1"]
            assert apply(one, tmp_path, www("192.0.2.2")) == 0
            wait_until(lambda: follower.texts("www.one.example") == ["192.0.2.2"])
            wait_until(lambda: serial(follower) == serial(leader) > 0)
            refused = kudurru(
                "apply", "-f", write_json(tmp_path / "x.json", www("192.0.2.9")), "--data", two
            )
            assert refused.code == 1
            assert f"this node follows {url_of(leader)}" in refused.err
        # Nobody writes to the directory without a server either.
        refused = kudurru(
            "apply", "-f", write_json(tmp_path / "x.json", www("192.0.2.9")), "--data", two
        )
        assert refused.code == 1
        assert "this node follows" in refused.err
        assert kudurru("audit", "verify", "--data", two).code == 0


def test_what_a_follower_is_asked_over_its_api_its_leader_does_for_whoever_asked(
    tmp_path: Path,
) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    cert, key = write_pair(tmp_path)
    tls = {
        "KUDURRU__API__TLS": "true",
        "KUDURRU__TLS__CERT": f"file:{cert}",
        "KUDURRU__TLS__KEY": f"file:{key}",
    }
    with serving(one, env=tls) as leader:
        token = token_file(one, tmp_path / "token")
        made = kudurru("token", "create", "ann", "--role", "admin", "--data", one, "-o", "json")
        url = url_of(leader).replace("http:", "https:")
        options = ["--follow", url, "--token", f"file:{token}", "--ca", f"file:{cert}"]
        with serving(two, *options) as follower:
            there = ["--server", url_of(follower), "--token", made.json()["token"]]
            file = write_json(tmp_path / "x.json", zone("one.example"), www("192.0.2.1"))
            done = kudurru("apply", "-f", file, *there)
            assert done.code == 0, done.err
            wait_until(lambda: follower.texts("www.one.example") == ["192.0.2.1"])
            history = kudurru("history", "zone/one.example", "--data", one)
            assert "token:ann" in history.out, history
            leader.stop()
            refused = kudurru("delete", "rs", "www", *there)
            assert refused.code == 1
            assert "nothing was changed" in refused.err
            assert url in refused.err
            assert follower.texts("www.one.example") == ["192.0.2.1"]


def test_a_follower_starts_and_serves_without_its_leader(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    with serving(one) as leader:
        token = token_file(one, tmp_path / "token")
        assert apply(one, tmp_path, zone("one.example"), www("192.0.2.1")) == 0
        options = follow(leader, token)
        with serving(two, *options) as follower:
            wait_until(lambda: follower.texts("www.one.example") == ["192.0.2.1"])
    # Whom it follows is in its directory.
    with serving(two, *options[2:]) as follower:
        assert follower.texts("www.one.example") == ["192.0.2.1"]


def test_one_of_two_promoted_nodes_refuses_to_write_and_names_the_other(tmp_path: Path) -> None:
    """The leader is lost, and each of its followers is promoted where it does not see the other."""
    one, two, three = tmp_path / "one", tmp_path / "two", tmp_path / "three"
    with serving(one) as leader:
        token = token_file(one, tmp_path / "token")
        assert apply(one, tmp_path, zone("one.example"), www("192.0.2.1")) == 0
        options = follow(leader, token)
        with serving(two, *options) as second, serving(three, *options) as third:
            for node in (second, third):
                wait_until(lambda node=node: node.texts("www.one.example") == ["192.0.2.1"])
            refused = kudurru("promote", "--data", two)
            assert refused.code == 1
            assert "takes writes" in refused.err
            leader.stop()
            done = kudurru("promote", "--force", "--data", two, "-o", "json")
            assert done.code == 0, done.err
            assert done.json()["origin"].endswith("/2")
            assert apply(two, tmp_path, www("192.0.2.2")) == 0
            assert second.texts("www.one.example") == ["192.0.2.2"]
            assert kudurru("promote", "--force", "--data", three).code == 0
            assert apply(three, tmp_path, www("192.0.2.3")) == 0
            at = url_of(second)
            third.stop()
            config = str(node_file(tmp_path, token, at))
            with serving(three, "--config", config) as again:
                why = wait_until(lambda: refusal(three, tmp_path, "was promoted at position"))
                assert f"{at} was promoted at position" in why
                assert "--adopt" in why
                # It answers all the same, and copies the other when it is told to.
                assert again.texts("www.one.example") == ["192.0.2.3"]
            adopting = ["--follow", at, "--token", f"file:{token}"]
            refused = kudurru(*serve_arguments(three, *adopting))
            assert refused.code == 1
            assert "is a fork" in refused.err
            assert "--adopt keeps" in refused.err
            with serving(three, *adopting, "--adopt") as again:
                assert again.texts("www.one.example") == ["192.0.2.2"]
            assert (three / "log.db.replaced-1").exists()
            assert kudurru("audit", "verify", "--data", two).code == 0


def node_file(folder: Path, token: Path, *peers: str) -> Path:
    path = folder / "node.yaml"
    listed = "\n".join(f"    - {peer}" for peer in peers)
    path.write_text(f"follow:\n  token: file:{token}\n  peers:\n{listed}\n")
    return path


def refusal(data: Path, tmp: Path, expected: str) -> str:
    """What a change is refused with, once that says what is expected."""
    done = kudurru("apply", "-f", write_json(tmp / "x.json", www("192.0.2.9")), "--data", data)
    return done.err if done.code and expected in done.err else ""
