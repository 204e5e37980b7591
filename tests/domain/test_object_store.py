"""The rulebook of the Store, given/when/then on `Batch`."""

from typing import Any

import msgspec
import pytest

from kudurru.domain.codec import canonical
from kudurru.domain.commands import UpdateStatus
from kudurru.domain.errors import Conflict, Invalid, KudurruError, ManagedBy, NotFound
from kudurru.domain.events import OBJECT_APPLIED, OBJECT_DELETED, OBJECT_MOVED, OBJECT_STATUS
from kudurru.domain.kinds.meta import COMMENT, ENABLED, LAST_APPLIED, MANAGED_BY
from kudurru.domain.kinds.registry import KINDS, kind_by_word
from kudurru.domain.object_store import (
    PENDING,
    evolve,
    manager_faults,
    resource_version,
    to_document,
)
from tests.objects import (
    EPOCH,
    WWW_KEY,
    ZONE_KEY,
    Rulebook,
    drop,
    endpoint,
    manifest,
    put,
    record_set,
    www,
    zone,
)


@pytest.fixture
def book() -> Rulebook:
    return Rulebook()


def spec_of(book: Rulebook, key: Any) -> Any:
    return msgspec.json.decode(book.get(key).body.spec)


def refused(book: Rulebook, *commands: Any, by: type[KudurruError]) -> Any:
    """The error of a refused batch, after a look that nothing was written."""
    before = len(book.present.events)
    with pytest.raises(by) as caught:
        book.do(*commands)
    assert len(book.present.events) == before
    return caught.value


# Creating and replacing


def test_what_a_zone_loses_is_told_once_with_what_became_of_it(book: Rulebook) -> None:
    named = zone(nameservers=["ns.example.net"])
    told = [book.do(put(one))[0].warnings for one in (named, named, zone(), zone(), named)]
    assert [len(warnings) for warnings in told] == [0, 0, 1, 0, 0]


def test_a_created_object_has_manager_uid_version_and_generation_one(book: Rulebook) -> None:
    (outcome,) = book.do(put(zone()))
    assert outcome.verb == "created"
    shown = to_document(book.get(ZONE_KEY))
    assert shown["metadata"] == {
        "name": "example.org",
        "uid": "uid-1",
        "resourceVersion": resource_version(EPOCH, 1),
        "generation": 1,
        "creationTimestamp": "2025-10-09T08:53:20Z",
        "annotations": {MANAGED_BY: "kudurru"},
    }
    assert shown["spec"] == {"zoneName": "example.org."}
    assert "status" not in shown


def test_a_namespaced_object_lands_in_the_default_namespace_when_it_names_none(
    book: Rulebook,
) -> None:
    book.do(put(www()))
    assert to_document(book.get(WWW_KEY))["metadata"]["namespace"] == "default"


def test_a_spec_change_moves_version_and_generation(book: Rulebook) -> None:
    book.do(put(zone(defaultTTL=300)))
    before = book.get(ZONE_KEY)
    (outcome,) = book.do(put(zone(defaultTTL=600)))
    after = book.get(ZONE_KEY)
    assert outcome.verb == "configured"
    assert (before.body.generation, after.body.generation) == (1, 2)
    assert before.resource_version != after.resource_version
    assert (after.body.uid, after.body.creation_timestamp) == (
        before.body.uid,
        before.body.creation_timestamp,
    )


@pytest.mark.parametrize("change", [{"labels": {"a": "b"}}, {"annotations": {"a/b": "c"}}])
def test_labels_and_annotations_move_the_version_but_not_the_generation(
    book: Rulebook, change: dict[str, Any]
) -> None:
    book.do(put(zone()))
    before = book.get(ZONE_KEY)
    book.do(put(zone(metadata=change)))
    after = book.get(ZONE_KEY)
    assert after.body.generation == 1
    assert after.resource_version != before.resource_version


@pytest.mark.parametrize(
    "spec", [{}, {"defaultTTL": 300}, {"type": "Primary", "soa": {}, "nameservers": []}]
)
def test_an_identical_apply_writes_nothing_also_with_defaults_spelled_out(
    book: Rulebook, spec: dict[str, Any]
) -> None:
    book.do(put(zone(metadata={"labels": {"a": "b"}, "annotations": {"x": "y"}})))
    before = book.get(ZONE_KEY)
    (outcome,) = book.do(
        put(zone(metadata={"labels": {"a": "b"}, "annotations": {"x": "y"}}, **spec))
    )
    assert outcome.verb == "unchanged"
    assert outcome.resource_version == before.resource_version
    assert book.get(ZONE_KEY) == before
    assert len(book.present.events) == 1


