import json
import string

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from kudurru.domain import documents
from kudurru.domain.documents import Document, quoting_hint, read_documents
from kudurru.domain.errors import Cause, Invalid

LOADERS = [yaml.SafeLoader, yaml.CSafeLoader] if yaml.__with_libyaml__ else [yaml.SafeLoader]


@pytest.fixture(params=LOADERS, ids=lambda loader: loader.__name__)
def yaml_loader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "YAML_LOADER", request.param)


def read(text: str, what: str = "zone.yaml") -> object:
    found = read_documents(text.encode(), what=what)
    assert len(found) == 1
    return found[0].value


def faults(text: str | bytes, what: str = "zone.yaml") -> list[str]:
    data = text.encode() if isinstance(text, str) else text
    with pytest.raises(Invalid) as caught:
        read_documents(data, what=what)
    assert caught.value.what == what
    return [str(cause) for cause in caught.value.causes]


SCALARS = {
    "text": "text",
    "no": False,
    "On": True,
    "OFF": False,
    "yes": True,
    "true": True,
    "nO": "nO",
    "y": "y",
    "null": None,
    "~": None,
    "5": 5,
    "-5": -5,
    "+5": 5,
    "0": 0,
    '"no"': "no",
    "'010'": "010",
    "12:30": "12:30",
    "2026-11-29": "2026-11-29",
    "2026-11-29T12:00:00Z": "2026-11-29T12:00:00Z",
    "192.0.2.1": "192.0.2.1",
    "1.2.3": "1.2.3",
    "::1": "::1",
    "2001:db8::1": "2001:db8::1",
    "v1alpha1": "v1alpha1",
    "30s": "30s",
    "64 MiB": "64 MiB",
    "=": "=",
    ".": ".",
    "+": "+",
    "9007199254740991": 2**53 - 1,
}


@pytest.mark.usefixtures("yaml_loader")
@pytest.mark.parametrize("source", SCALARS)
def test_an_unquoted_scalar_means_what_yaml_1_1_users_expect(source: str) -> None:
    assert read(f"a: {source}") == {"a": SCALARS[source]}


@pytest.mark.usefixtures("yaml_loader")
@pytest.mark.parametrize(
    "source",
    [
        "010", "-010", "0o17", "0O17", "0x1F", "0b101", "1_000", "09", "00",
        "1.5", ".5", "1.", "1e3", "1.5e-3", "-.5", ".inf", "-.INF", ".nan", ".NaN", "123e4567",
        "9007199254740992", "-9007199254740992", "9" * 5000,
    ],
)  # fmt: skip
def test_a_number_that_readers_disagree_about_is_refused(source: str) -> None:
    (fault,) = faults(f"spec:\n  ttl: {source}\n")
    assert fault.startswith("zone.yaml:2: spec.ttl: ")
    assert "in quotes" in fault


FAULTS = {
    "anchor": ("a: &x 1\nb: 2\n", "zone.yaml:1: a: anchors and aliases are not read"),
    "alias": ("b:\n  - *x\n", "zone.yaml:2: b[0]: anchors and aliases are not read"),
    "anchored map": ("b: &x\n  c: 1\n", "zone.yaml:1: b: anchors"),
    "tag": ("a: !!str 1\n", "zone.yaml:1: a: tags are not read: remove tag:yaml.org,2002:str"),
    "python tag": ("a: !!python/object:os.system {}\n", "zone.yaml:1: a: tags are not read"),
    "empty tag": ("a: ! 1\n", "zone.yaml:1: a: tags are not read"),
    "merge": ("a:\n  <<: {b: 1}\n", "zone.yaml:2: a: merge keys (<<) are not read"),
    "twice": ("a: 1\nb: 2\na: 3\n", "zone.yaml:3: the key a is given twice, in line 1 before"),
    "twice within": ("s:\n- {a: 1, a: 2}", "zone.yaml:2: s[0]: the key a is given twice"),
    "boolean key": ("on: 1\n", "zone.yaml:1: the key on: keys are text"),
    "null key": ("s:\n  ~: 1\n", "zone.yaml:2: s: the key ~: keys are text"),
    "missing key": ("s:\n  ?\n  : 1\n", "zone.yaml:2: s: the key is missing: keys are text"),
    "octal key": ("010: 1\n", "zone.yaml:1: the key readers disagree about the number 010"),
    "list as key": ("? [a]\n: 1\n", "zone.yaml:1: a map or list as a key"),
    "tab": ("a:\n\tb: 1\n", "zone.yaml:2: not YAML: "),
    "unclosed": ("a: [1,\n", "zone.yaml:2: not YAML: "),
    "control": ("a: b\nc: \x1b[31m\n", "zone.yaml:2: control character U+001B"),
    "deep": ("[" * 33 + "]" * 33, "zone.yaml:1: [0]" + "[0]" * 31 + ": nested deeper than 32"),
    "very deep": ("[" * 100_000, "zone.yaml:1: "),
    "deep list": ("- " * 100_000, "zone.yaml:1: [0]" + "[0]" * 31 + ": nested deeper than 32"),
    "surrogate": ('a: "\\ud800"\n', "zone.yaml:1: "),
    "beyond unicode": ('a: "\\U00110000"\n', "zone.yaml:1: "),
    "directives": ("%TAG !a! x\n" * 17 + "---\na: 1\n", "zone.yaml:1: %TAG directives"),
}


