"""Settings that change: who is told, what is refused, and that nothing is lost."""

import asyncio
import json
import os
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kudurru.adapters import settings_file
from kudurru.adapters.memory.clock import ManualClock, SeededEntropy
from kudurru.domain.errors import Cause, Conflict, Invalid, ManagedBy, StorageFailed
from kudurru.domain.settings import KEYS, Settings
from kudurru.domain.settings_changes import SETTINGS_KEY, SettingsChanged, command, text_of
from kudurru.domain.settings_layers import value_of_text
from kudurru.domain.settings_values import shown
from kudurru.entrypoints.history import describe_event
from kudurru.entrypoints.live_settings import LiveSettings, PatchReply, PatchRequest
from kudurru.entrypoints.restoring import plan_undo
from kudurru.entrypoints.settings import Sources, read_sources, stamp_of
from kudurru.entrypoints.wiring import Change, Node, Result
from tests.nodes import TESTER, a_change, memory_node
from tests.shared_log import SharedMemoryLog


def live_on(node: Node, file: Path | None = None, **environ: str) -> LiveSettings:
    """As at a start of the node; `file` is the settings file."""
    if file is not None:
        environ["KUDURRU_SETTINGS_FILE"] = str(file)
    live = LiveSettings(Sources(None, environ), node.clock)
    live.take_up(node.log)
    return live


def patch(live: LiveSettings, node: Node, values: dict[str, Any]) -> PatchReply:
    """What a server does with a patch, by its writer."""
    planned = live.plan(PatchRequest(set=values), TESTER)
    if planned.change is None:
        return planned.reply
    with planned.draft or nullcontext():
        result = node.commit(planned.change)
        live.recorded([*node.log.read(result.seq - 1)])
        return live.finish(planned, result)


def test_who_subscribed_is_told_in_order_of_what_concerns_them_and_of_nothing_else() -> None:
    node = memory_node()
    live = live_on(node)
    told: list[tuple[str, int]] = []
    for name, prefixes in (("a", ["cache", "log"]), ("b", ["cache.maxEntries"]), ("c", ["log"])):
        live.subscribe(
            prefixes, lambda s, name=name: told.append((name, s.cache.max_entries))  # type: ignore[misc]  # bound per turn of the loop
        )  # fmt: skip
    patch(live, node, {"cache.maxEntries": 5})
    assert told == [("a", 5), ("b", 5)]
    patch(live, node, {"cache.maxEntries": 5})
    assert patch(live, node, {"cache.maxEntries": 5}).seq == 0
    assert len(told) == 2
    assert len(list(node.log.read(0))) == 1
    # A key that waits for a restart is nobody's until then.
    patch(live, node, {"log.format": "json"})
    assert len(told) == 2
    assert live.waiting == ["log.format"]
    assert live.current.log.format == "text"
    assert live_on(node).current.log.format == "json"


def test_what_a_part_cannot_take_is_refused_and_nothing_has_changed() -> None:
    node = memory_node()
    live = live_on(node)

    def refuse(settings: Settings) -> None:
        if settings.cache.max_entries == 7:
            raise Invalid("settings", [Cause("cache.maxEntries", "not seven")])

    told: list[Settings] = []
    live.check(refuse)
    live.subscribe(["cache"], told.append)
    with pytest.raises(Invalid, match="not seven"):
        patch(live, node, {"cache.maxEntries": 7, "cache.minTTL": "1s"})
    assert told == []
    assert live.current == live_on(node).current
    assert not list(node.log.read(0))


def test_a_part_that_fails_keeps_no_other_from_its_settings() -> None:
    node = memory_node()
    live = live_on(node)
    told: list[Settings] = []

    def fail(_settings: Settings) -> None:
        raise ZeroDivisionError

    live.subscribe(["cache"], fail)
    live.subscribe(["cache"], told.append)
    patch(live, node, {"cache.maxEntries": 7})
    assert [settings.cache.max_entries for settings in told] == [7]


