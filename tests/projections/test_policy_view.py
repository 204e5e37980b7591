"""What filters follows the log: at once, whole, and the same when it is built again."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kudurru.adapters.memory.clock import ManualClock
from kudurru.domain.errors import Conflict, Invalid
from kudurru.domain.filtering.pauses import pause_command, resume_command, stream_of
from kudurru.domain.objects import key_of
from kudurru.domain.ports import FILTERS, Origins
from kudurru.entrypoints.wiring import Node
from kudurru.projections.policy_view import PolicyView
from tests.filtering import judged, lists
from tests.nodes import a_change, memory_node, rebuilt
from tests.objects import drop, manifest, put

KIDS = "192.0.2.1"
SECOND = 1_000_000


def apply(node: Node, kind: str, name: str, spec: dict[str, Any], **metadata: Any) -> None:
    node.commit(a_change(put(manifest(kind, name, spec, **metadata))))


def now_s(node: Node) -> int:
    return node.clock.now_us() // SECOND


def is_blocked(node: Node, name: str, client: str = KIDS) -> bool:
    return judged(node.views.policies.filters, name, client=client, now_s=now_s(node)).is_blocked


def view(node: Node) -> PolicyView:
    return node.views.policies


def test_a_policy_decides_from_the_moment_its_event_is_there() -> None:
    node = memory_node()
    assert not is_blocked(node, "games.example")
    apply(node, "Policy", "kids", {"clientGroupRefs": ["kids"], "deny": ["games.example"]})
    assert not is_blocked(node, "games.example")  # nobody is in the group yet
    apply(node, "ClientGroup", "kids", {"clients": [{"ip": KIDS}]})
    assert is_blocked(node, "games.example")
    assert not is_blocked(node, "games.example", client="192.0.2.9")
    apply(node, "Policy", "kids", {"clientGroupRefs": ["kids"], "deny": ["other.example"]})
    assert not is_blocked(node, "games.example")
    node.commit(a_change(drop(key_of("Policy", "default", "kids"))))
    assert not is_blocked(node, "other.example")


OFF = {"annotations": {"kudurru.io/enabled": " False "}}


def test_what_is_switched_off_is_absent() -> None:
    node = memory_node()
    view(node).subscribe(lists(ads=["||ads.example^"]))
    for kind, name, spec in (
        ("ClientGroup", "kids", {"clients": [{"ip": KIDS}]}),
        ("BlockList", "ads", {"sources": [{"inline": ["||ads.example^"]}]}),
        ("Policy", "kids", {"clientGroupRefs": ["kids"], "blockListRefs": ["ads"]}),
    ):
        apply(node, kind, name, spec)
    for kind, name in (("ClientGroup", "kids"), ("BlockList", "ads"), ("Policy", "kids")):
        assert is_blocked(node, "ads.example")
        stored = node.objects.list(kind).objects[0]
        spec = json.loads(bytes(stored.body.spec))
        apply(node, kind, name, spec, **OFF)
        assert not is_blocked(node, "ads.example")
        on = {"annotations": {"kudurru.io/enabled": "true"}}
        apply(node, kind, name, spec, **on)


def test_every_change_drops_what_came_of_filters() -> None:
    heard: list[Origins] = []
    clock = ManualClock()
    node = memory_node(clock)
    view(node)._on_change = heard.append  # as a server hears of it
    apply(node, "ClientGroup", "kids", {"clients": [{"ip": KIDS}]})
    apply(node, "Policy", "p", {"deny": ["a.example"]})
    pause(node, "default/kids", for_s=5)
    assert heard == [(FILTERS,)] * 3
    clock.advance(5 * SECOND)
    node.advance()
    assert heard == [(FILTERS,)] * 4
    apply(node, "Policy", "p", {"deny": ["a.example"], "queryLog": False})
    assert heard[4:] == [None]  # its clients' answers from zones are nobody else's either


def test_with_the_last_policy_that_wants_no_trace_zones_are_answered_in_another_way_again() -> None:
    heard: list[Origins] = []
    node = memory_node()
    silent, plain = {"deny": ["a.example"], "queryLog": False}, {"deny": ["a.example"]}
    apply(node, "Policy", "p", silent)
    apply(node, "Policy", "q", silent)
    view(node)._on_change = heard.append
    apply(node, "Policy", "p", plain)
    apply(node, "Policy", "p", {"deny": ["b.example"]})
    apply(node, "Policy", "q", silent, **OFF)
    apply(node, "Policy", "q", silent, annotations={"kudurru.io/enabled": "true"})
    node.commit(a_change(drop(key_of("Policy", "default", "q"))))
    assert heard == [None, (FILTERS,), None, None, None]


def pause(node: Node, group: str, for_s: int | None) -> None:
    version = node.objects.version(stream_of(group))
    node.commit(a_change(pause_command(group, version, now_s(node), for_s)))


def test_a_pause_ends_by_itself_or_by_a_word() -> None:
    clock = ManualClock()
    node = memory_node(clock)
    apply(node, "Policy", "all", {"deny": ["ads.example"]})
    pause(node, "", for_s=60)
    assert not is_blocked(node, "ads.example")
    assert rebuilt(node).views.policies.pauses == view(node).pauses
    clock.advance(60 * SECOND)
    assert is_blocked(node, "ads.example")
    node.advance()
    assert view(node).pauses == {}
    pause(node, "", for_s=None)
    clock.advance(10_000 * SECOND)
    assert not is_blocked(node, "ads.example")
    node.commit(a_change(resume_command("", node.objects.version(stream_of("")))))
    assert is_blocked(node, "ads.example")


@pytest.mark.parametrize("for_s", [0, -1, 400 * 86_400])
def test_a_pause_of_no_time_or_of_years_is_refused(for_s: int) -> None:
    with pytest.raises(Invalid, match="at most a year"):
        pause_command("", 0, 0, for_s)


def test_of_two_words_on_one_group_the_second_must_know_the_first() -> None:
    node = memory_node()
    command = pause_command("default/kids", 0, now_s(node), 60)
    node.commit(a_change(command))
    with pytest.raises(Conflict):
        node.commit(a_change(command))


def test_what_is_not_as_it_seems_is_told() -> None:
    node = memory_node()
    apply(node, "ClientGroup", "off", {"clients": [{"ip": KIDS}]}, **OFF)
    apply(node, "ClientGroup", "later", {"sources": {"integrationRef": "unifi"}})
    hours = {
        "timeZone": "Mars/Olympus",
        "windows": [{"days": ["Mon"], "start": "08:00", "end": "09:00"}],
    }
    spec = {"clientGroupRefs": ["gone", "off"], "blockListRefs": ["other/none"], "schedule": hours}
    apply(node, "Policy", "p", spec)
    told = {(str(d.object), d.reason, d.message) for d in view(node).diagnoses()}
    assert told == {
        ("Policy default/p", "MissingReference", "there is no ClientGroup default/gone"),
        ("Policy default/p", "Disabled", "ClientGroup default/off is disabled"),
        ("Policy default/p", "MissingReference", "there is no BlockList other/none"),
        (
            "Policy default/p",
            "Invalid",
            "this host does not know the time zone 'Mars/Olympus'; its hours count as UTC",
        ),
        (
            "ClientGroup default/later",
            "Unsupported",
            "sources.integrationRef brings no clients",
        ),
    }


# --- random histories ---------------------------------------------------------------------------

NAMES = ["a.example", "b.example", "x.a.example"]
GROUPS = ["one", "two"]
CLIENTS = [KIDS, "192.0.2.2", "198.51.100.1"]

_cidrs = st.sampled_from(["192.0.2.0/24", "192.0.2.1/32", "0.0.0.0/0", "192.0.2.2/31"])
_enabled = st.sampled_from([{}, {}, OFF])
_policy = st.fixed_dictionaries(
    {
        "priority": st.integers(0, 1),
        "clientGroupRefs": st.lists(st.sampled_from(GROUPS), max_size=1),
        "deny": st.lists(st.sampled_from([*NAMES, "*.a.example"]), max_size=2),
        "allow": st.lists(st.sampled_from(NAMES), max_size=1),
    }
)
_steps = st.lists(
    st.one_of(
        st.tuples(
            st.just("group"), st.sampled_from(GROUPS), st.lists(_cidrs, max_size=2), _enabled
        ),
        st.tuples(st.just("policy"), st.sampled_from(["p", "q"]), _policy, _enabled),
        st.tuples(st.just("drop"), st.sampled_from(["ClientGroup/one", "Policy/p", "Policy/q"])),
        st.tuples(st.just("pause"), st.sampled_from(["", "default/one"]), st.integers(1, 5)),
        st.tuples(st.just("wait"), st.integers(1, 5)),
    ),
    max_size=12,
)


def take(node: Node, clock: ManualClock, step: Any) -> None:
    match step:
        case ("group", name, cidrs, meta):
            apply(node, "ClientGroup", name, {"clients": [{"cidr": c} for c in cidrs]}, **meta)
        case ("policy", name, spec, meta):
            apply(node, "Policy", name, spec, **meta)
        case ("drop", name):
            found = key_of(*name.replace("/", "/default/").split("/"))
            if node.objects.find(found) is not None:
                node.commit(a_change(drop(found)))
        case ("pause", group, seconds):
            pause(node, group, seconds)
        case ("wait", seconds):
            clock.advance(seconds * SECOND)


@settings(max_examples=60)
@given(_steps)
def test_a_view_that_is_built_again_is_the_same_and_decides_the_same(steps: Any) -> None:
    clock = ManualClock()
    node = memory_node(clock)
    for step in steps:
        take(node, clock, step)
        node.views.policies.filters  # noqa: B018  # as a question in between would
    node.advance()
    other = rebuilt(node)
    other.advance()
    assert other.views.policies.digest() == node.views.policies.digest()
    for name in NAMES:
        for client in CLIENTS:
            decisions = [
                judged(n.views.policies.filters, name, client=client, now_s=now_s(n))
                for n in (node, other)
            ]
            facts = {(d.action, d.reason, d.rule, d.policy and d.policy.name) for d in decisions}
            assert len(facts) == 1
