"""Views after random histories: rebuilt they are the same, and they serve what the objects say.

The reference below works out what is served from the list of objects alone, by hand and in text.
"""

import json
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from kudurru.adapters.memory.clock import ManualClock
from kudurru.domain.commands import Command, UpdateStatus
from kudurru.domain.dns import names
from kudurru.domain.dns.images import unpack, unpack_records
from kudurru.domain.dns.record_types import type_to_text
from kudurru.domain.dns.records import rdata_to_text
from kudurru.domain.dns.serials import is_newer
from kudurru.domain.dns.zone_tree import Zone
from kudurru.domain.errors import Invalid, StorageFailed
from kudurru.domain.events import Recorded
from kudurru.domain.kinds.validation import Manifest
from kudurru.domain.object_store import to_document
from kudurru.domain.objects import Key, key_of
from kudurru.entrypoints.wiring import Node
from tests.nodes import BrittleLog, a_change, commit_as_server, memory_node, rebuilt
from tests.objects import drop, endpoint, manifest, put, record_set

SECOND = 1_000_000

# --- the reference ----------------------------------------------------------------------------

Served = dict[str, dict[tuple[str, str], tuple[int, list[str]]]]  # zone, (owner, type): TTL, data
Reasons = dict[Key, list[str]]


def documents(node: Node, kind: str) -> list[dict[str, Any]]:
    return [to_document(stored) for stored in node.objects.list(kind).objects]


def age(document: dict[str, Any]) -> tuple[str, str]:
    meta = document["metadata"]
    return meta["creationTimestamp"], f"{meta.get('namespace', '')}/{meta['name']}"


def is_below(name: str, zone: str) -> bool:
    return f".{name}".endswith(f".{zone}")


def absolute(name: str) -> str:
    return name.lower().rstrip(".") + "."


def is_off(endpoint: dict[str, Any], now_s: int) -> bool:
    expires = endpoint.get("expiresAt")
    has_expired = expires is not None and datetime.fromisoformat(expires).timestamp() <= now_s
    return endpoint.get("disabled", False) or has_expired


def reference(node: Node, now_s: int) -> tuple[Served, Reasons]:
    """What is served, and the reasons of what is not."""
    winners: dict[str, dict[str, Any]] = {}
    for zone in sorted(documents(node, "DNSZone"), key=age):
        winners.setdefault(absolute(zone["spec"]["zoneName"]), zone)
    serving = {
        zone["metadata"]["name"]: zone
        for zone in winners.values()
        if zone["spec"].get("type", "Primary") == "Primary"
    }
    served: Served = {absolute(zone["spec"]["zoneName"]): {} for zone in serving.values()}
    reasons: Reasons = {}
    sets: dict[str, list[dict[str, Any]]] = {name: [] for name in serving}
    for found in sorted(documents(node, "DNSRecordSet"), key=age):
        zone_name = found["spec"]["zoneRef"]["name"]
        key = key_of("DNSRecordSet", found["metadata"]["namespace"], found["metadata"]["name"])
        if zone_name not in serving:
            reasons[key] = ["ZoneNotFound"]
            continue
        allowed = serving[zone_name]["spec"].get("allowedNamespaces")
        if allowed is not None and found["metadata"]["namespace"] not in allowed:
            reasons[key] = ["NotSelected"]
            continue
        sets[zone_name].append(found)
    for name, zone in serving.items():
        apex = absolute(zone["spec"]["zoneName"])
        served[apex] = serve(zone["spec"], apex, sets[name], now_s, reasons)
    return served, {key: sorted(found) for key, found in reasons.items()}


def serve(
    zone: dict[str, Any], apex: str, sets: list[dict[str, Any]], now_s: int, reasons: Reasons
) -> dict[tuple[str, str], tuple[int, list[str]]]:
    rows: dict[tuple[str, str], tuple[int, list[str]]] = {}
    default_ttl = zone.get("defaultTTL", 300)
    if zone.get("nameservers"):
        rows[apex, "NS"] = (default_ttl, sorted(map(absolute, zone["nameservers"])))
    holders: dict[Any, Any] = {}
    for found in sets:
        meta = found["metadata"]
        key = key_of("DNSRecordSet", meta["namespace"], meta["name"])
        for one in found["spec"]["endpoints"]:
            owner, rtype = absolute(one["dnsName"]), one["recordType"]
            holder = holders.setdefault((owner, rtype, one.get("setIdentifier", "")), key)
            there = {t for (o, t) in rows if o == owner}
            if not is_below(owner, apex):
                reasons.setdefault(key, []).append("OutsideZone")
            elif holder != key:
                reasons.setdefault(key, []).append("Duplicated")
            elif is_off(one, now_s):
                continue
            elif (owner == apex and rtype in ("NS", "CNAME")) or (
                rtype == "CNAME" and there if rtype == "CNAME" else "CNAME" in there
            ):
                reasons.setdefault(key, []).append("Invalid")
            else:
                ttl = one.get("recordTTL", default_ttl)
                least, data = rows.get((owner, rtype), (ttl, []))
                rows[owner, rtype] = (min(ttl, least), sorted({*data, *one["targets"]}))
    return rows


