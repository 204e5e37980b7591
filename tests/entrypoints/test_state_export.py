"""A state that was written as manifests is the state again where they are applied."""

import io
import json
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kudurru.adapters.manifests import read_manifest_files
from kudurru.adapters.memory.clock import ManualClock, SeededEntropy
from kudurru.domain.codec import canonical
from kudurru.domain.documents import read_documents
from kudurru.domain.events import OBJECT_APPLIED, ChangeSet, Event
from kudurru.domain.kinds.registry import KINDS
from kudurru.domain.objects import Key, key_of
from kudurru.domain.restore import Scope, state_digest
from kudurru.entrypoints import state_export
from kudurru.entrypoints.directory import replay
from kudurru.entrypoints.local_service import LocalService
from kudurru.entrypoints.service import ChangeRequest
from kudurru.entrypoints.state_export import FIRST, MANIFESTS, REFUSED, export_state
from kudurru.entrypoints.wiring import Node
from kudurru.projections import as_of
from tests.histories import Operation, histories, operations, others, run, targets_of
from tests.nodes import TESTER, a_change, memory_node
from tests.objects import endpoint, manifest, parse, put, record_set, www, zone

few = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))


def as_it_was(node: Node, target: int) -> Node:
    past = Node(node.log, node.clock, SeededEntropy(5))
    replay(past, target)  # type: ignore[arg-type]  # a position of the log
    return past


def applied(folder: Path) -> Node:
    """An empty store where the files were applied in the order that is told."""
    node = memory_node(ManualClock())
    for name in (FIRST, MANIFESTS):
        if not (folder / name).exists():
            continue
        manifests = [
            parse(document.value)
            for source, octets in read_manifest_files([folder / name], io.BytesIO())
            for document in read_documents(octets, what=source)
        ]
        LocalService(node, TESTER).change(ChangeRequest(apply=manifests))
    return node


def digest(node: Node) -> str:
    return state_digest(s for kind in KINDS for s in node.objects.list(kind).objects)


@few
@given(histories(), st.lists(others(), max_size=12), operations(), st.data())
def test_manifests_of_any_moment_make_that_state_in_an_empty_store(
    node: Node, more: list[Operation], after: list[Operation], data: st.DataObject
) -> None:
    run(node, [one for pair in zip(more, after, strict=False) for one in pair] + more)
    target = data.draw(st.sampled_from(targets_of(node)))
    past = as_it_was(node, target)
    with TemporaryDirectory() as name:
        folder = Path(name)
        exported = export_state(past, folder)
        twin = applied(folder)
        owners = owners_in(folder)
    wanted = as_of.objects(node.log, Scope(everything=True), target)
    assert exported.digest == digest(past) == state_digest(wanted.values())
    assert digest(twin) == exported.digest
    assert owners == {key: stored.manager for key, stored in wanted.items()}
    assert exported.refused == 0
    assert exported.first + exported.manifests == len(wanted)


def owners_in(folder: Path) -> dict[Key, str]:
    """As the manifests say, for people who apply those of one manager after the other."""
    found = {}
    for path in folder.rglob("*.json"):
        for line in path.read_text().splitlines():
            document = json.loads(line)
            assert "status" not in document
            owner = document["metadata"]["annotations"]["kudurru.io/managed-by"]
            found[parse(document).key] = owner
    return found


def test_record_sets_that_their_zone_does_not_enclose_come_first(tmp_path: Path) -> None:
    node = memory_node()
    node.commit(a_change(put(record_set("www", endpoint("www.example.org", "A", "192.0.2.1")))))
    node.commit(a_change(put(manifest("DNSZone", "example.org", {"zoneName": "example.net"}))))
    exported = export_state(node, tmp_path)
    assert (exported.first, exported.manifests, exported.refused) == (1, 1, 0)
    assert (tmp_path / FIRST / "dnsrecordsets-0001.json").exists()
    assert digest(applied(tmp_path)) == exported.digest


def test_what_this_version_accepts_no_more_is_kept_apart(tmp_path: Path) -> None:
    node = memory_node()
    node.commit(a_change(put(zone())))
    spec = {"zoneRef": {"name": "example.org"}, "endpoints": [], "asAnOlderVersionHadIt": 1}
    body = {"uid": "u", "generation": 1, "creationTimestamp": "2026-01-01T00:00:00Z", "spec": spec}
    key, scope = key_of("DNSRecordSet", "default", "old"), "default/example.org"
    old = Event(OBJECT_APPLIED, key, 1, scope, "m", canonical(body))
    node.take_in(node.log.append([ChangeSet((old,), TESTER)], node.clock.now_us()))
    exported = export_state(node, tmp_path)
    assert (exported.manifests, exported.refused) == (1, 1)
    assert "asAnOlder" in (tmp_path / REFUSED / "dnsrecordsets-0001.json").read_text()
    assert len(applied(tmp_path).objects) == 1


def test_many_objects_go_into_several_files(tmp_path: Path) -> None:
    before = state_export.FILE_OBJECTS
    state_export.FILE_OBJECTS = 2
    try:
        node = memory_node()
        groups = [manifest("ClientGroup", f"g{i}", {}) for i in range(5)]
        node.commit(a_change(*map(put, groups)))
        exported = export_state(node, tmp_path)
    finally:
        state_export.FILE_OBJECTS = before
    files = sorted(path.name for path in (tmp_path / MANIFESTS).iterdir())
    assert files == [f"clientgroups-000{i}.json" for i in (1, 2, 3)]
    assert digest(applied(tmp_path)) == exported.digest


def test_what_comes_from_another_server_is_in_no_manifest(tmp_path: Path) -> None:
    node = memory_node()
    secondary = {"primaries": [{"address": "192.0.2.53"}]}
    fetched = put(www(), "secondary:example.org")
    node.commit(a_change(put(zone(type="Secondary", secondary=secondary)), fetched))
    exported = export_state(node, tmp_path)
    assert (exported.manifests, exported.first) == (1, 0)
    assert len(applied(tmp_path).objects) == 1