def test_of_two_who_change_settings_at_once_one_is_asked_to_look_again() -> None:
    node = memory_node()
    first, second = live_on(node), live_on(node)
    plans = [
        first.plan(PatchRequest(set={"cache.minTTL": "30h", "cache.maxTTL": "40h"}), TESTER),
        second.plan(PatchRequest(set={"cache.maxTTL": "20h"}), TESTER),
    ]
    assert plans[0].change is not None
    assert plans[1].change is not None
    node.commit(plans[0].change)
    with pytest.raises(Conflict):
        node.commit(plans[1].change)


def test_another_node_takes_what_the_log_says() -> None:
    node = memory_node()
    here, there = live_on(node), live_on(node)
    patch(here, node, {"cache.maxEntries": 5})
    there.recorded([*node.log.read(0)])
    assert there.current.cache.max_entries == 5
    late = LiveSettings(Sources(None, {}), node.clock)
    late.catch_up(node.log)
    assert late.current.cache.max_entries == 5


def test_on_a_shared_log_a_change_on_a_node_with_a_file_reaches_the_others(tmp_path: Path) -> None:
    clock = ManualClock()
    node = Node(SharedMemoryLog(entropy=SeededEntropy(1), clock=clock), clock, SeededEntropy(2))
    there = live_on(node)
    patch(there, node, {"cache.maxEntries": 5, "blocking.mode": "nodata"})
    file = tmp_path / "settings.yaml"
    file.write_text("cache.maxEntries: 4\n")
    here = live_on(node, file)
    assert patch(here, node, {"cache.maxEntries": 6}).kept == "log"
    there.recorded([*node.log.read(1)])
    for live in (here, there):
        found = live.current
        assert (found.cache.max_entries, found.blocking.mode) == (6, "nodata")
    assert file.read_text() == "cache.maxEntries: 4\n"
    patch(here, node, {"cache.maxEntries": None})
    assert here.current.cache.max_entries == 4


def test_a_key_of_the_node_is_kept_in_memory_and_recorded() -> None:
    node = memory_node()
    live = live_on(node, KUDURRU__NODE__NAME="n1")
    reply = patch(live, node, {"tls.cert": "file:/a.pem", "tls.key": "file:/a.key"})
    assert (reply.kept, reply.persisted, reply.seq) == ("memory", False, 1)
    assert live.current.tls.cert == "/a.pem"
    assert str(live.resolved.origins["tls.cert"][-1]) == "memory until the next start"
    assert live_on(node).current.tls.cert == ""
    event = next(iter(node.log.read(0)))
    assert json.loads(event.body or b"") == {
        "changed": {"tls.cert": "file:/a.pem", "tls.key": "file:/a.key"},
        "kept": "memory",
        "node": "n1",
    }
    with pytest.raises(Invalid, match="change them separately"):
        patch(live, node, {"tls.cert": "file:/b.pem", "cache.maxEntries": 1})


def test_on_kubernetes_the_config_map_owns_the_settings() -> None:
    node = memory_node()
    live = live_on(node, KUDURRU__KUBERNETES__ENABLED="true")
    with pytest.raises(ManagedBy, match="ConfigMap"):
        patch(live, node, {"cache.maxEntries": 1})


def test_where_a_config_map_has_the_settings_those_of_the_node_stay_changeable(
    tmp_path: Path,
) -> None:
    (tmp_path / "..1").mkdir()
    (tmp_path / "..1" / "settings.yaml").write_text("cache.maxEntries: 1\n")
    (tmp_path / "..data").symlink_to("..1")
    (tmp_path / "settings.yaml").symlink_to("..data/settings.yaml")
    node = memory_node()
    live = live_on(node, tmp_path / "settings.yaml")
    with pytest.raises(ManagedBy, match=f"ConfigMap mounted at {tmp_path}: change them there"):
        patch(live, node, {"cache.maxEntries": 2})
    assert patch(live, node, {"tls.cert": "/a.pem", "tls.key": "/a.key"}).kept == "memory"
    clock = ManualClock()
    shared = Node(SharedMemoryLog(entropy=SeededEntropy(1), clock=clock), clock, SeededEntropy(2))
    with pytest.raises(ManagedBy, match="ConfigMap"):
        patch(live_on(shared, tmp_path / "settings.yaml"), shared, {"cache.maxEntries": 2})