def test_a_label_that_is_not_named_again_is_gone(book: Rulebook) -> None:
    book.do(put(www(labels={"a": "1", "b": "2"})))
    book.do(put(www(labels={"a": "1"})))
    assert book.get(WWW_KEY).body.labels == {"a": "1"}


def test_server_managed_metadata_and_status_of_the_input_are_not_written(book: Rulebook) -> None:
    given = {
        "uid": "mine",
        "resourceVersion": "7",
        "generation": 9,
        "creationTimestamp": "2001-01-01T00:00:00Z",
        "annotations": {MANAGED_BY: "somebody", LAST_APPLIED: "{}", "mine": "kept"},
    }
    book.do(put(www(**given)))
    shown = to_document(book.get(WWW_KEY))["metadata"]
    assert shown["uid"] == "uid-1"
    assert shown["generation"] == 1
    assert shown["creationTimestamp"] == "2025-10-09T08:53:20Z"
    assert shown["annotations"] == {MANAGED_BY: "kudurru", "mine": "kept"}


# Ownership


def test_another_manager_is_refused_and_told_the_owner(book: Rulebook) -> None:
    book.do(put(www(), manager="alice"))
    error = refused(book, put(www("192.0.2.9"), manager="bob"), by=ManagedBy)
    assert error.owner == "alice"
    assert "alice" in str(error)


def test_another_manager_is_refused_even_when_nothing_would_change(book: Rulebook) -> None:
    book.do(put(www(), manager="alice"))
    refused(book, put(www(), manager="bob"), by=ManagedBy)


def test_the_owner_is_checked_before_the_version(book: Rulebook) -> None:
    book.do(put(www(), manager="alice"))
    stale = put(www("192.0.2.9"), manager="bob", expected="1")
    assert refused(book, stale, by=ManagedBy).owner == "alice"
    gone = drop(WWW_KEY, manager="bob", expected="1")
    assert refused(book, gone, by=ManagedBy).owner == "alice"


def test_the_owner_is_checked_before_the_rules_of_zones(book: Rulebook) -> None:
    book.do(put(zone(), manager="alice"))
    other = manifest("DNSZone", "example.org", {"zoneName": "other."})
    assert refused(book, put(other, manager="bob"), by=ManagedBy).owner == "alice"


def test_force_takes_the_whole_object_and_keeps_its_status(book: Rulebook) -> None:
    book.do(put(www(labels={"by": "alice"}, annotations={"note": "a"}), manager="alice"))
    status = {"observedGeneration": 1}
    book.do(UpdateStatus(key=WWW_KEY, status=status, expected=book.get(WWW_KEY).resource_version))
    before = book.get(WWW_KEY)
    bare = record_set("www", endpoint("www.example.org", "AAAA", "2001:db8::1"))
    (outcome,) = book.do(put(bare, manager="bob", force=True))
    after = book.get(WWW_KEY)
    assert outcome.verb == "configured"
    assert after.manager == "bob"
    assert after.body.labels == {}
    assert after.body.annotations == {}
    assert [e["recordType"] for e in spec_of(book, WWW_KEY)["endpoints"]] == ["AAAA"]
    assert after.status == status
    assert after.body.uid == before.body.uid
    assert after.body.generation == 2


def test_a_takeover_that_changes_nothing_else_is_written_and_keeps_the_generation(
    book: Rulebook,
) -> None:
    book.do(put(www(), manager="alice"))
    book.do(put(www(), manager="bob", force=True))
    assert book.get(WWW_KEY).manager == "bob"
    assert book.get(WWW_KEY).body.generation == 1
    refused(book, put(www(), manager="alice"), by=ManagedBy)


def test_force_does_not_excuse_a_stale_version(book: Rulebook) -> None:
    book.do(put(www(), manager="alice"))
    refused(book, put(www(), manager="bob", force=True, expected="1"), by=Conflict)


def test_of_eight_managers_that_race_to_create_exactly_one_wins(book: Rulebook) -> None:
    batch = book.batch()
    owners = []
    for i in range(8):
        inner = batch.nested()
        try:
            events, _ = inner.decide(put(www(f"192.0.2.{i}"), manager=f"m{i}"))
            assert [event.type for event in events] == [OBJECT_APPLIED]
            batch.absorb(inner)
        except ManagedBy as error:
            owners.append(error.owner)
    assert owners == ["m0"] * 7


