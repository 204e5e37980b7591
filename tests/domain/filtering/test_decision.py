"""Who decides: the classes in their order, policies in theirs, rules in theirs."""

from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kudurru.domain.dns.record_types import A
from kudurru.domain.filtering.clients import ClientIndex
from kudurru.domain.filtering.decision import Decision, Filters, decide_on_answer
from kudurru.domain.filtering.policies import CompiledPolicy
from kudurru.domain.objects import Key
from tests.filtering import NOON_S, caller_from, groups, judged, key, lists, policy

KIDS = "192.0.2.1"
OTHER = "192.0.2.2"
CLIENTS = groups(kids=[{"ip": KIDS}], tv=[{"ip": KIDS}, {"ip": "192.0.2.3"}])


def filters(*policies: CompiledPolicy, clients: ClientIndex = CLIENTS, **more: Any) -> Filters:
    return Filters(policies, clients, **more)


def said(decision: Decision) -> str:
    """Action, reason and rule in a line."""
    by = decision.rule or decision.list.removeprefix("default/")
    return f"{decision.action} {decision.reason} {by}".strip()


@pytest.mark.parametrize(
    ("name", "outcome"),
    [
        ("ads.example", "block policy-deny ads.example"),
        ("ADS.Example", "block policy-deny ads.example"),
        ("www.ads.example", "pass none"),  # a plain name is that name only
        ("x.bad.example", "block policy-deny *.bad.example"),
        ("y.x.bad.example", "block policy-deny *.x.bad.example"),  # the nearest wildcard
        ("bad.example", "pass none"),  # a wildcard is not its own name
        ("tracker7.example", "block policy-deny /tracker[0-9]/"),
        ("trackers.example", "pass none"),
        ("good.bad.example", "pass policy-allow good.bad.example"),
        ("xads.example", "pass none"),  # not at a label boundary
        (".", "pass none"),
    ],
)
def test_names_before_wildcards_before_regexes(name: str, outcome: str) -> None:
    rules = ["ads.example", "/tracker[0-9]/", "*.bad.example", "*.x.bad.example", "/x.bad/"]
    one = policy("one", deny=rules, allow=["good.bad.example"])
    assert said(judged(filters(one), name)) == outcome


def test_a_match_tells_the_rule_and_its_line() -> None:
    decision = judged(filters(policy("one", deny=["a.example", "*.b.example"])), "x.b.example")
    assert decision.policy is not None
    assert (decision.policy.name, decision.rule, decision.line) == (
        "default/one",
        "*.b.example",
        2,
    )


def test_classes_go_before_priorities() -> None:
    high = policy("high", priority=10, deny=["x.example"], blockListRefs=["ads"])
    low = policy("low", allow=["x.example"], rewrites=[{"name": "r.example", "targets": [KIDS]}])
    rules = ["r.example", "@@||y.example^", "y.example", "||x.example^$important"]
    both = filters(high, low, matcher=lists(ads=rules))
    assert said(judged(filters(high, low), "x.example")) == "pass policy-allow x.example"
    assert said(judged(both, "x.example")) == "block important-deny ads"
    assert said(judged(both, "r.example")) == "rewrite rewrite r.example"
    assert said(judged(both, "y.example")) == "pass list-allow ads"


def test_higher_priority_decides_and_then_the_name() -> None:
    for first, second in (("a", "b"), ("b", "a")):
        one = policy("one", priority=int(first == "a"), deny=["x.example"])
        two = policy("two", priority=int(second == "a"), deny=["x.example"])
        decided = judged(filters(two, one), "x.example").policy
        assert decided is (one if first == "a" else two)
    same = [policy(name, deny=["x.example"]) for name in ("b/one", "a/two", "a/one")]
    assert judged(filters(*same), "x.example").policy is same[2]


