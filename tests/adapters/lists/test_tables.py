"""The table of lists on disk: it says what the lists say, and it is whole or refused."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kudurru.adapters.lists.jobs import Text
from kudurru.adapters.lists.tables import open_table, put_in_place, write_table_aside
from kudurru.domain.dns import names
from kudurru.domain.lists.matcher import Hit, Place
from kudurru.domain.lists.memory import MemoryMatcher
from kudurru.domain.lists.rules import (
    PATTERNS_MAX,
    RULES_OF_NAME_MAX,
    SELF,
    SUBTREE,
    Context,
    Reason,
)
from kudurru.domain.lists.table import SourceFacts, Table, Unusable
from kudurru.domain.objects import Key

ONE, TWO = Key("BlockList/default/one"), Key("BlockList/default/two")
SEED = 42


def text(folder: Path, key: Key, lines: Sequence[str], index: int = 0, **more: object) -> Text:
    octets = "\n".join(lines).encode()
    digest = hashlib.sha256(octets).hexdigest()
    path = folder / digest
    path.write_bytes(octets)
    return Text(key, index, f"source {index}", Context(**more), str(path), digest)  # type: ignore[arg-type]


def write_table(path: Path, texts: Sequence[Text], seed: int) -> tuple[SourceFacts, ...]:
    facts = write_table_aside(path.with_name("new"), texts, seed)
    put_in_place(path.with_name("new"), path)
    return facts


def built(folder: Path, *texts: Text) -> Table:
    write_table(folder / "table", texts, SEED)
    table = open_table(folder / "table")
    assert table is not None
    return table


def look(table: Table, name: str) -> Sequence[Hit]:
    return table.lookup(names.key(names.from_text(name)))


def test_a_rule_leads_back_to_its_source_line_and_text(tmp_path: Path) -> None:
    table = built(
        tmp_path,
        text(tmp_path, ONE, ["# one", "0.0.0.0 a.example b.example", "||c.example^"]),
        text(tmp_path, ONE, ["! more", "", "C.example # upper case"], 1),
        text(tmp_path, TWO, ["@@||c.example^$dnstype=A"]),
    )
    found = [(hit.list, table.place(hit)) for hit in look(table, "c.example")]
    assert found == [
        (ONE, Place("source 1", 3, "C.example # upper case")),
        (ONE, Place("source 0", 3, "||c.example^")),
        (TWO, Place("source 0", 1, "@@||c.example^$dnstype=A")),
    ]
    assert [hit.rule.covers for hit in look(table, "b.example")] == [SELF]
    assert look(table, "d.example") == []


def test_what_two_sources_of_a_list_both_say_is_there_once(tmp_path: Path) -> None:
    table = built(
        tmp_path,
        text(tmp_path, ONE, ["||a.example^", "a.example", "||a.example^"]),
        text(tmp_path, ONE, ["||A.example^", "||a.example^$important"], 1),
        text(tmp_path, TWO, ["||a.example^"]),
    )
    assert [(hit.list, hit.source) for hit in look(table, "a.example")] == [
        (ONE, 0), (ONE, 0), (ONE, 1), (TWO, 0),
    ]  # fmt: skip


def test_facts_of_each_source_are_counted(tmp_path: Path) -> None:
    lines = [
        "a.example",
        "0.0.0.0 b.example c.example",
        "x##y",
        "||d.example^$popup",
        "/ads/",
        "# c",
    ]
    facts = write_table(tmp_path / "table", [text(tmp_path, ONE, lines)], SEED)[0]
    assert facts.entries == 4
    assert facts.refused == {Reason.COSMETIC: 1, Reason.MODIFIER: 1}


def test_a_list_has_so_many_patterns_and_no_more(tmp_path: Path) -> None:
    lines = [f"/^a{i}\\./" for i in range(PATTERNS_MAX + 5)]
    sources = [text(tmp_path, ONE, lines[:900]), text(tmp_path, ONE, lines[900:], 1)]
    facts = write_table(tmp_path / "table", sources, SEED)
    assert sum(fact.entries for fact in facts) == PATTERNS_MAX
    assert facts[1].refused == {Reason.REGEX_MAX: 5}
    table = open_table(tmp_path / "table")
    assert table is not None
    assert len(look(table, "a999.example")) == 1
    assert look(table, "a1000.example") == []


def test_a_list_has_so_many_rules_for_one_name_and_no_more(tmp_path: Path) -> None:
    many = [f"||a.example^$client=192.0.2.{i}" for i in range(200)]
    texts = [text(tmp_path, Key(f"BlockList/default/{i}"), [f"# {i}", *many]) for i in range(12)]
    table = built(tmp_path, *texts)
    assert len(look(table, "a.example")) == 12 * RULES_OF_NAME_MAX
    for facts in table.directory.sources:
        assert facts.entries == RULES_OF_NAME_MAX
        assert facts.refused == {Reason.NAME_MAX: 200 - RULES_OF_NAME_MAX}
    memory = MemoryMatcher()
    assert memory.put(ONE, [("inline", many)], Context())[0].entries == RULES_OF_NAME_MAX


def test_lines_with_many_names_get_a_larger_table(tmp_path: Path) -> None:
    lines = ["0.0.0.0 " + " ".join(f"n{i}-{j}.example" for j in range(50)) for i in range(40)]
    table = built(tmp_path, text(tmp_path, ONE, lines))
    assert all(look(table, f"n{i}-{j}.example") for i in range(40) for j in range(50))


def test_a_policy_zone_keeps_its_origins(tmp_path: Path) -> None:
    lines = ["$TTL 60", "$ORIGIN rpz.example.", "@ SOA ns. h. 1 2 3 4 5", "a.example A 192.0.2.1",
             " A 192.0.2.2", "; between", "\tA 192.0.2.3", "*.b CNAME .",
             "$ORIGIN net.rpz.example.", "c CNAME rpz-passthru."]  # fmt: skip
    table = built(tmp_path, text(tmp_path, ONE, ["x.example"]), text(tmp_path, TWO, lines))
    assert len(look(table, "a.example")) == 3
    assert look(table, "b") == []
    assert look(table, "x.b")
    assert look(table, "c.net")[0].rule.is_allow


def test_addresses_that_trigger_are_found_as_names(tmp_path: Path) -> None:
    lines = ["32.1.2.0.192.rpz-ip CNAME .", "128.1.zz.rpz-ip CNAME ."]
    table = built(tmp_path, text(tmp_path, ONE, lines, format="rpz"))
    for name in ("192.0.2.1", "::1"):
        assert [names.to_text(hit.rule.name) for hit in look(table, name)] == [f"{name}."]
    assert look(table, "192.0.2.2") == []


@pytest.mark.parametrize("between", ["\u3000", "\x1c", "\x85 x", ";", ""])
def test_odd_lines_between_records_of_a_policy_zone_harm_no_query(
    tmp_path: Path, between: str
) -> None:
    lines = ["$TTL 60", "a.example A 192.0.2.1", between, " A 192.0.2.2"]
    table = built(tmp_path, text(tmp_path, ONE, lines))
    assert len(look(table, "a.example")) == 2


def test_an_owner_that_is_too_far_away_is_not_looked_for_without_end(tmp_path: Path) -> None:
    lines = ["$TTL 60", "a.example A 192.0.2.1", *[";"] * 5000, " A 192.0.2.2"]
    table = built(tmp_path, text(tmp_path, ONE, lines))
    assert len(look(table, "a.example")) == 1


rule_names = st.lists(st.sampled_from(["a", "b", "ads"]), min_size=1, max_size=3).map(".".join)
before = ["", "0.0.0.0 ", "||", "@@||", "*.", "|", "/", "address=/", "192.0.2.9 q.example "]
after = ["", "^", "^$important", "^$dnstype=A", "/", " CNAME .", "^$badfilter", " # x"]
rule_lines = st.builds(
    "{}{}.example{}".format, st.sampled_from(before), rule_names, st.sampled_from(after)
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    st.lists(st.lists(rule_lines, max_size=12), min_size=1, max_size=3),
    st.lists(rule_names, max_size=6),
    st.sampled_from([SELF, SUBTREE]),
)
def test_the_table_finds_what_a_dictionary_finds(
    tmp_path: Path, lists: list[list[str]], asked: list[str], covers: int
) -> None:
    memory = MemoryMatcher()
    texts = []
    for i, lines in enumerate(lists):
        key = Key(f"BlockList/default/{i}")
        memory.put(key, [("source 0", lines)], Context(covers=covers))
        texts.append(text(tmp_path, key, lines, covers=covers))
    table = built(tmp_path, *texts)
    for name in (*(f"{one}.example" for one in asked), "q.example", "example"):
        key_ = names.key(names.from_text(name))
        in_table = {(hit.list, hit.rule) for hit in table.lookup(key_)}
        assert in_table == {(hit.list, hit.rule) for hit in memory.lookup(key_)}
        for hit in table.lookup(key_):
            place = table.place(hit)
            assert place
            assert place.text == lists[int(hit.list[-1])][place.line - 1].rstrip()


def test_a_name_with_the_same_hash_blocks_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kudurru.domain.lists.table._hash", lambda name, seed: 7)
    table = built(tmp_path, text(tmp_path, ONE, ["a.example", "||b.example^", "0.0.0.0 c", "||b^"]))
    assert look(table, "a.example")
    assert look(table, "x.b.example")
    assert look(table, "d.example") == []
    assert look(table, "xa.example") == []


def test_a_table_that_is_cut_or_changed_anywhere_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "table"
    built(tmp_path, text(tmp_path, ONE, ["a.example", "||b.example^"]))
    whole = path.read_bytes()
    for size in (0, 1, 4095, 4096, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(Unusable):
            open_table(path)
    for at in [*range(80), 5000, *range(len(whole) - 60, len(whole))]:
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(Unusable):
            open_table(path)
    path.write_bytes(whole)
    assert open_table(path)


def test_a_table_of_nothing_is_a_table(tmp_path: Path) -> None:
    table = built(tmp_path)
    assert look(table, "a.example") == []
    assert table.lookup(names.ROOT) == []


def test_no_table_is_no_fault(tmp_path: Path) -> None:
    assert open_table(tmp_path / "table") is None


def test_a_mapped_table_stays_what_it_was_when_a_new_one_takes_its_place(tmp_path: Path) -> None:
    old = built(tmp_path, text(tmp_path, ONE, ["a.example"]))
    new = built(tmp_path, text(tmp_path, ONE, ["b.example"]))
    assert look(old, "a.example")
    assert look(new, "b.example")
    assert look(new, "a.example") == []
    assert (tmp_path / "table").stat().st_mode & 0o777 == 0o600