@pytest.mark.parametrize("manager", ["m" * 200, "line\nfeed", "Zoë", "a/b:c"])
def test_the_name_of_a_manager_is_kept_as_given(book: Rulebook, manager: str) -> None:
    book.do(put(www(), manager=manager))
    assert to_document(book.get(WWW_KEY))["metadata"]["annotations"] == {MANAGED_BY: manager}
    assert list(manager_faults(manager)) == []


@pytest.mark.parametrize(
    "manager",
    ["external-dns", "kudurru-controller", "update:key", "update:", "mirror:eu-1",
     "dnsendpoint:team/web", "", "m" * 1025,
     "half a pair \ud800"],
)  # fmt: skip
def test_a_reserved_or_impossible_manager_is_refused_from_outside(manager: str) -> None:
    assert [cause.field for cause in manager_faults(manager)] == ["manager"]


# Annotations that belong to people


@pytest.mark.parametrize("name", [ENABLED, COMMENT])
def test_an_apply_that_does_not_name_them_keeps_the_annotations_of_people(
    book: Rulebook, name: str
) -> None:
    book.do(put(www(annotations={name: "false", "other": "x"}), manager="alice"))
    book.do(put(www("192.0.2.2"), manager="alice"))
    assert book.get(WWW_KEY).body.annotations == {name: "false"}
    book.do(put(www(), manager="bob", force=True))
    assert book.get(WWW_KEY).body.annotations == {name: "false"}
    book.do(put(www(annotations={name: "true"}), manager="bob"))
    assert book.get(WWW_KEY).body.annotations == {name: "true"}


def test_an_apply_that_only_leaves_out_what_people_wrote_changes_nothing(book: Rulebook) -> None:
    book.do(put(www(annotations={COMMENT: "why"})))
    (outcome,) = book.do(put(www()))
    assert outcome.verb == "unchanged"


def test_the_last_applied_configuration_is_dropped_and_is_no_change(book: Rulebook) -> None:
    book.do(put(www()))
    (outcome,) = book.do(put(www(annotations={LAST_APPLIED: "{}"})))
    assert outcome.verb == "unchanged"


# Versions


def test_the_version_that_was_read_is_accepted_and_an_older_one_is_a_conflict(
    book: Rulebook,
) -> None:
    book.do(put(www()))
    read = book.get(WWW_KEY).resource_version
    book.do(put(www("192.0.2.2"), expected=read))
    error = refused(book, put(www("192.0.2.3"), expected=read), by=Conflict)
    assert "read it again" in str(error)


@pytest.mark.parametrize("expected", ["0", "nonsense", "", PENDING])
def test_an_unknown_version_is_a_conflict(book: Rulebook, expected: str) -> None:
    book.do(put(www()))
    refused(book, put(www("192.0.2.2"), expected=expected), by=Conflict)
    refused(book, drop(WWW_KEY, expected=expected), by=Conflict)


def test_a_version_of_an_object_that_does_not_exist_never_becomes_a_create(book: Rulebook) -> None:
    refused(book, put(www(), expected=resource_version(EPOCH, 1)), by=Conflict)


def test_a_no_op_with_a_stale_version_is_a_conflict_all_the_same(book: Rulebook) -> None:
    book.do(put(www()))
    refused(book, put(www(), expected="1"), by=Conflict)


def test_a_position_of_another_epoch_is_another_version() -> None:
    assert resource_version(1, 5) != resource_version(2, 5)
    assert int(resource_version(1, 2**40 - 1)) < int(resource_version(2, 0))


# Deleting


def test_delete_records_the_uid_and_a_second_one_finds_nothing(book: Rulebook) -> None:
    book.do(put(www()))
    (outcome,) = book.do(drop(WWW_KEY))
    assert outcome.verb == "deleted"
    assert book.present.events[-1].type == OBJECT_DELETED
    assert msgspec.json.decode(book.present.events[-1].body) == {"uid": "uid-1"}
    assert book.present.find(WWW_KEY) is None
    refused(book, drop(WWW_KEY), by=NotFound)


def test_a_foreign_manager_may_delete_only_by_force(book: Rulebook) -> None:
    book.do(put(www(), manager="alice"))
    refused(book, drop(WWW_KEY, manager="bob"), by=ManagedBy)
    book.do(drop(WWW_KEY, manager="bob", force=True))
    assert book.present.find(WWW_KEY) is None