def test_who_is_in_a_group_has_its_policies_and_not_those_for_everyone() -> None:
    kids = policy("kids", clientGroupRefs=["kids"], deny=["games.example"])
    rest = policy("rest", deny=["ads.example"])
    found = filters(kids, rest)
    assert judged(found, "games.example", client=KIDS).is_blocked
    assert not judged(found, "ads.example", client=KIDS).is_blocked
    assert judged(found, "ads.example", client=OTHER).is_blocked
    assert not judged(found, "games.example", client=OTHER).is_blocked


def test_a_policy_for_a_group_that_is_not_there_is_for_nobody() -> None:
    lost = policy("lost", clientGroupRefs=["gone"], deny=["x.example"])
    assert not judged(filters(lost), "x.example").is_blocked


def test_references_without_a_namespace_are_in_that_of_the_policy() -> None:
    one = policy("home/one", clientGroupRefs=["kids"], deny=["x.example"])
    two = policy("home/two", clientGroupRefs=["default/kids"], deny=["y.example"])
    assert not judged(filters(one, two), "x.example", client=KIDS).is_blocked
    assert judged(filters(one, two), "y.example", client=KIDS).is_blocked


def test_outside_its_hours_a_policy_is_absent() -> None:
    nine = {"windows": [{"days": ["Thu"], "start": "09:00", "end": "10:00"}]}
    kids = policy("kids", clientGroupRefs=["kids"], deny=["games.example"], schedule=nine)
    found = filters(kids, policy("rest", deny=["ads.example"]))
    at_nine = NOON_S - NOON_S % 86400 + 9 * 3600  # a Thursday
    for now, games, ads in ((at_nine, True, False), (at_nine - 1, False, True)):
        assert judged(found, "games.example", client=KIDS, now_s=now).is_blocked == games
        assert judged(found, "ads.example", client=KIDS, now_s=now).is_blocked == ads


def test_a_bypass_ends_the_list_of_policies() -> None:
    strict = policy("strict", priority=5, clientGroupRefs=["kids"], deny=["never.example"])
    free = policy("free", clientGroupRefs=["tv"], action="bypass")
    late = policy("late", priority=-5, clientGroupRefs=["tv"], deny=["ads.example"])
    found = filters(strict, free, late)
    assert judged(found, "never.example", client=KIDS).is_blocked
    assert said(judged(found, "ads.example", client=KIDS)) == "pass bypass"
    assert judged(found, "ads.example", client=KIDS).policy is strict  # the first that applies
    assert judged(found, "ads.example", client="192.0.2.3").policy is free
    asked = judged(found, "www.example", client=KIDS)
    leads_to = [key("never.example"), key("ads.example")]
    after = decide_on_answer(found, caller_from(KIDS), asked, leads_to, A, NOON_S)
    assert said(after) == "block policy-deny never.example"


@pytest.mark.parametrize("group", ["", "default/kids"])
def test_while_a_group_is_paused_nothing_is_denied_to_it(group: str) -> None:
    one = policy(
        "one",
        deny=["ads.example"],
        blockTypes=["HTTPS"],
        rewrites=[{"name": "nas.example", "targets": ["192.0.2.9"]}],
    )
    paused = filters(one, pauses={group: NOON_S + 60})
    assert said(judged(paused, "ads.example", client=KIDS)) == "pass paused"
    assert not judged(paused, "x.example", "HTTPS", client=KIDS).is_blocked
    assert judged(paused, "nas.example", client=KIDS).action == "rewrite"
    assert judged(paused, "ads.example", client=KIDS, now_s=NOON_S + 60).is_blocked
    assert judged(paused, "ads.example", client=OTHER).is_blocked == bool(group)
    for_good = filters(one, pauses={group: None})
    assert not judged(for_good, "ads.example", client=KIDS, now_s=NOON_S * 2).is_blocked


