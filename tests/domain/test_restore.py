"""Plans of restore and undo, from two states and nothing else."""

import msgspec
import pytest

from kudurru.domain.errors import Invalid
from kudurru.domain.objects import key_of
from kudurru.domain.restore import (
    ONE_TRANSACTION_MAX,
    Done,
    Plan,
    Scope,
    Step,
    commands,
    plan_restore,
    plan_undo,
    state_digest,
)
from tests.objects import WWW_KEY, ZONE_KEY, Rulebook, put, www, zone


def stored(manifest, manager: str = "kudurru"):
    rules = Rulebook()
    rules.do(put(manifest, manager))
    return rules.get(manifest.key)


ONE, TWO = stored(www("192.0.2.1")), stored(www("192.0.2.2"))
LABELLED = stored(www("192.0.2.1", labels={"a": "b"}))
THEIRS = stored(www("192.0.2.2"), "external-dns")


def restored(then=None, now=None, *, force: bool = False, unknown=None, key=WWW_KEY) -> Plan:
    return plan_restore(
        target=1,
        base=9,
        scope=Scope(everything=True),
        then={key: then} if then else {},
        now={key: now} if now else {},
        unknown=unknown or {},
        force=force,
    )


@pytest.mark.parametrize(
    ("then", "now", "expected"),
    [
        (ONE, None, ("create", "kudurru")),
        (None, ONE, ("delete", "kudurru")),
        (ONE, TWO, ("update", "kudurru")),
        (ONE, LABELLED, ("update", "kudurru")),
        (THEIRS, None, ("create", "external-dns")),
        (None, THEIRS, ("delete", "external-dns")),
        (ONE, ONE, None),
        (None, None, None),
        (TWO, THEIRS, None),  # the content is the same, and the owner is not restored
    ],
)
def test_a_plan_holds_what_differs_and_who_owns_it(then, now, expected) -> None:
    plan = restored(then, now)
    assert [(step.action, step.owner) for step in plan.steps] == ([expected] if expected else [])
    assert plan.skipped == ()


def test_an_object_of_another_manager_since_is_skipped_and_by_force_keeps_its_owner() -> None:
    plan = restored(ONE, THEIRS)
    assert plan.steps == ()
    assert "'external-dns' now and by 'kudurru' then" in plan.skipped[0].reason
    (step,) = restored(ONE, THEIRS, force=True).steps
    assert (step.action, step.owner) == ("update", "external-dns")


def test_an_object_whose_state_is_unknown_is_skipped_with_the_reason() -> None:
    plan = restored(None, ONE, unknown={WWW_KEY: "its payload at position 3 was redacted"})
    assert [one.reason for one in plan.skipped] == ["its payload at position 3 was redacted"]
    assert plan.steps == ()


def test_what_the_rules_of_today_do_not_allow_is_skipped() -> None:
    spec = msgspec.Raw(b'{"endpoints":[],"zoneRef":{"name":"Not A Name"}}')
    old = msgspec.structs.replace(ONE, body=msgspec.structs.replace(ONE.body, spec=spec))
    plan = restored(old, ONE)
    assert plan.steps == ()
    assert plan.skipped[0].reason.startswith("this version does not allow it: spec.zoneRef.name")


def test_a_zone_with_another_name_is_replaced_because_names_are_immutable() -> None:
    then, now = stored(zone(zoneName="old.example.")), stored(zone(zoneName="new.example."))
    (step,) = restored(then, now, key=ZONE_KEY).steps
    assert step.action == "replace"
    assert [type(command).__name__ for command in commands([step])] == ["Delete", "Revert"]


def test_zones_come_before_their_record_sets_and_go_after_them() -> None:
    def steps(then, now):
        return [
            *restored(ONE if then else None, ONE if now else None).steps,
            *restored(
                stored(zone()) if then else None, stored(zone()) if now else None, key=ZONE_KEY
            ).steps,
        ]

    assert [command.key for command in commands(steps(True, False))] == [ZONE_KEY, WWW_KEY]
    assert [command.key for command in commands(steps(False, True))] == [WWW_KEY, ZONE_KEY]


