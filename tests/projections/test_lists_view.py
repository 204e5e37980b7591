"""The view of BlockLists: inline rules from the moment of their Apply, and equal when rebuilt."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from kudurru.adapters.memory.clock import ManualClock
from kudurru.domain.commands import Delete
from kudurru.domain.dns import names
from kudurru.domain.objects import Key, key_of
from kudurru.entrypoints.wiring import Node
from kudurru.projections.lists_view import ListsView
from tests.nodes import a_change, memory_node, rebuilt
from tests.objects import manifest, put

NAMES = ("one", "two")


def block_list(name: str, lines: list[str], *, enabled: bool = True, **spec: Any) -> Any:
    annotations = {"kudurru.io/enabled": str(enabled)}  # what is not named stays
    spec["sources"] = [{"url": "https://lists.example/"}, {"inline": lines}]
    return manifest("BlockList", name, spec, namespace="default", annotations=annotations)


def found(view: ListsView, name: str) -> list[Key]:
    return [hit.list for hit in view.inline.lookup(names.key(names.from_text(name)))]


def applied(node: Node, value: Any) -> None:
    node.commit(a_change(put(value)))


def test_inline_rules_count_from_their_apply_to_their_end() -> None:
    node, one = memory_node(), key_of("BlockList", "default", "one")
    view = node.views.lists
    applied(node, block_list("one", ["a.example", "nonsense here"]))
    assert found(view, "a.example") == [one]
    assert found(view, "x.a.example") == []
    assert view.lists[one].inline[1].entries == 1
    assert view.lists[one].inline[1].invalid == 1
    applied(node, block_list("one", ["a.example"], match="subtree"))
    assert found(view, "x.a.example") == [one]
    applied(node, block_list("one", ["a.example"], enabled=False))
    assert found(view, "a.example") == []
    assert view.disabled == {one}
    applied(node, block_list("one", ["b.example"]))
    assert found(view, "b.example") == [one]
    node.commit(a_change(Delete(key=one)))
    assert found(view, "b.example") == []
    assert not view.lists
    assert one not in view


def test_whoever_fetches_is_told_that_lists_changed() -> None:
    node = memory_node()
    told: list[int] = []
    node.views.lists.on_lists = lambda: told.append(1)
    applied(node, block_list("one", []))
    applied(node, manifest("Policy", "p", {}, namespace="default"))
    assert len(told) == 1


steps = st.lists(
    st.tuples(
        st.sampled_from(NAMES),
        st.sampled_from(["delete", "on", "off"]),
        st.lists(st.sampled_from(["a.example", "||b.example^", "/c/", "@@d.example^"]), max_size=3),
    ),
    max_size=8,
)


@given(steps)
def test_a_view_that_is_rebuilt_or_loaded_equals_the_live_one(
    changes: list[tuple[str, str, list[str]]],
) -> None:
    node = memory_node(ManualClock())
    for name, what, lines in changes:
        key = key_of("BlockList", "default", name)
        if what != "delete":
            applied(node, block_list(name, lines, enabled=what == "on"))
        elif node.objects.find(key):
            node.commit(a_change(Delete(key=key)))
    view = node.views.lists
    loaded = ListsView()
    loaded.load(view.dump())
    for other in (rebuilt(node).views.lists, loaded):
        assert other.digest() == view.digest()
        assert (other.lists, other.disabled) == (view.lists, view.disabled)
        assert other.position == view.position
        for name in ("a.example", "x.b.example", "c.example", "d.example"):
            assert found(other, name) == found(view, name)