@pytest.mark.parametrize("path", ["plain/settings.yaml", "circle/settings.yaml", "gone/s.yaml"])
def test_a_file_that_is_of_no_config_map_is_none(tmp_path: Path, path: str) -> None:
    for name in ("plain", "circle"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "..1").mkdir()
        (tmp_path / name / "..data").symlink_to("..1")
    (tmp_path / "plain" / "settings.yaml").write_text("")
    (tmp_path / "circle" / "settings.yaml").symlink_to("settings.yaml")
    assert settings_file.config_map_of(tmp_path / path) is None


def test_a_value_in_the_file_counts_again_once_it_is_set_there(tmp_path: Path) -> None:
    """What the log said before there was a settings file would cover what is written into it."""
    node = memory_node()
    patch(live_on(node), node, {"cache.maxEntries": 5, "cache.minTTL": "1s"})
    file = tmp_path / "settings.yaml"
    live = live_on(node, file)
    assert live.current.cache.max_entries == 5
    assert patch(live, node, {"cache.maxEntries": 6}).kept == "file"
    assert live.current.cache.max_entries == 6
    assert live_on(node, file).current == live.current
    file.write_text("")
    live.reload()
    assert live.current.cache.max_entries == KEYS["cache.maxEntries"].default
    assert live.current.cache.min_ttl.total_seconds() == 1


def test_an_entry_that_is_set_in_the_file_leaves_the_other_entries_of_its_map(
    tmp_path: Path,
) -> None:
    node = memory_node()
    values = {"ratelimit.ipv4": {"24": 1, "16": 2}, "not.known": 1}
    node.commit(a_change(command(SettingsChanged(changed=values, kept="log", values=values), 0)))
    file = tmp_path / "settings.yaml"
    live = live_on(node, file)
    patch(live, node, {"ratelimit.ipv4.24": 7})
    assert live.current.ratelimit.ipv4 == {32: 600, 24: 7, 16: 2}
    # What only the log has is taken out there, and the file is not written for it.
    before = file.read_bytes()
    file.chmod(0o604)
    assert patch(live, node, {"not.known": None}).seq == 3
    assert live.resolved.warnings == ()
    assert (file.read_bytes(), file.stat().st_mode & 0o777) == (before, 0o604)
    assert live_on(node, file).resolved.values == live.resolved.values


@pytest.mark.parametrize(
    ("name", "before"),
    [
        ("settings.yaml", "log: {level: debug}\nratelimit.ipv4: {24: 1}\n"),
        ("settings.json", '{"log.level": "debug", "ratelimit": {"ipv4": {"24": 1}}}'),
    ],
)
def test_writing_keeps_the_other_keys_of_the_file(tmp_path: Path, name: str, before: str) -> None:
    node = memory_node()
    file = tmp_path / name
    file.write_text(before)
    (tmp_path / f".{name}.kudurru").write_text("of a process that was killed")
    live = live_on(node, file)
    patch(live, node, {"ratelimit.ipv4.32": 7, "blocking.mode": "nodata"})
    again = live_on(memory_node(), file).current
    assert again.log.level == "debug"
    assert again.ratelimit.ipv4 == {24: 1, 32: 7}
    assert again.blocking.mode == "nodata"
    assert [path.name for path in tmp_path.iterdir()] == [name]
    patch(live, node, {"ratelimit.ipv4": None})
    assert live_on(memory_node(), file).current.ratelimit.ipv4 == {32: 600, 24: 6000}


