"""Checkpoints of a node: when, by which key, of what state, and how often they go out."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kudurru.adapters.memory.clock import ManualClock
from kudurru.adapters.signing import KeyFolder
from kudurru.domain.chain import origin_of
from kudurru.domain.checkpoint import decode_state, parse_checkpoint
from kudurru.domain.errors import Conflict, NotFound, StorageFailed
from kudurru.domain.events import CHECKPOINT_STATE, KEY_ADOPTED, Who
from kudurru.domain.ports import VerifiableLog
from kudurru.domain.verify import verify
from kudurru.entrypoints.checkpoints import ZONE_INTERVAL_US, Checkpointer, CheckpointPolicy
from kudurru.entrypoints.directory import trust_of
from kudurru.entrypoints.wiring import Node
from tests.logs import SeededEntropy
from tests.nodes import a_change, memory_node, rebuilt
from tests.objects import ZONE_KEY, drop, endpoint, put, record_set, www, zone

SECOND = 1_000_000
TARGET = "zone:example.org"


def checkpointer(node: Node, folder: Path, *publish: str, seed: int = 1) -> Checkpointer:
    origin = origin_of(node.log.log_id, node.log.epoch)
    keys = KeyFolder(folder, origin, SeededEntropy(seed))
    return Checkpointer(node, keys, CheckpointPolicy(publish=publish))


def log_of(node: Node) -> VerifiableLog:
    return node.log  # type: ignore[return-value]


def types(node: Node, after: int) -> list[str]:
    return [event.type for event in node.log.read(after)]


def test_the_first_checkpoint_adopts_its_key_and_later_ones_do_not(tmp_path: Path) -> None:
    node = memory_node()
    signer = checkpointer(node, tmp_path)
    assert signer.is_new_key
    node.commit(a_change(put(zone())))
    before = node.log.head().seq
    signer.take(signer.plan)
    assert types(node, before) == [KEY_ADOPTED, CHECKPOINT_STATE]
    node.commit(a_change(put(www())))
    before = node.log.head().seq
    signer.take(signer.plan)
    assert types(node, before) == [CHECKPOINT_STATE]
    verified = verify(log_of(node), trust=trust_of([str(signer.key)]))
    assert verified.is_whole
    assert verified.signed.size == node.log.head().seq
    assert verified.signed.is_trusted


def test_a_session_in_which_nothing_happened_signs_nothing(tmp_path: Path) -> None:
    node = memory_node()
    signer = checkpointer(node, tmp_path)
    signer.take_if_active()
    assert node.log.head().seq == 0
    node.commit(a_change(put(zone())))
    signer.take_if_active()
    size = node.log.head().seq
    signer.take_if_active()
    node.commit(a_change(put(zone())))  # no change
    signer.take_if_active()
    assert node.log.head().seq == size
    current = signer.current()
    assert current is not None
    assert current.size == size


def test_a_checkpoint_of_a_state_that_moved_meanwhile_is_refused(tmp_path: Path) -> None:
    node = memory_node()
    signer = checkpointer(node, tmp_path)
    node.commit(a_change(put(zone())))
    plan = signer.plan(node.clock.now_us())
    node.commit(a_change(put(www())))
    before = node.log.head()
    with pytest.raises(Conflict, match="a checkpoint of 4 events was decided, there are 6"):
        log_of(node).append_signed(plan.change_sets, node.clock.now_us(), plan.sign)
    assert node.log.head() == before


# --- keys -------------------------------------------------------------------------------------


def test_a_rotation_that_was_cut_short_is_ended_or_dropped_by_what_the_log_says(
    tmp_path: Path,
) -> None:
    node = memory_node()
    signer = checkpointer(node, tmp_path)
    signer.take(signer.plan)
    first = signer.key
    # Died before the log had it: the new key is nothing.
    signer.rotation(Who(actor="test"), node.clock.now_us())
    again = checkpointer(node, tmp_path, seed=2)
    assert (again.key, again.why_not) == (first, "")
    # Died after the log had it, before the file had its name.
    plan = again.rotation(Who(actor="test"), node.clock.now_us())
    log_of(node).append_signed(plan.change_sets, node.clock.now_us(), plan.sign)
    ended = checkpointer(node, tmp_path, seed=3)
    assert ended.why_not == ""
    assert ended.key not in (None, first)
    assert [file.name for file in tmp_path.iterdir()] == ["log.key"]
    assert verify(log_of(node), trust=trust_of([str(first)])).signed.is_trusted


@pytest.mark.parametrize("what", ["missing", "another"])
def test_with_a_lost_key_nothing_is_signed(what: str, tmp_path: Path) -> None:
    node = memory_node()
    signer = checkpointer(node, tmp_path)
    signer.take(signer.plan)
    (tmp_path / "log.key").unlink()
    if what == "another":
        KeyFolder(tmp_path, signer.origin, SeededEntropy(9)).create()
    node.commit(a_change(put(zone())))
    lost = checkpointer(node, tmp_path, seed=2)
    assert lost.key is None
    assert "put the key back" in lost.why_not
    assert (tmp_path / "log.key").exists() == (what == "another")
    with pytest.raises(NotFound, match="no checkpoint can be signed: the log is signed by"):
        lost.take(lost.plan)
    before = node.log.head()
    lost.take_if_active()
    assert node.log.head() == before


def test_a_log_that_cannot_be_written_is_not_signed(tmp_path: Path) -> None:
    node = memory_node()
    signer = checkpointer(node, tmp_path)
    node.commit(a_change(put(zone())))
    node.why_not_writable = StorageFailed("the disk is gone")
    with pytest.raises(StorageFailed, match="the disk is gone"):
        signer.take(signer.plan)
    signer.take_if_active()


# --- state ------------------------------------------------------------------------------------


def other_zone(name: str = "x", zone: str = "example.net"):
    return record_set(name, endpoint(f"{name}.{zone}", "A", "192.0.2.7"), zone=zone)


def test_a_checkpoint_names_the_zones_and_kinds_that_changed_since_the_one_before(
    tmp_path: Path,
) -> None:
    node = memory_node()
    signer = checkpointer(node, tmp_path)

    def groups() -> dict[str, str]:
        signer.take(signer.plan)
        newest = node.log.get(node.log.head().seq)
        assert newest is not None
        return decode_state(newest.body or b"").groups

    node.commit(a_change(put(zone()), put(zone("example.net")), put(www())))
    first = groups()
    assert first.keys() == {"zone/example.org", "zone/example.net"}
    assert groups() == {}
    node.commit(a_change(put(www("192.0.2.9"))))
    second = groups()
    assert second.keys() == {"zone/example.org"}
    assert second != {name: first[name] for name in second}
    node.commit(a_change(drop(ZONE_KEY), put(record_set("www", zone="example.net"))))
    third = groups()  # www moved, and nothing is left of example.org
    assert third["zone/example.org"] == ""
    assert third["zone/example.net"] != first["zone/example.net"]


CHANGES = [
    put(zone()),
    put(zone("example.net")),
    put(www()),
    put(www("192.0.2.9")),
    put(record_set("www", zone="example.net")),
    put(other_zone()),
    drop(ZONE_KEY),
    drop(www().key),
    None,  # a checkpoint
]


@settings(deadline=None, max_examples=25, suppress_health_check=list(HealthCheck))
@given(changes=st.lists(st.sampled_from(CHANGES), min_size=1, max_size=12))
def test_every_checkpoint_says_what_a_replay_makes_of_the_log(
    changes: list, tmp_path_factory: pytest.TempPathFactory
) -> None:
    node = memory_node()
    signer = checkpointer(node, tmp_path_factory.mktemp("keys"))
    for change in [*changes, None]:
        if change is None:
            signer.take(signer.plan)
            continue
        try:
            node.commit(a_change(change))
        except NotFound:
            continue
    other = Node(node.log, node.clock, SeededEntropy(3))
    for event in node.log.read():
        if event.type == CHECKPOINT_STATE:
            said = decode_state(event.body or b"")
            assert other.objects.state_differences(said) == []
            if event.seq > 4:
                wrong = {**said.groups, "zone/example.org": "0" * 64}
                body = type(said)(said.all, wrong)
                assert "zone/example.org" in other.objects.state_differences(body)
        other.take_in([event])
    assert rebuilt(node).objects.digest() == node.objects.digest()


# --- publication ------------------------------------------------------------------------------


def publish(node: Node, signer: Checkpointer) -> None:
    change = signer.zone_change(TARGET)
    assert change is not None
    node.commit(change)


def test_a_zone_gets_a_checkpoint_an_hour_and_only_when_something_happened(
    tmp_path: Path,
) -> None:
    clock = ManualClock()
    node = memory_node(clock)
    signer = checkpointer(node, tmp_path, TARGET)
    node.commit(a_change(put(zone())))
    assert signer.zone_wait_us(TARGET, clock.now_us()) is None  # there is no checkpoint
    signer.take_if_active()
    assert signer.zone_wait_us(TARGET, clock.now_us()) == 0
    publish(node, signer)
    # The publication, its stamp and the checkpoint after it are nothing that happened.
    signer.take(signer.plan)
    clock.advance(3 * ZONE_INTERVAL_US)
    assert signer.zone_wait_us(TARGET, clock.now_us()) is None
    signer.take_if_active()
    assert signer.current() is not None
    # Something happens: at once, as the hour is over.
    node.commit(a_change(put(www())))
    signer.take_if_active()
    assert signer.zone_wait_us(TARGET, clock.now_us()) == 0
    publish(node, signer)
    # And again, ten minutes later: not before the next hour.
    clock.advance(600 * SECOND)
    node.commit(a_change(put(www("192.0.2.9"))))
    signer.take_if_active()
    assert signer.zone_wait_us(TARGET, clock.now_us()) == ZONE_INTERVAL_US - 600 * SECOND


def test_a_publication_is_a_record_set_of_the_controller_with_the_note(tmp_path: Path) -> None:
    node = memory_node()
    signer = checkpointer(node, tmp_path, TARGET)
    node.commit(a_change(put(zone(allowedNamespaces=["team"]))))
    signer.take(signer.plan)
    newest = log_of(node).newest_checkpoint()
    assert newest is not None
    change = signer.zone_change(TARGET)
    assert change is not None
    manifest = change.commands[0].manifest
    assert (manifest.meta.namespace, manifest.meta.name) == ("team", "kudurru-log.example.org")
    publish(node, signer)
    stored = node.objects.find(manifest.key)
    assert stored is not None
    assert stored.manager == "kudurru-controller"
    assert node.zones.problems(manifest.key) == []
    assert parse_checkpoint(newest.note).size == newest.size


def test_a_zone_that_is_not_here_gets_nothing(tmp_path: Path) -> None:
    node = memory_node()
    signer = checkpointer(node, tmp_path, "zone:nowhere.example")
    node.commit(a_change(put(zone())))
    signer.take(signer.plan)
    assert signer.zone_targets() == ["zone:nowhere.example"]
    assert signer.zone_wait_us("zone:nowhere.example", node.clock.now_us()) is None
    assert signer.zone_change("zone:nowhere.example") is None


def test_files_get_every_checkpoint_and_a_failure_stops_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    node = memory_node()
    (tmp_path / "keys").mkdir()
    good, bad = tmp_path / "newest", tmp_path / "none" / "newest"
    signer = checkpointer(node, tmp_path / "keys", str(bad), str(good))
    for spec in (zone(), www()):
        node.commit(a_change(put(spec)))
        assert signer.take(signer.plan).note == good.read_text()
        assert signer.published_us == node.clock.now_us()
    complaints = [r.getMessage() for r in caplog.records if "no checkpoint for" in r.getMessage()]
    assert len(complaints) == 1  # once, until it works