@pytest.mark.usefixtures("yaml_loader")
@pytest.mark.parametrize("case", FAULTS)
def test_a_trap_is_refused_with_its_line_and_the_fix(case: str) -> None:
    text, message = FAULTS[case]
    assert faults(text)[0].startswith(message)


def test_text_that_is_not_utf_8_is_refused_with_its_line() -> None:
    assert faults(b"a: b\nc: \xff\n") == [
        "zone.yaml:2: octet 0xff is not UTF-8: save the file as UTF-8"
    ]


def test_a_document_over_8_mib_is_refused() -> None:
    assert "8 MiB" in faults(b"#" * (documents.SIZE_MAX + 1))[0]
    assert read_documents(b"#" * documents.SIZE_MAX, what="x.yaml") == []


def test_more_documents_than_the_limit_are_refused() -> None:
    text = "--- {}\n" * documents.DOCUMENTS_MAX
    assert len(read_documents(text.encode(), what="x")) == documents.DOCUMENTS_MAX
    assert "more than 10000 documents" in faults(text + "--- {}\n")[0]


def test_every_fault_is_named_at_once() -> None:
    found = faults("a: 010\nb: *x\nc: !t 1\na: 1.5\n")
    starts = [
        "zone.yaml:1: a: readers disagree about the number 010; ",
        "zone.yaml:2: b: anchors and aliases",
        "zone.yaml:3: c: tags are not read: remove !t, ",
        "zone.yaml:4: the key a is given twice, in line 1 before",
        "zone.yaml:4: a: 1.5 is a number with a fraction or an exponent",
    ]
    assert [fault.startswith(start) for fault, start in zip(found, starts, strict=True)] == [
        True
    ] * 5


def test_a_fault_quotes_a_bounded_part_of_the_input() -> None:
    (fault,) = faults("x" * 100_000 + ": !t 1\n" + "y: 1")
    assert len(fault) < 400


def test_no_more_than_a_hundred_faults_are_shown() -> None:
    found = faults("".join(f"- {i}.5\n" for i in range(1000)))
    assert len(found) == 101
    assert found[-1] == "more faults follow; the first 100 are shown"


def test_a_number_as_key_is_its_text() -> None:
    assert read("ipv4: {32: 600, 24: 1}") == {"ipv4": {"32": 600, "24": 1}}


def test_empty_documents_are_left_out() -> None:
    found = read_documents(b"# nothing\n---\n---\na: 1\n---\n...\n", what="x.yaml")
    assert [document.value for document in found] == [{"a": 1}]
    assert found[0].line == 4


MANIFEST = """\
# comment
apiVersion: kudurru.io/v1alpha1
metadata:
  name: no
  annotations:
    kudurru.io/enabled: false
    kudurru.io: other
spec:
  endpoints:
  - dnsName: a.example.
    targets:
      - 192.0.2.1
      - 5
  - {dnsName: on}
---
kind: second
"""


