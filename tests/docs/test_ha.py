"""docs/ha.md is run: its commands, node by node, its settings, and its dnsdist."""

import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from kudurru.entrypoints.settings import load_settings
from tests import postgres
from tests.absent import absent
from tests.blackbox.program import (
    PATIENCE_S,
    ROOT,
    Serving,
    kudurru,
    records,
    serving,
    wait_until,
    write_json,
    zone,
)

GUIDE = (ROOT / "docs/ha.md").read_text()
SECTIONS = (
    "Several nodes on one PostgreSQL", "A follower", "Changes through a follower",
    "When the leader is gone", "dnsdist in front",
)  # fmt: skip
"""Those with commands: each is run by a test below."""


def commands(section: str) -> Iterator[tuple[str, list[str]]]:
    """Commands of a section, each with the node that its block is for."""
    found = re.search(rf"^#+ {section}\n(.*?)(?=^##+ |\Z)", GUIDE, re.DOTALL | re.MULTILINE)
    assert found, f"docs/ha.md has no section {section!r}"
    for block in re.findall(r"```sh\n(.*?)```", found[1], re.DOTALL):
        place, *lines = block.splitlines()
        assert place.startswith("# ns"), f"say on which node: {block}"
        for line in lines:
            words = shlex.split(line)
            assert words[0] == "kudurru"
            yield place.removeprefix("# "), words[1:]


def adapted(words: list[str], data: Path, url: str, token: Path) -> list[str]:
    """A command of the guide, for the folders and ports of a test, in the clear."""
    changed = []
    skip = False
    for word in words:
        if skip:
            skip = False
        elif word == "--ca":
            skip = True
        elif word == "/var/lib/kudurru":
            changed.append(str(data))
        elif word.startswith("https://ns"):
            changed.append(url)
        elif word.startswith("file:"):
            changed.append(f"file:{token}")
        else:
            changed.append(word)
    return changed


def url_of(node: Serving) -> str:
    return f"http://{node.addresses['http']}"


def options_of(words: list[str]) -> list[str]:
    """Of a `serve`, without the data directory."""
    assert words[:2] == ["serve", "--data"]
    return words[3:]


def has_a(node: Serving, address: str) -> bool:
    return node.texts("www.one.example") == [address]


def test_a_follower_is_made_and_promoted_as_the_guide_says(tmp_path: Path) -> None:
    made = list(commands("A follower"))
    assert [(where, words[0]) for where, words in made] == [
        ("ns1", "token"), ("ns2", "serve"), ("ns2", "doctor"), ("ns2", "audit"),
    ]  # fmt: skip
    promoted = list(commands("When the leader is gone"))
    assert [words[0] for _, words in promoted] == ["promote", "serve"]
    one, two, three = tmp_path / "ns1", tmp_path / "ns2", tmp_path / "ns3"
    token = tmp_path / "token"
    www = records("www", "one.example", ("www.one.example", "A", "192.0.2.1"))
    objects = write_json(tmp_path / "objects.json", zone("one.example"), www)
    with serving(one) as leader:
        assert kudurru("apply", "-f", objects, "--data", one).code == 0
        done = kudurru(*adapted(made[0][1], one, "", token))
        token.write_text(done.out)
        following = options_of(adapted(made[1][1], two, url_of(leader), token))
        with serving(two, *following) as follower:
            assert has_a(follower, "192.0.2.1")
            for _, words in made[2:]:
                found = kudurru(*adapted(words, two, "", token))
                assert found.code == 0, (found.out, found.err)
            change_through(follower, one, tmp_path)
            leader.stop()
            found = kudurru(*adapted(promoted[0][1], two, "", token))
            assert found.code == 0, found.err
            www = records("www", "one.example", ("www.one.example", "A", "192.0.2.2"))
            moved = write_json(tmp_path / "moved.json", www)
            assert kudurru("apply", "-f", moved, "--data", two).code == 0
            assert has_a(follower, "192.0.2.2")
            adopting = options_of(adapted(promoted[1][1], three, url_of(follower), token))
            with serving(three, *adopting) as third:
                assert has_a(third, "192.0.2.2")


def change_through(follower: Serving, leader_data: Path, folder: Path) -> None:
    """What the guide says of changes through a follower."""
    [(_, words)] = commands("Changes through a follower")
    token = folder / "of-ann"
    token.write_text(
        kudurru("token", "create", "ann", "--role", "operator", "--data", leader_data).out
    )
    write_json(folder / "zone.yaml", zone("two.example"))
    words = adapted(words, folder, url_of(follower), token)

    def is_let_in() -> bool:
        """Once the token is here too."""
        return kudurru(*words, cwd=folder).code == 0

    wait_until(is_let_in)
    found = kudurru("history", "zone/two.example", "--data", leader_data)
    assert "token:ann" in found.out, found


def test_nodes_share_a_database_as_the_guide_says(tmp_path: Path) -> None:
    [(_, words)] = commands("Several nodes on one PostgreSQL")
    database = postgres.server().url(postgres.server().new_database())
    options = [database if word.startswith("postgresql://") else word for word in words]
    with (
        serving(tmp_path / "ns1", *options_of(options)),
        serving(tmp_path / "ns2", *options_of(options)) as second,
    ):
        www = records("www", "one.example", ("www.one.example", "A", "192.0.2.1"))
        objects = write_json(tmp_path / "objects.json", zone("one.example"), www)
        assert kudurru("apply", "-f", objects, "--data", tmp_path / "ns1").code == 0
        wait_until(lambda: has_a(second, "192.0.2.1"))


def test_the_settings_of_the_guide_are_read(tmp_path: Path) -> None:
    [text] = re.findall(r"```yaml\n(.*?)```", GUIDE, re.DOTALL)
    path = tmp_path / "node.yaml"
    path.write_text(text)
    found = load_settings(path, {}).settings.follow
    assert found.peers == ("https://ns1.example:8080", "https://ns2.example:8080")
    assert found.token == "/etc/kudurru/leader.token"


def test_dnsdist_takes_the_configuration_of_the_guide(tmp_path: Path) -> None:
    if shutil.which("dnsdist") is None:
        absent("there is no dnsdist")
    [text] = re.findall(r"```lua\n(.*?)```", GUIDE, re.DOTALL)
    path = tmp_path / "dnsdist.conf"
    path.write_text(text)
    done = subprocess.run(
        ["dnsdist", "--check-config", "-C", path],
        capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_node_is_taken_out_as_the_guide_says(tmp_path: Path) -> None:
    [(_, words)] = commands("dnsdist in front")
    health = "health.kudurru.internal"
    with serving(tmp_path / "data") as node:
        wait_until(lambda: node.texts(health) != ["SERVFAIL"])
        done = kudurru(*words, env={"KUDURRU__OPS__ADDRESS": node.addresses["ops"]})
        assert done.code == 0, done.err
        assert node.texts(health) == ["SERVFAIL"]


def test_no_command_of_the_guide_is_run_by_no_test() -> None:
    run = [words for section in SECTIONS for _, words in commands(section)]
    there = re.findall(r"^kudurru .*$", GUIDE, re.MULTILINE)
    assert sorted(shlex.split(line)[1:] for line in there) == sorted(run)


def test_every_command_and_metric_that_is_named_is_one() -> None:
    for line in set(re.findall(r"`kudurru ([a-z ]+?)(?: [-A-Z].*)?`", GUIDE)):
        assert kudurru(*line.split(), "--help").code == 0, line
    named = set(re.findall(r"`kudurru_(\w+)", GUIDE))
    from kudurru.adapters.metrics import METRICS

    assert named <= set(METRICS)