def test_a_type_is_denied_whatever_the_name_but_for_names_that_are_allowed() -> None:
    one = policy("one", blockTypes=["HTTPS", "TYPE64"], allow=["ok.example"])
    assert said(judged(filters(one), "x.example", "HTTPS")) == "block blocked-type"
    assert said(judged(filters(one), "x.example", "SVCB")) == "block blocked-type"
    assert not judged(filters(one), "x.example", "A").is_blocked
    assert not judged(filters(one), "ok.example", "HTTPS").is_blocked


def test_search_engines_are_sent_to_their_safe_name_unless_blocked_or_allowed() -> None:
    one = policy("one", safeSearch=True, deny=["duckduckgo.com"], allow=["www.bing.com"])
    found = filters(one)
    assert said(judged(found, "www.google.co.uk")) == (
        "rewrite safe-search safe search: forcesafesearch.google.com"
    )
    assert judged(found, "duckduckgo.com").is_blocked
    assert judged(found, "www.bing.com").action == "pass"
    assert judged(found, "mail.google.com").action == "pass"


def test_a_decision_for_one_client_is_not_remembered_for_another() -> None:
    rules = ["||www.bing.com^$client=192.0.2.1"]
    one = policy("one", blockListRefs=["ads"], safeSearch=True)
    found = filters(one, matcher=lists(ads=rules))
    for _ in range(2):
        assert judged(found, "www.bing.com", client=OTHER).action == "rewrite"
        assert judged(found, "www.bing.com", client=KIDS).is_blocked


def test_only_lists_that_count_are_asked() -> None:
    one = policy("one", blockListRefs=["ads", "other/more", "off"])
    found = Filters(
        [one],
        matcher=lists(ads=["a.example"], off=["b.example"], other=["c.example"]),
        lists={Key("BlockList/default/ads"), Key("BlockList/default/other")},
    )
    assert judged(found, "a.example").list == "default/ads"
    assert not judged(found, "b.example").is_blocked  # it is switched off
    assert not judged(found, "c.example").is_blocked  # no policy names it


def test_a_rule_for_some_clients_makes_the_decision_personal() -> None:
    rules = ["||a.example^$client=192.0.2.1", "||b.example^$client=~kids", "||c.example^"]
    found = filters(policy("one", blockListRefs=["ads"]), matcher=lists(ads=rules))
    assert found.is_uniform
    blocked = {
        (name, client): (decision.is_blocked, decision.is_personal)
        for name in ("a.example", "b.example", "c.example", "d.example")
        for client in (KIDS, OTHER)
        for decision in [judged(found, name, client=client)]
    }
    assert blocked == {
        ("a.example", KIDS): (True, True),
        ("a.example", OTHER): (False, True),
        ("b.example", KIDS): (False, True),
        ("b.example", OTHER): (True, True),
        ("c.example", KIDS): (True, False),
        ("c.example", OTHER): (True, False),
        ("d.example", KIDS): (False, False),
        ("d.example", OTHER): (False, False),
    }


@pytest.mark.parametrize(
    ("asked", "leads_to", "outcome"),
    [
        ("www.example", ["cdn.example", "tracker.example"], "block policy-deny tracker.example"),
        ("www.example", ["192.0.2.66"], "block policy-deny 192.0.2.66"),
        ("www.example", ["2001:db8::66"], "block policy-deny 2001:db8::66"),
        ("www.example", ["cdn.example", "192.0.2.6"], "pass none"),
        ("good.example", ["tracker.example"], "pass policy-allow good.example"),
        ("www.example", ["x.tracker.example"], "pass none"),
    ],
)
def test_what_an_answer_leads_to_is_held_against_the_rules_too(
    asked: str, leads_to: list[str], outcome: str
) -> None:
    rules = ["tracker.example", "192.0.2.66", "2001:db8::66"]
    found = filters(policy("one", deny=rules, allow=["good.example"], blockTypes=["ANY"]))
    decision = judged(found, asked)
    after = decide_on_answer(
        found, caller_from(KIDS), decision, [key(name) for name in leads_to], A, NOON_S
    )
    assert said(after) == outcome
    assert after.is_blocked == bool(after.matched)