@pytest.mark.usefixtures("yaml_loader")
def test_a_path_has_its_line_and_its_source_text() -> None:
    first, second = read_documents(MANIFEST.encode(), what="m.yaml")
    lines = {
        "": 2,
        "metadata": 3,
        "metadata.name": 4,
        "metadata.annotations.kudurru.io/enabled": 6,
        "metadata.annotations.kudurru.io": 7,
        "spec.endpoints": 9,
        "spec.endpoints[0]": 10,
        "spec.endpoints[0].targets": 11,
        "spec.endpoints[0].targets[1]": 13,
        "spec.endpoints[1].dnsName": 14,
        "spec.endpoints[1].missing": 14,
        "spec.endpoints[7]": 9,
        "nowhere.at.all": 2,
    }
    assert {path: first.line_of(path) for path in lines} == lines
    assert (second.line, second.line_of("kind")) == (16, 16)
    assert first.place("metadata.name") == "m.yaml:4"
    assert first.text_of("metadata.name") == "no"
    assert first.text_of("spec.endpoints[0].targets[1]") == "5"
    assert first.text_of("spec.endpoints[1].dnsName") == "on"
    assert first.text_of("spec.endpoints[0].targets[0]") is None
    assert first.text_of("spec.nowhere") is None


def test_faults_of_a_validation_get_their_places() -> None:
    document = read_documents(MANIFEST.encode(), what="m.yaml")[0]
    assert document.located([Cause("metadata.name", "text is wanted")]) == [
        Cause("metadata.name", "text is wanted", "m.yaml:4")
    ]


def test_the_hint_says_how_to_quote() -> None:
    assert quoting_hint("no") == 'without quotes no is a boolean: write "no"'
    assert quoting_hint("5") == 'without quotes 5 is a number: write "5"'
    assert quoting_hint("~") == 'without quotes ~ is null: write "~"'


JSON_FAULTS = {
    "comma": ('{"a": 1,\n}', "x.json:2: not JSON: a key is wanted here"),
    "trailing": ("[1,]", "x.json:1: not JSON: a value is wanted here"),
    "no colon": ('{"a" 1}', "x.json:1: not JSON: a colon is wanted here"),
    "no comma": ("[1 2]", "x.json:1: not JSON: a comma or the end is wanted here"),
    "open": ('{"a":\n\n[', "x.json:3: not JSON: a value or ] is wanted here"),
    "wrong end": ("[1}", "x.json:1: not JSON: a comma or the end is wanted here"),
    "bare word": ("{a: 1}", "x.json:1: not JSON: a key or } is wanted here"),
    "single quotes": ("\n['a']", "x.json:2: not JSON: a value or ] is wanted here"),
    "escape": ('["\\x"]', "x.json:1: not JSON: an escape in"),
    "surrogate": ('["\\ud800"]', "x.json:1: [0]: half of a surrogate pair"),
    "NaN": ("[NaN]", "x.json:1: not JSON: a value or ] is wanted here"),
    "leading zero": ("[010]", "x.json:1: not JSON: "),
    "fraction": ('{"a": [1.5]}', "x.json:1: a[0]: 1.5 is a number with a fraction"),
    "exponent": ('{"a": 1e3}', "x.json:1: a: 1e3 is a number with a fraction"),
    "large": ('{"a": 9007199254740993}', "x.json:1: a: a number beyond 2^53-1"),
    "twice": ('{"a": 1,\n"a": 2}', "x.json:2: the key a is given twice, in line 1 before"),
    "deep": ("[" * 100_000, "x.json:1: [0]" + "[0]" * 31 + ": nested deeper than 32"),
    "raw newline": ('["a\nb"]', "x.json:1: not JSON: a value or ] is wanted here"),
    "comment": ("// x\n{}", "x.json:1: not JSON: a value is wanted here"),
}


@pytest.mark.parametrize("case", JSON_FAULTS)
def test_a_fault_in_json_is_named_with_its_line(case: str) -> None:
    text, message = JSON_FAULTS[case]
    assert faults(text, "x.json")[0].startswith(message)


def test_json_may_hold_several_values() -> None:
    found = read_documents(b'{"a": true}\n{"b": [null, "\\u00e9\\ud83d\\ude00"]}\n', what="x.json")
    assert [document.value for document in found] == [{"a": True}, {"b": [None, "é😀"]}]
    assert [document.line for document in found] == [1, 2]
    assert found[0].text_of("a") == "true"