def shown(zone: Zone) -> dict[tuple[str, str], tuple[int, list[str]]]:
    """The same of a zone."""
    rows = {}
    for owner, image in zone.nodes.items():
        for rrset in unpack(image):
            found = list(unpack_records(rrset.wire))
            (ttl,) = {record.ttl for record in found}
            data = sorted(rdata_to_text(record.rtype, record.rdata) for record in found)
            rows[names.to_text(owner), type_to_text(rrset.rtype)] = (ttl, data)
    return rows


def said(event: Recorded) -> tuple[Any, ...]:
    """All of an event but the uid, which is chance, and which change set it came in."""
    body = json.loads(event.body or b"{}")
    body.pop("uid", None)
    return event.seq, event.ts, event.type, event.key, event.ver, event.scope, event.manager, body


# --- histories --------------------------------------------------------------------------------

ZONES = {"one": "example.org", "two": "Example.ORG.", "sub": "sub.example.org"}
KEYS = [
    key_of("DNSRecordSet", namespace, name)
    for namespace in ("default", "team")
    for name in ("a", "b", "c")
]
OWNERS = [
    "example.org",
    "www.example.org",
    "WWW.Example.org.",
    "a.sub.example.org",
    "sub.example.org",
]
DATA = {
    "A": ["192.0.2.1", "192.0.2.2", "192.0.2.3"],
    "CNAME": ["x.test."],
    "TXT": ['"x"', '"y"'],
    "NS": ["ns.test."],
}

zone_names = st.sampled_from(sorted(ZONES))
ttls = st.sampled_from([60, 300, 3600])


@st.composite
def endpoints(draw: st.DrawFn) -> dict[str, Any]:
    rtype = draw(st.sampled_from(["A", "A", "TXT", "CNAME", "NS"]))
    targets = draw(st.lists(st.sampled_from(DATA[rtype]), min_size=1, max_size=2, unique=True))
    fields: dict[str, Any] = {}
    if draw(st.booleans()):
        fields["recordTTL"] = draw(ttls)
    if draw(st.integers(0, 3)) == 0:
        fields["setIdentifier"] = "b"
    if draw(st.integers(0, 3)) == 0:
        fields["disabled"] = True
    if draw(st.integers(0, 2)) == 0:
        fields["expiresAt"] = draw(st.integers(-5, 60))  # seconds from now, made a time below
    owner = draw(st.sampled_from([*OWNERS, "other.test"]))
    return endpoint(owner, rtype, *targets, **fields)


@st.composite
def zone_specs(draw: st.DrawFn) -> dict[str, Any]:
    options: dict[str, Any] = {
        "defaultTTL": ttls,
        "allowedNamespaces": st.sampled_from([["default"], ["team"], []]),
        "nameservers": st.sampled_from([["ns.test"], ["ns1.test", "ns2.test"]]),
        "soa": st.sampled_from([{"minimum": 60}, {"mname": "m.test"}]),
    }
    chosen = draw(st.lists(st.sampled_from(sorted(options)), max_size=2, unique=True))
    spec = {name: draw(options[name]) for name in chosen}
    if draw(st.integers(0, 4)) == 0:
        spec |= {"type": "Forward", "forward": {"upstreams": ["udp://192.0.2.53"]}}
    return spec