def test_a_deleted_name_created_again_is_a_new_object_in_the_same_stream(book: Rulebook) -> None:
    book.do(put(www("192.0.2.1")))
    book.do(put(www("192.0.2.2")))
    status = UpdateStatus(key=WWW_KEY, status={"a": 1}, expected=book.get(WWW_KEY).resource_version)
    book.do(status)
    book.do(drop(WWW_KEY))
    book.do(put(www("192.0.2.1"), manager="bob"))
    again = book.get(WWW_KEY)
    assert again.body.uid == "uid-2"
    assert again.body.generation == 1
    assert again.manager == "bob"
    assert again.status is None
    assert [event.ver for event in book.present.events] == [1, 2, 3, 4, 5]


# Scopes


def test_a_record_set_counts_in_the_scope_of_its_zone(book: Rulebook) -> None:
    book.do(put(zone()), put(www()), put(manifest("ClientGroup", "kids", {})))
    assert [e.scope for e in book.present.events] == [
        "/example.org",
        "default/example.org",
        "default/",
    ]


def test_a_record_set_that_changes_its_zone_leaves_word_in_the_scope_it_left(
    book: Rulebook,
) -> None:
    book.do(put(www()))
    book.do(put(record_set("www", endpoint("www.example.net", "A", "192.0.2.1"), zone="net")))
    moved, applied = book.present.events[1:]
    assert (moved.type, moved.scope, moved.ver) == (OBJECT_MOVED, "default/example.org", 2)
    assert msgspec.json.decode(moved.body) == {"to": "default/net"}
    assert (applied.type, applied.scope, applied.ver) == (OBJECT_APPLIED, "default/net", 3)
    assert book.get(WWW_KEY).scope == "default/net"
    assert book.get(WWW_KEY).body.generation == 2


def test_after_a_move_alone_the_object_is_as_it_was_at_a_newer_version(book: Rulebook) -> None:
    book.do(put(www()))
    before = book.get(WWW_KEY)
    book.do(put(record_set("www", endpoint("www.example.net", "A", "192.0.2.1"), zone="net")))
    moved = evolve(before, book.present.events[1], "between")
    assert moved == msgspec.structs.replace(before, ver=2, resource_version="between")


def test_delete_and_status_stay_in_the_scope_of_the_object(book: Rulebook) -> None:
    book.do(put(www()))
    expected = book.get(WWW_KEY).resource_version
    book.do(UpdateStatus(key=WWW_KEY, status={"a": 1}, expected=expected))
    book.do(drop(WWW_KEY))
    assert {event.scope for event in book.present.events} == {"default/example.org"}


# Status


def test_a_status_write_replaces_the_status_and_nothing_else(book: Rulebook) -> None:
    book.do(put(www(labels={"a": "b"}), manager="alice"))
    before = book.get(WWW_KEY)
    status = {"observedGeneration": 1, "conditions": []}
    book.do(UpdateStatus(key=WWW_KEY, status=status, expected=before.resource_version))
    after = book.get(WWW_KEY)
    assert after == msgspec.structs.replace(
        before, ver=2, resource_version=after.resource_version, status=status
    )
    assert after.resource_version != before.resource_version
    assert book.present.events[-1].manager == "alice"


def test_an_equal_status_writes_nothing(book: Rulebook) -> None:
    book.do(put(www()))
    for _ in range(2):
        expected = book.get(WWW_KEY).resource_version
        (outcome,) = book.do(UpdateStatus(key=WWW_KEY, status={"a": 1}, expected=expected))
    assert outcome.verb == "unchanged"
    assert book.types_since(0) == [OBJECT_APPLIED, OBJECT_STATUS]


def test_an_empty_status_on_an_object_without_one_writes_nothing(book: Rulebook) -> None:
    book.do(put(www()))
    expected = book.get(WWW_KEY).resource_version
    assert book.do(UpdateStatus(key=WWW_KEY, status={}, expected=expected))[0].verb == "unchanged"


def test_a_status_of_a_stale_version_is_a_conflict(book: Rulebook) -> None:
    book.do(put(www()))
    read = book.get(WWW_KEY).resource_version
    book.do(put(www("192.0.2.2")))
    refused(book, UpdateStatus(key=WWW_KEY, status={"a": 1}, expected=read), by=Conflict)


def test_two_writers_of_one_status_do_not_overwrite_each_other(book: Rulebook) -> None:
    book.do(put(www()))
    read = book.get(WWW_KEY).resource_version
    book.do(UpdateStatus(key=WWW_KEY, status={"mine": 1}, expected=read))
    refused(book, UpdateStatus(key=WWW_KEY, status={"yours": 1}, expected=read), by=Conflict)