TOML = """\
name = "x"
on = true
day = 2026-11-29
[cache]
maxEntries = 5
"quoted key" = [1, 2]
[[listeners]]
proto = "udp"
[[listeners]]
proto = 7
"""


def test_toml_gives_what_yaml_would_with_lines_where_they_are_plain() -> None:
    (document,) = read_documents(TOML.encode(), what="x.toml")
    assert document.value == {
        "name": "x",
        "on": True,
        "day": "2026-11-29",
        "cache": {"maxEntries": 5, "quoted key": [1, 2]},
        "listeners": [{"proto": "udp"}, {"proto": 7}],
    }
    assert [document.line_of(p) for p in ("on", "cache", "cache.maxEntries")] == [2, 4, 5]
    assert document.line_of("listeners[1].proto") in (7, 8)
    assert document.text_of("on") == "true"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a = \n", "x.toml:1: not TOML: Invalid value"),
        ("a = 1\na = 2\n", "x.toml:2: not TOML: "),
        ("b = 1\n[c]\na = 1.5\n", "x.toml:3: c.a: 1.5 is a number with a fraction"),
        ("a = nan\n", "x.toml:1: a: nan is a number with a fraction"),
        ("a = 9007199254740992\n", "x.toml:1: a: a number beyond 2^53-1"),
        ("a = " + "9" * 5000, "x.toml:1: not TOML: "),
        ("a = " + "[" * 40 + "]" * 40, "x.toml:1: a" + "[0]" * 32 + ": nested deeper"),
        ("a = " + "[" * 5000, "x.toml:1: not TOML: "),
        (".".join("a" * 500) + " = 1", "x.toml:1: a"),
        ("\n" + ".".join("a" * 1002) + " = 1", "x.toml:2: more than 1000 dots in a line"),
        ("#" * 1024 * 1024 + "\n", "x.toml:1: more than 1 MiB of TOML"),
    ],
)
def test_a_fault_in_toml_is_named(text: str, message: str) -> None:
    assert faults(text, "x.toml")[0].startswith(message)


def is_no_number(text: str) -> bool:
    """Some writers leave `0E0` unquoted, since it is text to them; it is refused here."""
    return text[:1] not in set("+-.0123456789")


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53) + 1, 2**53 - 1)
    | st.text(st.characters(exclude_categories=["Cs", "Cn"]), max_size=20).filter(is_no_number)
    | st.sampled_from(["no", "010", "1.5", "a: b", "# x", "- x", " x ", "0x1F", "<<", "", "~"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.text(string.printable, max_size=8).filter(is_no_number), inner, max_size=4
        )
    ),
    max_leaves=12,
)


def test_what_other_tools_write_is_read_as_they_meant_it() -> None:
    @given(values, st.booleans())
    def check(value: object, flow: bool) -> None:
        written = yaml.safe_dump({"v": value}, default_flow_style=flow)
        as_json = json.dumps({"v": value})
        for loader in LOADERS:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(documents, "YAML_LOADER", loader)
                assert read(written) == {"v": value}
        assert read(as_json, "x.json") == {"v": value}

    check()


yaml_like = st.text(
    st.sampled_from("ab01.:,-?!&*#|>%@'\"[]{}<=~ \n\t\r\\xué\x85\ufeff\u2028"), max_size=40
).map(str.encode)


@pytest.mark.parametrize("format_", ["yaml", "json", "toml", None])
def test_no_input_raises_anything_but_invalid(format_: documents.Format | None) -> None:
    @given(st.binary(max_size=60) | yaml_like, st.sampled_from(LOADERS))
    def check(data: bytes, loader: type) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(documents, "YAML_LOADER", loader)
            try:
                found = read_documents(data, what="x", format=format_)
            except Invalid:
                return
        assert all(isinstance(document, Document) for document in found)

    check()


@pytest.mark.skipif(len(LOADERS) == 1, reason="PyYAML has no C parser here")
def test_both_parsers_give_the_same_values_and_lines() -> None:
    @given(yaml_like)
    def check(data: bytes) -> None:
        found = []
        for loader in LOADERS:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(documents, "YAML_LOADER", loader)
                try:
                    found.append(read_documents(data, what="x"))
                except Invalid:
                    return  # the parsers differ in what they call malformed
        assert found[0] == found[1]

    check()