class History(RuleBasedStateMachine):
    """A node whose views go ahead of the log, and beside it one that goes the way of a server."""

    @initialize()
    def begin(self) -> None:
        self.clock = ManualClock()
        self.changed = 0
        self.node = memory_node(self.clock)
        self.server = memory_node(self.clock)
        self.highest: dict[bytes, int] = {}  # serial, by zone name
        self.stamped: dict[bytes, tuple[Zone, str, int]] = {}
        self.secondaries: dict[bytes, tuple[int, dict[bytes, bytes]]] = {}

    # Changes

    def commit(self, *commands: Command, **how: Any) -> None:
        change = a_change(*commands, **how)
        head = self.node.log.head()
        error = self.refusal(self.node.commit, change)
        assert str(self.refusal(commit_as_server, self.server, change)) == str(error)
        if error is not None:
            assert self.node.log.head() == head
        elif self.node.log.head() != head:
            self.check_serials()
            self.check_deltas()

    def refusal(self, write: Callable[..., Any], *arguments: Any) -> Invalid | None:
        try:
            write(*arguments)
        except Invalid as error:
            return error
        return None

    def made_now(self, found: dict[str, Any]) -> dict[str, Any]:
        if "expiresAt" not in found:
            return found
        at = datetime.fromtimestamp(self.clock.now_us() // SECOND + found["expiresAt"], UTC)
        return found | {"expiresAt": at.strftime("%Y-%m-%dT%H:%M:%SZ")}

    @rule(name=zone_names, spec=zone_specs(), imported=st.none() | st.integers(0, 2**32 - 1))
    def apply_zone(self, name: str, spec: dict[str, Any], imported: int | None) -> None:
        wanted = manifest("DNSZone", name, {"zoneName": ZONES[name], **spec})
        serials = {} if imported is None else {name: imported}
        self.commit(put(wanted), imported_serials=serials)

    @rule(key=st.sampled_from(KEYS), found=st.lists(endpoints(), max_size=3), data=st.data())
    def apply_set(self, key: Key, found: list[dict[str, Any]], data: st.DataObject) -> None:
        zone = data.draw(st.sampled_from([*sorted(ZONES), "one", "absent"]))
        wanted = self.manifest_of(key, [self.made_now(one) for one in found], zone)
        if wanted is not None:
            self.commit(put(wanted))

    def manifest_of(
        self, key: Key, found: list[dict[str, Any]], zone: str, **metadata: Any
    ) -> Manifest | None:
        _, namespace, name = key.split("/")
        try:
            return record_set(name, *found, zone=zone, namespace=namespace, **metadata)
        except Invalid:  # two endpoints that exclude each other: no history for this machine
            return None

    def existing(self, kind: str) -> list[Key]:
        return self.node.objects.keys(kind)

    @precondition(lambda self: self.existing("DNSRecordSet"))
    @rule(data=st.data(), label=st.sampled_from(["x", "y"]))
    def change_what_is_no_content(self, data: st.DataObject, label: str) -> None:
        """Labels, order of targets and endpoints: nothing moves that a resolver could see."""
        key = data.draw(st.sampled_from(self.existing("DNSRecordSet")))
        stored = self.node.objects.find(key)
        assert stored is not None
        spec = to_document(stored)["spec"]
        found = [one | {"targets": one["targets"][::-1]} for one in spec["endpoints"]][::-1]
        # Endpoints of one record set do not compete, so their order is no content either.
        wanted = self.manifest_of(key, found, spec["zoneRef"]["name"], labels={"l": label})
        self.node.advance()
        self.server.advance()
        before = self.serials(), self.node.zones.unstamped()
        if wanted is not None:
            self.commit(put(wanted))
        if not before[1]:
            assert self.serials() == before[0]

    def serials(self) -> dict[bytes, int]:
        return {zone.key: zone.serial for zone in self.node.zones.served}

    @precondition(lambda self: self.existing("DNSRecordSet"))
    @rule(data=st.data())
    def delete_set(self, data: st.DataObject) -> None:
        self.commit(drop(data.draw(st.sampled_from(self.existing("DNSRecordSet")))))

    @precondition(lambda self: self.existing("DNSZone"))
    @rule(data=st.data())
    def delete_zone(self, data: st.DataObject) -> None:
        self.commit(drop(data.draw(st.sampled_from(self.existing("DNSZone")))))

    @precondition(lambda self: self.existing("DNSZone"))
    @rule(data=st.data(), ready=st.booleans())
    def write_a_condition(self, data: st.DataObject, ready: bool) -> None:
        """Another writer of a status keeps the fields of the stamp."""
        key = data.draw(st.sampled_from(self.existing("DNSZone")))
        stored = self.node.objects.find(key)
        assert stored is not None
        condition = {"type": "Ready", "status": str(ready), "reason": "AsExpected"}
        status = {**(stored.status or {}), "conditions": [condition]}
        self.commit(UpdateStatus(key=key, status=status, expected=stored.resource_version))

    @rule(
        first=st.sampled_from(KEYS),
        second=st.sampled_from(KEYS),
        name=zone_names,
        make=st.booleans(),
    )
    def change_several(self, first: Key, second: Key, name: str, make: bool) -> None:
        """One change set: a zone comes or goes with record sets, and one is written twice."""
        below = ZONES[name].lower().rstrip(".")
        one = self.manifest_of(first, [endpoint(below, "A", "192.0.2.9")], name)
        two = self.manifest_of(second, [endpoint(f"two.{below}", "TXT", '"x"')], name)
        assert one is not None
        assert two is not None
        commands: list[Command] = [put(one), put(two), drop(first)]
        if make:
            commands.insert(1, put(manifest("DNSZone", name, {"zoneName": ZONES[name]})))
        elif key_of("DNSZone", "", name) in self.existing("DNSZone"):
            commands.append(drop(key_of("DNSZone", "", name)))
        self.commit(*commands)

    # Time and misfortune

    @rule(seconds=st.sampled_from([0, 1, 10, 59, 100_000]))
    def let_time_pass(self, seconds: int) -> None:
        self.clock.advance(seconds * SECOND)
        self.node.advance()
        self.server.advance()

    @rule(hours=st.sampled_from([-1, 1, 24 * 365]))
    def step_the_clock(self, hours: int) -> None:
        self.clock.step_wall(hours * 3600 * SECOND)

    @rule(key=st.sampled_from(KEYS))
    def fail_to_write(self, key: Key) -> None:
        """A log that refuses leaves views and log as they were, and the next commit works."""
        wanted = self.manifest_of(key, [endpoint("www.example.org", "A", "192.0.2.7")], "one")
        assert wanted is not None
        self.node.advance()
        self.server.advance()
        before = self.node.views.digests(), self.node.log.head(), self.serials()
        log = self.node.log
        assert isinstance(log, BrittleLog)
        log.fails_next = True
        with suppress(StorageFailed, Invalid):
            self.node.commit(a_change(put(wanted)))
        assert (self.node.views.digests(), log.head(), self.serials()) == before
        log.fails_next = False
        self.stamped = {  # the zones were built again
            zone.key: (zone, *self.stamped[zone.key][1:]) for zone in self.node.zones.served
        }
        self.commit(put(wanted))

    # What holds

    def check_serials(self) -> None:
        """A serial rises with the content and never otherwise, never comes twice for a name, and
        is what the status of the DNSZone says."""
        for state in self.node.zones.states():
            zone = state.zone
            if zone is None:
                continue
            assert not zone.has_unstamped_changes()
            before = self.stamped.get(zone.key)
            if before is not None and before[0] is zone and before[1] == zone.digest():
                assert zone.serial == before[2]
            elif zone.key in self.highest:
                assert is_newer(zone.serial, self.highest[zone.key])
            self.highest[zone.key] = zone.serial
            self.stamped[zone.key] = (zone, zone.digest(), zone.serial)
            stored = self.node.objects.find(state.key)
            assert stored is not None
            assert stored.status is not None
            assert stored.status["serial"] == zone.serial
            assert stored.status["contentHash"] == zone.digest()
            count = sum(len(data) for _, data in shown(zone).values())
            assert stored.status["recordCount"] == count + 1  # and the SOA

    def check_deltas(self) -> None:
        """A secondary that applies each delta in turn has the stamped version."""
        for zone in self.node.zones.served:
            seen, copy = self.secondaries.get(zone.key, (0, {}))
            for version in self.node.zones.history.versions(names.key(zone.apex)):
                if version.seq <= seen:
                    continue
                seen = version.seq
                if version.delta is None:
                    copy = {key.lower(): image for key, image in zone.stamped_nodes()}
                    continue
                for key, (old, new) in version.delta.changes.items():
                    assert copy.get(key, b"") == old
                    copy[key] = new
                    if not new:
                        del copy[key]
                assert version.serial == version.delta.to_serial
            assert copy == {key.lower(): image for key, image in zone.stamped_nodes()}
            self.secondaries[zone.key] = (seen, copy)

    @invariant()
    def views_rebuilt_from_the_log_are_the_live_ones(self) -> None:
        if hasattr(self, "node"):
            assert rebuilt(self.node).views.digests() == self.node.views.digests()

    @invariant()
    def zones_know_their_record_sets_with_problems(self) -> None:
        if hasattr(self, "node"):
            view = self.node.zones
            known = {key for state in view.states() for key in state.troubled}
            unserved = {key for keys in view.waiting().values() for key in keys}
            unserved |= {key for state in view.states() for key in state.unselected}
            assert known == set(view.with_problems()) - unserved

    @invariant()
    def both_ways_to_write_lead_to_the_same_views(self) -> None:
        if hasattr(self, "node"):
            assert self.server.views.digests() == self.node.views.digests()
            for one, other in zip(self.node.log.read(), self.server.log.read(), strict=True):
                assert said(one) == said(other)

    @invariant()
    def the_zones_are_what_the_objects_say(self) -> None:
        if hasattr(self, "node"):
            served, reasons = reference(self.node, self.node.zones.now_s)
            zones = {names.to_text(zone.key): shown(zone) for zone in self.node.zones.served}
            assert zones == served
            found = {
                key: sorted(problem.reason for problem in problems)
                for key in self.existing("DNSRecordSet")
                if (problems := self.node.zones.problems(key))
            }
            assert found == reasons


class LongHistory(History):
    """The same, longer and more often."""


def as_tests(machine: type[History], *, examples: int, steps: int) -> Any:
    machine.TestCase.settings = settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
    return machine.TestCase


TestHistory = as_tests(History, examples=40, steps=25)
TestLongHistory = pytest.mark.slow(
    pytest.mark.timeout(900)(as_tests(LongHistory, examples=600, steps=40))
)