def test_what_another_writer_put_into_the_file_just_now_is_kept(tmp_path: Path) -> None:
    node, file = memory_node(), tmp_path / "settings.yaml"
    here, there = live_on(node, file), live_on(node, file)
    patch(here, node, {"cache.maxEntries": 5})
    there.recorded([*node.log.read(0)])
    patch(there, node, {"blocking.mode": "nodata"})
    file.write_text(file.read_text() + "cache.minTTL: 2s\n")
    here.recorded([*node.log.read(1)])
    patch(here, node, {"ratelimit.slip": 7})
    found = live_on(memory_node(), file).current
    assert (found.cache.max_entries, found.blocking.mode) == (5, "nodata")
    assert (found.cache.min_ttl.total_seconds(), found.ratelimit.slip) == (2, 7)
    # A file that is broken just now is not overwritten.
    file.write_text("cache: [\n")
    with pytest.raises(Invalid, match="not YAML"):
        patch(here, node, {"ratelimit.slip": 8})
    assert file.read_text() == "cache: [\n"


def test_a_process_that_dies_before_the_file_has_changed_leaves_the_file_whole(
    tmp_path: Path,
) -> None:
    node, file = memory_node(), tmp_path / "settings.yaml"
    file.write_text("cache.maxEntries: 5\n")
    planned = live_on(node, file).plan(PatchRequest(set={"cache.maxEntries": 6}), TESTER)
    assert planned.change is not None
    assert planned.draft is not None
    planned.draft.write()
    node.commit(planned.change)  # and here it dies
    again = live_on(node, file)
    assert again.current.cache.max_entries == 5
    assert patch(again, node, {"cache.maxEntries": 7}).seq == 2
    assert live_on(node, file).current.cache.max_entries == 7
    assert [path.name for path in tmp_path.iterdir()] == ["settings.yaml"]


def test_a_file_that_cannot_be_written_changes_nothing(tmp_path: Path) -> None:
    node = memory_node()
    live = live_on(node, tmp_path / "none" / "settings.yaml")
    with pytest.raises(StorageFailed, match="cannot be written: No such file"):
        patch(live, node, {"cache.maxEntries": 6})
    toml = tmp_path / "settings.toml"
    toml.write_text("cache.maxEntries = 5\n")
    with pytest.raises(Invalid, match="TOML"):
        patch(live_on(node, toml), node, {"cache.maxEntries": 6})
    assert not list(node.log.read(0))
    assert live.current.cache.max_entries == KEYS["cache.maxEntries"].default


def test_a_file_that_is_a_mount_is_refused_before_anything_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, file = memory_node(), tmp_path / "my settings.yaml"
    file.write_text("cache.maxEntries: 5\n")
    mounts = tmp_path / "mountinfo"
    escaped = str(file).replace(" ", "\\040")
    mounts.write_text(
        "22 1 0:21 / / rw shared:1 - overlay overlay rw\n"
        f"91 22 8:1 /srv/s.yaml {escaped} ro,relatime - ext4 /dev/sda1 rw\n"
    )
    monkeypatch.setattr(settings_file, "MOUNTS", mounts)
    with pytest.raises(Invalid, match=r"settings\.yaml is a mount of its own"):
        patch(live_on(node, file), node, {"cache.maxEntries": 6})
    assert not list(node.log.read(0))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mountinfo", "my settings.yaml"]
    # Where there is no such table, the device tells.
    monkeypatch.setattr(settings_file, "MOUNTS", tmp_path / "none")
    assert patch(live_on(node, file), node, {"cache.maxEntries": 6}).seq == 1