def test_a_status_computed_before_the_callers_own_unechoed_write_is_a_conflict(
    book: Rulebook,
) -> None:
    book.do(put(www()))
    read = book.get(WWW_KEY).resource_version
    status = UpdateStatus(key=WWW_KEY, status={"a": 1}, expected=read)
    refused(book, put(www("192.0.2.2")), status, by=Conflict)
    twice = UpdateStatus(key=WWW_KEY, status={"a": 2}, expected=read)
    refused(book, status, twice, by=Conflict)


def test_a_status_of_what_does_not_exist_is_not_found(book: Rulebook) -> None:
    refused(book, UpdateStatus(key=WWW_KEY, status={}, expected="1"), by=NotFound)


# Batches


def test_commands_of_a_batch_see_what_the_earlier_ones_led_to(book: Rulebook) -> None:
    verbs = [o.verb for o in book.do(put(www()), put(www()), put(www("192.0.2.2")), drop(WWW_KEY))]
    assert verbs == ["created", "unchanged", "configured", "deleted"]
    assert [event.ver for event in book.present.events] == [1, 2, 3]


def test_a_refused_command_leaves_the_batch_as_it_was(book: Rulebook) -> None:
    batch = book.batch()
    batch.decide(put(www(), manager="alice"))
    with pytest.raises(ManagedBy):
        batch.decide(put(www("192.0.2.2"), manager="bob"))
    assert batch.version(WWW_KEY) == 1
    events, _ = batch.decide(put(www("192.0.2.2"), manager="alice"))
    assert [event.ver for event in events] == [2]


def test_a_nested_batch_that_is_not_absorbed_never_was(book: Rulebook) -> None:
    outer = book.batch()
    kept, dropped = outer.nested(), outer.nested()
    kept.decide(put(www()))
    dropped.decide(put(zone()))
    outer.absorb(kept)
    assert outer.version(WWW_KEY) == 1
    assert outer.version(ZONE_KEY) == 0
    later = outer.nested()
    assert later.decide(put(www()))[1].verb == "unchanged"
    assert later.decide(put(zone()))[1].verb == "created"


def test_nested_batches_continue_the_streams_of_those_before(book: Rulebook) -> None:
    outer = book.batch()
    for i in range(3):
        inner = outer.nested()
        events, _ = inner.decide(put(www(f"192.0.2.{i}")))
        outer.absorb(inner)
        assert [event.ver for event in events] == [i + 1]
    found = outer.find(WWW_KEY)
    assert found is not None
    assert (found.body.generation, found.resource_version) == (3, PENDING)


def test_an_absorbed_zone_counts_for_what_the_outer_batch_decides_next(book: Rulebook) -> None:
    outer = book.batch()
    outer.decide(put(record_set("a", endpoint("a.example.org", "A", "192.0.2.1"))))
    inner = outer.nested()
    inner.decide(put(zone()))
    outer.absorb(inner)
    with pytest.raises(Invalid):
        outer.decide(put(record_set("b", endpoint("b.example.com", "A", "192.0.2.1"))))


# Rules of zones


def test_the_name_of_a_zone_is_immutable(book: Rulebook) -> None:
    book.do(put(zone()))
    other = manifest("DNSZone", "example.org", {"zoneName": "example.net."})
    error = refused(book, put(other, force=True), by=Invalid)
    assert [cause.field for cause in error.causes] == ["spec.zoneName"]
    assert "immutable" in str(error)


@pytest.mark.parametrize("same", ["example.org", "EXAMPLE.org.", r"\101xample.org"])  # e is \101
def test_another_spelling_of_the_name_of_a_zone_is_no_change_of_it(
    book: Rulebook, same: str
) -> None:
    book.do(put(zone()))
    book.do(put(manifest("DNSZone", "example.org", {"zoneName": same})))
    assert spec_of(book, ZONE_KEY)["zoneName"] == same


def test_a_zone_deleted_and_made_anew_may_have_another_name(book: Rulebook) -> None:
    book.do(put(zone()))
    other = manifest("DNSZone", "example.org", {"zoneName": "example.net."})
    book.do(drop(ZONE_KEY), put(other))
    assert spec_of(book, ZONE_KEY)["zoneName"] == "example.net."


