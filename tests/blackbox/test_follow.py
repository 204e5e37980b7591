"""A node that follows another one, as people run them."""

from pathlib import Path
from typing import Any

from tests.blackbox.program import (
    Serving,
    kudurru,
    records,
    serving,
    wait_until,
    write_json,
    zone,
)


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