def test_everybody_gets_the_same_only_where_nothing_tells_clients_or_moments_apart() -> None:
    plain = policy("one", deny=["a.example"])
    hours = {"windows": [{"days": ["Mon"], "start": "09:00", "end": "10:00"}]}
    assert filters(plain).is_uniform
    assert not filters(plain, pauses={"": None}).is_uniform
    assert not filters(policy("kids", clientGroupRefs=["kids"])).is_uniform
    assert not filters(policy("hours", schedule=hours)).is_uniform


def test_clients_are_told_apart_by_groups_of_them_and_rules_of_lists() -> None:
    plain = policy("all", deny=["a.example"])
    assert not filters(plain, pauses={"": None}).tells_clients_apart
    assert filters(plain, pauses={"default/kids": None}).tells_clients_apart
    assert filters(plain, policy("kids", clientGroupRefs=["kids"])).tells_clients_apart
    assert filters(policy("lists", blockListRefs=["x"])).tells_clients_apart


# --- against an oracle that is written otherwise ------------------------------------------------

LABELS = ("a", "b")
NAMES = [".".join(parts) for size in (1, 2, 3) for parts in product(LABELS, repeat=size)]
RULES = [*NAMES, *(f"*.{name}" for name in NAMES if name.count(".") < 2), "/a/", "/b$/", "/^a/"]

rules = st.lists(st.sampled_from(RULES), max_size=4)
marked = st.lists(
    st.tuples(st.sampled_from(["", "", "@", "!", "!@"]), st.sampled_from(RULES)).map("".join),
    max_size=4,
)
specs = st.fixed_dictionaries(
    {
        "priority": st.integers(0, 2),
        "clientGroupRefs": st.lists(st.sampled_from(["kids", "tv", "gone"]), max_size=2),
        "allow": rules,
        "deny": rules,
        "blockListRefs": st.lists(st.sampled_from(["x", "y"]), max_size=2, unique=True),
        "rewrites": st.lists(
            st.sampled_from([{"name": r, "targets": ["192.0.2.7"]} for r in NAMES[:6]]), max_size=1
        ),
        "action": st.sampled_from(["filter", "filter", "filter", "bypass"]),
    }
)


def _weight(rule: str, name: str) -> tuple[int, int] | None:
    """How near a rule is to a name, None where it says nothing of it."""
    if rule.startswith("/"):
        import re

        return (2, 0) if re.search(rule[1:-1], name) else None
    if rule.startswith("*."):
        return (1, -len(rule)) if name.endswith(rule[1:]) else None
    return (0, 0) if rule == name else None


def _written(rule: str) -> str:
    """A rule of the oracle as an adblock list has it."""
    mark, bare = rule[: len(rule) - len(rule.lstrip("!@"))], rule.lstrip("!@")
    exact = bare if bare.startswith("/") else f"|{bare}^"
    text = f"*.{bare[2:]}" if bare.startswith("*.") else exact
    text = f"||{text}^" if text.startswith("*.") else text
    return ("@@" if "@" in mark else "") + text + ("$important" if "!" in mark else "")


def _expected(
    specs: list[dict[str, Any]], lists: dict[str, list[str]], name: str, mine: set[str]
) -> tuple[str, str]:
    """(action, number of the policy that decides): every rule is weighed, the lightest wins."""
    ranked = sorted(range(len(specs)), key=lambda i: (-specs[i]["priority"], i))
    chosen = [i for i in ranked if mine & set(specs[i]["clientGroupRefs"])]
    chosen = chosen or [i for i in ranked if not specs[i]["clientGroupRefs"]]
    weighed: list[tuple[int, int, str, int]] = []
    for rank, i in enumerate(chosen):
        spec = specs[i]
        if spec["action"] == "bypass":
            break
        weighed += [(0, rank, "rewrite", i) for r in spec["rewrites"] if r["name"] == name]
        weighed += [(3, rank, "pass", i) for r in spec["allow"] if _weight(r, name)]
        weighed += [(4, rank, "block", i) for r in spec["deny"] if _weight(r, name)]
        for one in spec["blockListRefs"]:
            for rule in lists[one]:
                if _weight(rule.lstrip("!@"), name) is not None:
                    mark = rule[: len(rule) - len(rule.lstrip("!@"))]
                    place = {"!@": 1, "!": 2, "@": 5, "": 6}[mark]
                    weighed.append((place, rank, "pass" if "@" in mark else "block", i))
    if not weighed:
        return "pass", ""
    _, _, action, i = min(weighed)
    return action, str(i)