def test_a_digest_names_the_plan_and_not_the_moment_it_was_made() -> None:
    plan = restored(ONE, TWO)
    assert msgspec.structs.replace(plan, base=99).digest() == plan.digest()
    others = [
        restored(TWO, ONE),
        restored(ONE, None),
        restored(LABELLED, TWO),
        restored(ONE, THEIRS, force=True),
        restored(ONE, THEIRS),
        msgspec.structs.replace(plan, target="2"),
        msgspec.structs.replace(plan, scope=Scope(namespace="default")),
    ]
    digests = [other.digest() for other in others]
    assert len({*digests, plan.digest()}) == len(others) + 1


def test_many_objects_are_restored_zone_by_zone() -> None:
    def step(i: int) -> Step:
        key = key_of("DNSRecordSet", "default", f"h{i}")
        now = msgspec.structs.replace(ONE, key=key, scope=f"default/z{i % 3}")
        return Step(key=key, action="delete", then=None, now=now, owner="kudurru")

    plan = restored(None, ONE)
    few = msgspec.structs.replace(plan, steps=tuple(map(step, range(ONE_TRANSACTION_MAX))))
    assert len(few.parts()) == 1
    many = msgspec.structs.replace(plan, steps=tuple(map(step, range(ONE_TRANSACTION_MAX + 1))))
    assert [{step.zone for step in part} for part in many.parts()] == [{"z0"}, {"z1"}, {"z2"}]
    assert sum(map(len, many.parts())) == ONE_TRANSACTION_MAX + 1


# --- undo -------------------------------------------------------------------------------------


def undone(before=None, after=None, now=None, **how) -> Plan:
    done = Done(key=WWW_KEY, before=before, after=after, now=now, **how)
    return plan_undo(what="7", base=9, done=[done])


@pytest.mark.parametrize(
    ("before", "after", "now", "expected"),
    [
        (None, ONE, ONE, ("delete", "kudurru")),
        (ONE, None, None, ("create", "kudurru")),
        (ONE, TWO, TWO, ("update", "kudurru")),
        (ONE, THEIRS, THEIRS, ("update", "kudurru")),  # a takeover is given back
        (TWO, THEIRS, THEIRS, ("update", "kudurru")),
        (ONE, TWO, ONE, None),  # somebody was faster
        (None, ONE, None, None),
    ],
)
def test_an_undo_reverts_what_is_still_as_the_change_left_it(before, after, now, expected) -> None:
    plan = undone(before, after, now)
    assert [(step.action, step.owner) for step in plan.steps] == ([expected] if expected else [])
    assert plan.skipped == ()


@pytest.mark.parametrize(
    ("before", "after", "now"), [(ONE, TWO, LABELLED), (ONE, TWO, None), (None, TWO, THEIRS)]
)
def test_an_object_that_changed_since_is_a_conflict(before, after, now) -> None:
    plan = undone(before, after, now, changed_at=8)
    assert plan.steps == ()
    assert plan.skipped[0].reason == "changed since, last at position 8"


def test_an_undo_whose_state_before_was_redacted_is_a_conflict() -> None:
    assert undone(None, ONE, ONE, unknown="redacted").skipped[0].reason == "redacted"


# --- scope ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scope", "covered"),
    [
        (Scope(everything=True), [True, True, True]),
        (Scope(zone="example.org"), [True, True, False]),
        (Scope(zone="example.org", namespace="default"), [False, True, False]),
        (Scope(namespace="default"), [False, True, True]),
        (Scope(kind="DNSZone"), [True, False, False]),
        (Scope(keys=(WWW_KEY,)), [False, True, False]),
    ],
)
def test_a_scope_covers_what_all_its_parts_select(scope: Scope, covered: list[bool]) -> None:
    events = [
        (ZONE_KEY, "/example.org"),
        (WWW_KEY, "default/example.org"),
        (key_of("Policy", "default", "kids"), "default/"),
    ]
    assert [scope.covers(*event) for event in events] == covered


def test_facts_are_in_no_scope() -> None:
    everything = Scope(everything=True)
    assert not everything.covers(key_of("Restore", "", "r-1"), "/")


@pytest.mark.parametrize("scope", [Scope(), Scope(everything=True, zone="a")])
def test_the_whole_store_is_meant_only_when_it_is_said(scope: Scope) -> None:
    with pytest.raises(Invalid, match="either --all or"):
        scope.check()


def test_the_state_digest_is_of_what_people_wrote() -> None:
    assert state_digest([TWO]) == state_digest([THEIRS])
    assert len({state_digest(s) for s in ([ONE], [TWO], [LABELLED], [], [ONE, TWO])}) == 5