def test_a_log_of_another_version_keeps_no_server_from_starting(tmp_path: Path) -> None:
    node = memory_node()
    values = {"not.known": 1, "log.level": "loud", "cache.maxEntries": 5}
    fact = SettingsChanged(changed=values, kept="log", values=values)
    node.commit(a_change(command(fact, 0)))
    live = live_on(node)
    assert live.current.cache.max_entries == 5
    assert live.current.log.level == "info"
    assert [warning.partition(",")[0] for warning in live.resolved.warnings] == [
        "log.level",
        "not.known",
    ]
    patch(live, node, {"not.known": None, "log.level": None})
    assert live.resolved.warnings == ()
    # Fine when it was set, and not beside what a file says since.
    patch(live, node, {"cache.minTTL": "5s", "blocking.mode": "nodata"})
    file = tmp_path / "settings.yaml"
    file.write_text("cache.maxTTL: 1s\n")
    found = live_on(node, file)
    assert found.current.cache.max_ttl.total_seconds() == 1
    assert found.current.blocking.mode == "nodata"
    assert "left out beside what the files say" in found.resolved.warnings[0]
    assert node.log.stream_version(SETTINGS_KEY) == 3


def ways_back(node: Node, seq: int) -> list[str]:
    with pytest.raises(Invalid) as refused:
        plan_undo(node.log, str(seq))
    return [f"{cause.field}: {cause.message}" for cause in refused.value.causes]


def test_an_undo_of_settings_says_how_each_is_taken_back_and_that_does_it() -> None:
    node = memory_node()
    live = live_on(node)
    patch(live, node, {"log.level": "debug", "ratelimit.ipv4.24": 5, "cache.prefetch": False})
    changes: dict[str, Any] = {
        "log.level": "error",
        "ratelimit.ipv4.24": 7,
        "cache.prefetch": None,
        "upstreams.groups.default": ["192.0.2.1"],
    }
    before = live.current
    seq = patch(live, node, changes).seq
    assert ways_back(node, seq) == [
        f"{path}: settings are set, not undone: `kudurru config {how}`"
        for path, how in {
            "cache.prefetch": "set cache.prefetch false",
            "log.level": "set log.level debug",
            "ratelimit.ipv4.24": "set ratelimit.ipv4.24 5",
            "upstreams.groups.default": "unset upstreams.groups.default",
        }.items()
    ]
    patch(live, node, dict.fromkeys(["upstreams.groups.default"]))
    back = {"cache.prefetch": False, "log.level": "debug", "ratelimit.ipv4.24": 5}
    patch(live, node, back)
    assert live.current == before