@given(
    st.lists(specs, max_size=5),
    st.fixed_dictionaries({"x": marked, "y": marked}),
    st.sampled_from(NAMES),
    st.sampled_from([KIDS, "192.0.2.3", OTHER]),
)
def test_the_lightest_of_all_rules_decides(
    specs: list[dict[str, Any]], said: dict[str, list[str]], name: str, client: str
) -> None:
    policies = [policy(str(i), **spec) for i, spec in enumerate(specs)]
    matcher = lists(**{one: [_written(rule) for rule in rules] for one, rules in said.items()})
    found = judged(filters(*policies, matcher=matcher), name, client=client)
    mine = {KIDS: {"kids", "tv"}, "192.0.2.3": {"tv"}}.get(client, set())
    action, decider = _expected(specs, said, name, mine)
    assert found.action == action
    if decider:
        assert found.policy is not None
        assert found.policy.name == f"default/{decider}"


@given(rules, st.sampled_from(NAMES))
def test_the_nearest_rule_of_a_policy_is_named(deny: list[str], name: str) -> None:
    weights = {rule: weight for rule in deny if (weight := _weight(rule, name)) is not None}
    decision = judged(filters(policy("one", deny=deny)), name)
    assert decision.is_blocked == bool(weights)
    if weights:
        assert weights[decision.rule] == min(weights.values())


personal = st.lists(
    st.sampled_from([f"||{name}^$client={KIDS}" for name in NAMES[:4]] + ["||a^", "@@||b.a^"]),
    max_size=3,
)
asks = st.lists(
    st.tuples(
        st.sampled_from([KIDS, "192.0.2.3", OTHER]),
        st.sampled_from([*NAMES, "www.bing.com"]),
        st.sampled_from(["A", "HTTPS"]),
        st.integers(0, 3),
    ),
    max_size=12,
)
held = st.fixed_dictionaries({"": st.none()}) | st.just({}) | st.just({"default/kids": NOON_S + 2})


@given(st.lists(specs, max_size=4), personal, held, asks)
def test_what_was_decided_for_others_changes_nothing(
    specs: list[dict[str, Any]], rules: list[str], pauses: dict[str, Any], asks: Any
) -> None:
    def fresh() -> Filters:
        more = {"safeSearch": True, "blockTypes": ["HTTPS"]}
        policies = [policy(str(i), **spec, **more) for i, spec in enumerate(specs)]
        return filters(*policies, matcher=lists(x=rules, y=["b"]), pauses=pauses)

    used = fresh()
    for client, name, rtype, later in asks:
        now_s = NOON_S + later
        found = judged(used, name, rtype, client, now_s)
        anew = judged(fresh(), name, rtype, client, now_s)
        assert said(found) == said(anew)
        assert (found.policy and found.policy.name) == (anew.policy and anew.policy.name)
        caller, leads_to = caller_from(client), [key(NAMES[later]), key("b.a")]
        after = decide_on_answer(used, caller, found, leads_to, A, now_s)
        other = fresh()
        expected = decide_on_answer(other, caller, judged(other, name, rtype, client, now_s),
                                    leads_to, A, now_s)  # fmt: skip
        assert said(after) == said(expected)
