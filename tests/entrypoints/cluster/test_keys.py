"""Who waits for which objects."""

from hypothesis import given
from hypothesis import strategies as st

from kudurru.domain.objects import Key
from kudurru.entrypoints.cluster.keys import Waiting

KEYS = [Key(f"DNSRecordSet/default/{name}") for name in "abc"]


@given(st.lists(st.tuples(st.sampled_from("xyz"), st.frozensets(st.sampled_from(KEYS)))))
def test_a_name_waits_for_what_was_said_of_it_last(puts: list[tuple[str, frozenset[Key]]]) -> None:
    waiting, last = Waiting(), {}
    for name, keys in puts:
        waiting.put(name, keys)
        last[name] = keys
    for key in KEYS:
        assert waiting.of(key) == sorted(name for name in last if key in last[name])
    for name in last:
        waiting.put(name, frozenset())
    assert not waiting._names, "what nobody waits for is not kept"
    assert not waiting._keys