def test_history_has_what_a_setting_was_wherever_it_is_kept(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("cache.maxEntries: 5\n")
    node = memory_node()
    live = live_on(node, file)
    first = patch(live, node, {"cache.maxEntries": 6}).seq
    (way,) = ways_back(node, first)
    assert way.endswith("what the settings file said before is not in the log")
    second = patch(live, node, {"cache.maxEntries": 7}).seq
    assert ways_back(node, second)[0].endswith("`kudurru config set cache.maxEntries 6`")
    changes = [
        describe_event(event, node.log, with_changes=True)["changes"]
        for event in node.log.read()
        if event.key == SETTINGS_KEY
    ]
    assert changes == [
        [{"field": "cache.maxEntries", "to": 6}],
        [{"field": "cache.maxEntries", "from": 6, "to": 7}],
    ]


@pytest.mark.parametrize("path", KEYS)
def test_a_value_is_read_from_a_command_line_as_it_is_written_there(path: str) -> None:
    faults: list[Cause] = []
    value = shown(KEYS[path].type, KEYS[path].default)
    if value is not None:  # no address: nobody sets that
        assert value_of_text(KEYS[path], "", text_of(value), faults) == value
    assert faults == []


def test_files_that_come_to_the_same_change_nothing(tmp_path: Path) -> None:
    node = memory_node()
    file = tmp_path / "settings.yaml"
    file.write_text("cache.maxEntries: 5\n")
    live = live_on(node, file)
    told: list[Settings] = []
    live.subscribe([""], told.append)
    live.subscribe(["cache"], told.append)
    assert not live.reload()
    file.write_text("# the same\ncache: {maxEntries: 5}\n")
    assert live.reload()
    assert told == []
    file.write_text("cache: [\n")
    live.reload()
    assert "not YAML" in live.problem
    assert told == []
    file.write_text("cache.maxEntries: 5\n")
    live.reload()
    assert live.problem == ""
    assert told == []


def test_a_settings_file_that_vanishes_leaves_what_it_said(tmp_path: Path) -> None:
    node, file = memory_node(), tmp_path / "settings.yaml"
    live = live_on(node, file)
    assert live.problem == ""  # none at the start: an empty layer
    file.write_text("cache.maxEntries: 5\n")
    live.reload()
    file.unlink()
    assert live.reload()
    assert "settings.yaml: is gone: put it back" in live.problem
    assert live.current.cache.max_entries == 5
    with pytest.raises(Invalid, match="is gone"):  # which would write the one key only
        patch(live, node, {"blocking.mode": "nodata"})
    assert not live.reload()
    file.write_text("")
    assert live.reload()
    assert live.problem == ""
    assert live.current.cache.max_entries == KEYS["cache.maxEntries"].default


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("postgresql://me:hunter2@db.example/kudurru", "the URL holds a password"),
        ("postgresql://db.example/kudurru?user=me&password=hunter2", "the URL holds a password"),
        ("postgres+x://me:hunter2@db.example/kudurru", "'postgres+x' is no store"),
    ],
)
def test_a_password_in_the_url_of_a_store_is_refused_wherever_it_is_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, url: str, why: str
) -> None:
    caplog.set_level("INFO")
    file = tmp_path / "node.yaml"
    file.write_text("store: sqlite\n")
    live = LiveSettings(Sources(file, {}), memory_node().clock)
    file.write_text(f"cache.maxEntries: 5\nstore: {url}\n")
    assert live.reload()
    assert f"{file}:2" in live.problem
    assert why in live.problem
    told = [live.problem, caplog.text, str(live.rows())]
    for sources in (
        Sources(file, {}),
        Sources(None, {"KUDURRU__STORE": url}),
        Sources(None, {}, {"store": ("--store", url)}),
    ):
        with pytest.raises(Invalid, match="store") as refused:
            read_sources(sources).resolve()
        told.append(str(refused.value))
    assert not any("hunter2" in text for text in told)
    assert live.waiting == []


def test_files_that_are_the_same_are_not_parsed_again(tmp_path: Path) -> None:
    file = tmp_path / "node.yaml"
    sources = Sources(file, {})
    for text in ("cache.maxEntries: 5\n", "cache: [\n", None):
        if text is None:
            file.unlink()
        else:
            file.write_text(text)
        before = read_sources(sources)
        assert read_sources(sources, before) is before
    file.write_text("cache.maxEntries: 6\n")
    assert read_sources(sources, before) is not before


def test_a_file_system_that_hangs_stops_nothing_but_the_reading(tmp_path: Path) -> None:
    """A pipe without a writer is a file that cannot be opened for now."""

    async def main() -> None:
        node, file = memory_node(), tmp_path / "settings.yaml"
        file.write_text("cache.maxEntries: 5\n")
        live = live_on(node, file)
        file.unlink()
        os.mkfifo(file)
        reading = asyncio.create_task(live.reread())
        await asyncio.sleep(0)  # begins, and gives the turn back
        assert not reading.done()
        await asyncio.to_thread(file.write_text, "cache.maxEntries: 6\n")
        assert await reading
        assert live.current.cache.max_entries == 6

    asyncio.run(main())


