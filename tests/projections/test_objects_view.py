"""The objects view: what there is, in pages and by selector, with bodies left in the log."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kudurru.domain.errors import Invalid
from kudurru.domain.objects import ref_of
from kudurru.domain.selectors import parse_selector
from kudurru.entrypoints.wiring import Node
from kudurru.projections import objects_view
from tests.nodes import a_change, memory_node, rebuilt
from tests.objects import WWW_KEY, drop, manifest, put, record_set, www, zone


@pytest.fixture
def node() -> Node:
    node = memory_node()
    for namespace in ("a", "a-b", "b"):
        for i in range(4):
            labels = {"i": str(i), "even": "yes"} if i % 2 == 0 else {"i": str(i)}
            node.commit(a_change(put(record_set(f"n{i}", namespace=namespace, labels=labels))))
    node.commit(a_change(put(zone())))
    return node


def names_of(page: objects_view.Page) -> list[str]:
    return [str(ref_of(stored.key)).partition(" ")[2] for stored in page.objects]


def test_a_kind_is_listed_whole_or_by_namespace(node: Node) -> None:
    assert len(node.objects.list("DNSRecordSet").objects) == 12
    assert names_of(node.objects.list("DNSRecordSet", "a")) == ["a/n0", "a/n1", "a/n2", "a/n3"]
    assert names_of(node.objects.list("DNSRecordSet", "a-b")) == [f"a-b/n{i}" for i in range(4)]
    assert names_of(node.objects.list("DNSRecordSet", "none")) == []
    assert names_of(node.objects.list("DNSZone")) == ["example.org"]
    assert names_of(node.objects.list("Policy")) == []


@pytest.mark.parametrize("limit", [1, 2, 3, 5, 12, 13])
@pytest.mark.parametrize("namespace", [None, "a", "b"])
def test_pages_put_together_are_the_whole_list(
    node: Node, limit: int, namespace: str | None
) -> None:
    whole = names_of(node.objects.list("DNSRecordSet", namespace))
    found: list[str] = []
    start: str | None = ""
    while start is not None:
        page = node.objects.list("DNSRecordSet", namespace, limit=limit, start=start)
        assert len(page.objects) <= limit
        found += names_of(page)
        start = page.next_key
    assert found == whole


@pytest.mark.parametrize(
    ("selector", "count"),
    [("", 12), ("even", 6), ("!even", 6), ("even=yes", 6), ("even==yes,i=2", 3), ("i!=0", 9),
     ("even!=no", 12), ("i=0,i=1", 0), (" i = 3 , !even ", 3)],
)  # fmt: skip
def test_a_selector_filters_as_kubernetes_has_it(node: Node, selector: str, count: int) -> None:
    page = node.objects.list("DNSRecordSet", selector=parse_selector(selector))
    assert len(page.objects) == count


@pytest.mark.parametrize("selector", ["=", "!", "a b", "i in (0,1)", "=x", "é"])
def test_what_is_no_selector_is_refused(selector: str) -> None:
    with pytest.raises(Invalid, match="NAME=VALUE"):
        parse_selector(selector)


@given(st.text(max_size=12))
def test_any_text_is_a_selector_or_invalid(text: str) -> None:
    try:
        parse_selector(text)({"a": "b"})
    except Invalid:
        return


def test_kinds_are_counted(node: Node) -> None:
    assert (node.objects.count("DNSRecordSet"), node.objects.count("DNSZone")) == (12, 1)
    node.commit(a_change(drop(node.objects.keys("DNSRecordSet")[0])))
    assert (node.objects.count("DNSRecordSet"), len(node.objects)) == (11, 12)
    assert node.objects.count("Policy") == 0


def test_the_version_of_a_stream_outlives_its_object(node: Node) -> None:
    node.commit(a_change(put(www())))
    node.commit(a_change(drop(WWW_KEY)))
    assert node.objects.find(WWW_KEY) is None
    assert node.objects.version(WWW_KEY) == 2
    node.commit(a_change(put(www())))
    assert node.objects.version(WWW_KEY) == 3
    assert node.objects.version(manifest("Policy", "never", {}).key) == 0


def test_more_objects_than_the_cache_holds_are_read_all_the_same(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects_view, "CACHE_MAX", 3)
    twice = [names_of(node.objects.list("DNSRecordSet")) for _ in range(2)]
    assert twice[0] == twice[1]
    assert len(node.objects._cache) == 3


def test_a_view_read_from_the_log_shows_the_same_documents(node: Node) -> None:
    def shown(of: Node) -> Any:
        return [stored for kind in ("DNSZone", "DNSRecordSet") for stored in
                [(s.key, s.resource_version, s.manager, s.scope, bytes(s.body.spec), s.status)
                 for s in of.objects.list(kind).objects]]  # fmt: skip

    assert shown(rebuilt(node)) == shown(node)
