"""What the regexes of one object may cost is known before they are compiled."""

import pytest
import re2
from hypothesis import given
from hypothesis import strategies as st

from kudurru.domain.errors import Invalid
from kudurru.domain.filtering.rules import RuleSet
from kudurru.domain.kinds.validation import parse_manifest
from kudurru.domain.lists.patterns import options_of
from kudurru.domain.regexes import MEMORY_MAX, OBJECT_MAX, PARTS_MAX, Budget, parts_of

SEVENTY_MS = "[a-z]{1,50}" * 80
LONGEST_LIST_RULE = "[a-z0-9-]{1,63}[.]ad"


@pytest.mark.parametrize(
    ("pattern", "parts"),
    [
        ("a" * 4094, 4094),
        ("a{7}", 7),
        ("a{7,}", 8),
        ("a{2,7}", 7),
        ("(?:ab){3}", 24),
        ("(a{10}){10}", 110),
        (r"\Q[\E(a{1000}\Q]\E", 1010),
        (r"[[:alpha:]\]x]{2}", 28),
        (r"\x{41}", 6),
        (")" * 3 + "a", 1),
        ("", 1),
    ],
)
def test_parts_are_counted_with_repeats_written_out(pattern: str, parts: int) -> None:
    assert parts_of(pattern) == parts


@pytest.mark.parametrize(
    "pattern",
    [
        SEVENTY_MS,
        "(?:a{0,1000})" * 300,
        "a{999}" * 600,
        ".{0,999}" * 10,
        r"\pL" * 1300,
        r"[^\pN]{9}" * 10,
        "((a?){30}){30}" * 200,
        "a?" * 2000,
        r"[\x{80}-\x{10ffff}]" * 200,
        "(((((a{1000}){1000}){1000}){1000}){1000}){1000}",
        "a{999}" * 600 + "(",
    ],
)
def test_what_would_take_long_to_compile_is_refused_by_its_text(pattern: str) -> None:
    assert "parts, repeats written out" in (Budget().fault(pattern) or "")


_ATOMS = st.sampled_from(
    ["a", "k", "z0", ".", r"\d", r"\W", r"\pL", "[a-z0-9-]", "[^a]", "é", "[à-ü]", r"\x{2028}", "^"]
)


def _larger(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    repeats = st.sampled_from(["{3}", "{0,9}", "{2,}", "*", "+", "?"])
    return st.one_of(
        st.lists(inner, min_size=1, max_size=4).map("".join),
        st.tuples(inner, inner).map("|".join),
        st.tuples(inner, repeats).map(lambda found: f"(?:{found[0]}){found[1]}"),
        inner.map(lambda text: f"({text})"),
    )


@given(st.recursive(_ATOMS, _larger, max_leaves=12))
def test_what_an_expression_will_be_is_not_estimated_too_low(pattern: str) -> None:
    if parts_of(pattern) > PARTS_MAX:
        return
    assert re2.compile(pattern, options_of(MEMORY_MAX)).programsize <= 4 * parts_of(pattern) + 10


def policy(*deny: str) -> dict[str, object]:
    return {
        "apiVersion": "kudurru.io/v1alpha1",
        "kind": "Policy",
        "metadata": {"name": "office", "namespace": "default"},
        "spec": {"deny": list(deny), "allow": ["a name"]},
    }


def causes(*deny: str) -> list[str]:
    with pytest.raises(Invalid) as refused:
        parse_manifest(policy(*deny), what="test", default_namespace="default")
    return [cause.field for cause in refused.value.causes]


def test_the_regexes_of_an_object_have_one_budget_and_its_end_is_told_once() -> None:
    rules = [f"/{LONGEST_LIST_RULE}{number}/" for number in range(200)]
    assert causes(*rules[:50]) == ["spec.allow[0]"]
    first, last = causes(*rules, "not a name")[1:]
    assert 50 < int(first[len("spec.deny[") : -1]) < 200
    assert last == "spec.deny[200]"


def test_what_was_recorded_once_and_costs_more_is_not_compiled() -> None:
    rules = [f"/{LONGEST_LIST_RULE}{number}/" for number in range(200)]
    compiled = RuleSet([f"/{SEVENTY_MS}/", *rules])
    assert f"/{SEVENTY_MS}/" in compiled.unusable
    assert rules[0] not in compiled.unusable
    assert rules[199] in compiled.unusable


def test_what_is_larger_than_it_looked_is_counted_as_it_is() -> None:
    budget = Budget()
    faults = [budget.fault("k" * 4000 + str(number)) for number in range(5)]
    assert faults[:3] == [None] * 3
    assert str(OBJECT_MAX) in str(faults[3])