def test_a_server_writes_the_file_and_leaves_no_draft_when_recording_fails(tmp_path: Path) -> None:
    async def main() -> None:
        node, file = memory_node(), tmp_path / "settings.yaml"
        live = live_on(node, file)

        async def submit(change: Change) -> Result:
            assert len([*tmp_path.iterdir()]) == 1  # the draft
            return node.commit(change)

        async def fail(_change: Change) -> Result:
            raise StorageFailed("no space left on device; free some")

        request = PatchRequest(set={"cache.maxEntries": 6})
        with pytest.raises(StorageFailed):
            await live.patch(request, TESTER, fail)
        assert [*tmp_path.iterdir()] == []
        assert (await live.patch(request, TESTER, submit)).seq == 1
        assert live.current.cache.max_entries == 6
        assert [*tmp_path.iterdir()] == [file]

    asyncio.run(main())


@pytest.mark.parametrize("config", [Path("node.d"), Path("node.d/node.yaml"), None])
def test_files_that_cannot_be_looked_for_leave_the_last_good_settings(
    tmp_path: Path, config: Path | None
) -> None:
    """No right to search a folder, a network file system that is away: stat itself fails."""
    folder = tmp_path / "node.d"
    folder.mkdir()
    (folder / "node.yaml").write_text("cache.maxEntries: 5\n")
    file = None if config else folder / "node.yaml"
    environ = {"KUDURRU_SETTINGS_FILE": str(file)} if file else {}
    sources = Sources(tmp_path / config if config else None, environ)
    live = LiveSettings(sources, memory_node().clock)
    before = stamp_of(sources, file)
    folder.rename(tmp_path / "away")
    folder.symlink_to("x" * 300)  # a name that the file system refuses
    assert stamp_of(sources, file) != before
    assert live.reload()
    assert "cannot be read: File name too long" in live.problem
    assert live.current.cache.max_entries == 5
    folder.unlink()
    (tmp_path / "away").rename(folder)
    assert live.reload()
    assert live.problem == ""


def test_a_part_whose_files_cannot_be_read_does_not_end_the_watch(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("cache.maxEntries: 5\n")
    live = live_on(memory_node(), file)

    def fail(_settings: Settings) -> None:
        raise PermissionError(13, "Permission denied", "ca.pem")

    live.check(fail)
    file.write_text("cache.maxEntries: 6\n")
    assert live.reload()
    assert "ca.pem" in live.problem
    assert live.current.cache.max_entries == 5


PATCHES = st.dictionaries(
    st.sampled_from(["cache.maxEntries", "ratelimit.slip", "ratelimit.ipv4.24", "ratelimit.ipv4"]),
    st.none() | st.integers(0, 100),
    min_size=1,
)


@given(st.lists(PATCHES, max_size=5))
@settings(max_examples=25)
def test_a_restart_has_the_settings_of_before(patches: list[dict[str, Any]]) -> None:
    node = memory_node()
    live = live_on(node)
    for one in patches:
        values = {
            path: {"32": value} if path == "ratelimit.ipv4" and value is not None else value
            for path, value in one.items()
        }
        patch(live, node, values)
        assert live_on(node).resolved.values == live.resolved.values
    unset = dict.fromkeys(["cache.maxEntries", "ratelimit.slip", "ratelimit.ipv4"])
    patch(live, node, unset)
    assert live.current == live_on(memory_node()).current


def test_patches_wait_for_each_other() -> None:
    async def main() -> None:
        node = memory_node()
        live = live_on(node)

        async def submit(change: Any) -> Any:
            await asyncio.sleep(0)
            result = node.commit(change)
            live.recorded([*node.log.read(result.seq - 1)])
            return result

        replies = await asyncio.gather(
            *(
                live.patch(PatchRequest(set={"cache.maxEntries": i}), TESTER, submit)
                for i in range(1, 6)
            )
        )
        assert [reply.seq for reply in replies] == [1, 2, 3, 4, 5]
        assert live.current.cache.max_entries == 5

    asyncio.run(main())