def test_records_outside_their_zone_are_refused_each_with_its_path(book: Rulebook) -> None:
    book.do(put(zone()))
    stray = record_set(
        "stray",
        endpoint("www.example.org", "A", "192.0.2.1"),
        endpoint("www.example.net", "A", "192.0.2.1"),
        endpoint("badexample.org", "A", "192.0.2.1"),
    )
    error = refused(book, put(stray), by=Invalid)
    assert [cause.field for cause in error.causes] == [
        "spec.endpoints[1].dnsName",
        "spec.endpoints[2].dnsName",
    ]


def test_records_may_come_before_their_zone(book: Rulebook) -> None:
    stray = record_set("stray", endpoint("www.example.net", "A", "192.0.2.1"))
    book.do(put(stray))
    book.do(put(zone()))
    assert spec_of(book, stray.key)["endpoints"][0]["dnsName"] == "www.example.net"


def test_records_are_held_against_a_zone_of_the_same_batch(book: Rulebook) -> None:
    stray = record_set("stray", endpoint("www.example.net", "A", "192.0.2.1"))
    refused(book, put(zone()), put(stray), by=Invalid)
    book.do(put(stray), put(zone()))


def test_a_zone_that_goes_in_the_same_batch_is_unknown_to_what_follows(book: Rulebook) -> None:
    book.do(put(zone()))
    stray = record_set("stray", endpoint("www.example.net", "A", "192.0.2.1"))
    book.do(drop(ZONE_KEY), put(stray))


# Kinds and folding


def test_a_kind_whose_name_ends_in_list_is_a_kind() -> None:
    assert kind_by_word("BlockList") is KINDS["BlockList"]
    assert kind_by_word("blocklists") is KINDS["BlockList"]


def test_every_kind_is_applied_and_read_back(book: Rulebook) -> None:
    specs = {
        "DNSZone": {"zoneName": "example.org"},
        "DNSRecordSet": {"zoneRef": {"name": "z"}, "endpoints": []},
        "BlockList": {"sources": [{"inline": ["ads.example"]}]},
        "ClientGroup": {"clients": [{"ip": "192.0.2.1"}]},
        "Policy": {"deny": ["ads.example"]},
        "TSIGKey": {
            "algorithm": "hmac-sha256",
            "secretDigest": f"sha256:{'0' * 32}:{'a' * 64}",
        },
    }
    specs["APIToken"] = {
        "role": "viewer",
        "expiresAt": "2027-01-31T00:00:00Z",
        "tokenDigest": f"sha256:{'0' * 32}:{'a' * 64}",
    }
    assert set(specs) == set(KINDS)
    for kind, spec in specs.items():
        wanted = manifest(kind, "one", spec)
        book.do(put(wanted))
        assert to_document(book.get(wanted.key))["spec"] == spec


def test_an_erased_payload_leaves_the_object_as_it_was(book: Rulebook) -> None:
    book.do(put(www()))
    before = book.get(WWW_KEY)
    book.do(put(www("192.0.2.2")))

    class Erased(msgspec.Struct):
        type: str
        key: str
        ver: int
        body: None

    assert evolve(before, Erased(OBJECT_APPLIED, WWW_KEY, 2, None), "x") == before


def test_facts_about_what_is_gone_or_unknown_fold_to_nothing(book: Rulebook) -> None:
    book.do(put(www()))
    event = book.present.events[0]
    for type_ in (OBJECT_STATUS, OBJECT_MOVED, OBJECT_DELETED, "obj.unheard-of.v9"):
        body = canonical({"status": {}, "uid": "", "to": ""})
        assert evolve(None, msgspec.structs.replace(event, type=type_, body=body), "x") is None


def test_a_body_is_canonical_json_without_defaults(book: Rulebook) -> None:
    book.do(put(zone()))
    assert book.present.events[0].body == (
        b'{"creationTimestamp":"2025-10-09T08:53:20Z","generation":1,'
        b'"spec":{"zoneName":"example.org."},"uid":"uid-1"}'
    )


def test_a_document_is_the_callers_own() -> None:
    rules = Rulebook()
    rules.do(put(www(labels={"a": "b"})))
    status = {"conditions": [{"type": "Ready"}]}
    version = rules.get(WWW_KEY).resource_version
    rules.do(UpdateStatus(key=WWW_KEY, status=status, expected=version))
    document = to_document(rules.get(WWW_KEY))
    document["metadata"]["labels"]["a"] = "c"
    document["status"]["conditions"][0]["type"] = "Other"
    again = to_document(rules.get(WWW_KEY))
    assert again["metadata"]["labels"] == {"a": "b"}
    assert again["status"] == status
