"""Bad input: one clear error with the place and what to do, exit code 1, and nothing changed."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.blackbox.program import command, kudurru, records, serving, write_json, zone

LABEL = "a" * 63


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory with the zone home.arpa and www in it."""
    folder = tmp_path_factory.mktemp("bad")
    www = records("www.home.arpa", "home.arpa", ("www.home.arpa", "A", "192.0.2.1"))
    file = write_json(folder / "good.json", zone("home.arpa"), www)
    assert command("apply", "-f", file, "--data", folder / "data").code == 0
    return folder / "data"


@pytest.fixture(scope="module", autouse=True)
def nothing_changes(node: Path) -> Iterator[None]:
    before = command("history", "--data", node).out
    yield
    assert command("history", "--data", node).out == before
    assert command("audit", "verify", "--data", node).code == 0


def record_set(endpoint: str, more: str = "") -> str:
    return (
        "apiVersion: kudurru.io/v1alpha1\n"
        "kind: DNSRecordSet\n"
        "metadata: {name: x.home.arpa}\n"
        "spec:\n"
        "  zoneRef: {name: home.arpa}\n"
        "  endpoints:\n"
        f"  - {{{endpoint}}}\n{more}"
    )


A = "recordType: A, targets: [192.0.2.1]"
ZONE = "apiVersion: kudurru.io/v1alpha1\nkind: DNSZone\nmetadata: {name: n}\nspec: {zoneName: n}\n"

MANIFESTS = {
    # what is wrong: (manifest, line, words of the message)
    "unknown field": (record_set(f"dnsName: x.home.arpa, {A}, ttl: 5"), 7, "unknown field; there"),
    "misspelt field": (
        record_set(f"dnsName: x.home.arpa, {A}, recordTtl: 5"),
        7,
        "did you mean 'recordTTL'?",
    ),
    "unknown kind": (ZONE.replace("DNSZone", "Zone"), 2, "did you mean 'DNSZone'?"),
    "unknown version": (ZONE.replace("v1alpha1", "v9"), 1, "write kudurru.io/v1alpha1"),
    "missing kind": (ZONE.replace("kind: DNSZone\n", ""), 1, "kind: missing"),
    "name over 255 octets": (
        record_set(f"dnsName: {LABEL}.{LABEL}.{LABEL}.{LABEL}.home.arpa, {A}"),
        7,
        "takes 267 octets; at most 255",
    ),
    "label over 63 octets": (
        record_set(f"dnsName: a{LABEL}.home.arpa, {A}"),
        7,
        "a label of 64 octets",
    ),
    "TTL over 2^31-1": (
        record_set(f"dnsName: x.home.arpa, {A}, recordTTL: 2147483648"),
        7,
        "2147483648 is too large; at most 2147483647",
    ),
    "target that does not parse": (
        record_set("dnsName: x.home.arpa, recordType: A, targets: [192.0.2.300]"),
        7,
        "targets[0]: '192.0.2.300' is not an IPv4 address",
    ),
    "unknown type": (
        record_set("dnsName: x.home.arpa, recordType: BOGUS, targets: [x]"),
        7,
        "unknown record type 'BOGUS'",
    ),
    "CNAME beside other data": (
        record_set(
            f"dnsName: x.home.arpa, {A}",
            "  - {dnsName: x.home.arpa, recordType: CNAME, targets: [y.home.arpa]}\n",
        ),
        7,
        "a CNAME stands alone at its name (RFC 2181 section 10.1)",
    ),
    "a second SOA": (
        record_set("dnsName: home.arpa, recordType: SOA, targets: ['a. b. 1 2 3 4 5']"),
        7,
        "the SOA is written in the DNSZone, as spec.soa",
    ),
    "record outside its zone": (
        record_set(f"dnsName: x.example.com, {A}"),
        7,
        "'x.example.com' is outside the zone home.arpa.",
    ),
    "record outside a zone that comes later in the file": (
        record_set(f"dnsName: x.home.arpa, {A}").replace("home.arpa}", "n}") + "---\n" + ZONE,
        7,
        "'x.home.arpa' is outside the zone n.",
    ),
    "another zone name": (
        ZONE.replace("name: n", "name: home.arpa"),
        4,
        "immutable: it is 'home.arpa'",
    ),
    "a boolean for a text": (
        ZONE.replace("{name: n}", "{name: n, annotations: {kudurru.io/enabled: false}}"),
        3,
        'put it in quotes: "false"',
    ),
    "no, which is Norway": (ZONE.replace("zoneName: n", "zoneName: no"), 4, 'quotes: "no"'),
    "alias": (ZONE + "a: &x 1\nb: *x\n", 5, "anchors and aliases are not read"),
    "key given twice": (ZONE.replace("zoneName: n", "zoneName: n, zoneName: m"), 4, "given twice"),
    "document over the limit": ("#" + "x" * (8 << 20), 1, "at most 8388608 (8 MiB)"),
    "the same object twice": (f"{ZONE}---\n{ZONE}", 6, "is given twice, first at"),
    "fault in a list": (
        "kind: List\nitems:\n- " + ZONE.replace("\n", "\n  ").replace("Name: n", "Name: no"),
        6,
        "spec.zoneName: expected text",
    ),
    "not YAML": ("[\n", 2, "not YAML"),
    "not an object": ("hello\n", 1, "begin with apiVersion, kind, metadata"),
    "not UTF-8": (b"\xff\xfe\xff".decode("latin-1"), 1, "is not UTF-8"),
}


@pytest.mark.parametrize("case", MANIFESTS)
def test_a_bad_manifest_is_refused_with_its_line(case: str, node: Path, tmp_path: Path) -> None:
    text, line, message = MANIFESTS[case]
    file = tmp_path / "bad.yaml"
    file.write_text(text, encoding="latin-1")
    done = command("apply", "-f", file, "--data", node)
    assert (done.code, done.out) == (1, "")
    assert f"{file}:{line}: " in done.err
    assert message in done.err
    assert done.err.startswith("error: ")


def test_all_faults_of_all_files_are_told_at_once(node: Path, tmp_path: Path) -> None:
    for i, case in enumerate(("TTL over 2^31-1", "unknown kind", "alias")):
        (tmp_path / f"{i}.yaml").write_text(MANIFESTS[case][0])
    done = command("apply", "-f", tmp_path, "--data", node)
    assert done.code == 1
    for place in ("0.yaml:7: ", "1.yaml:2: ", "2.yaml:5: "):
        assert place in done.err


HEAD = """\
$ORIGIN example.org.
$TTL 300
@ IN SOA ns1 hostmaster 7 7200 900 1209600 300
@ IN NS ns1
ns1 IN A 192.0.2.53
"""

ZONE_FILES = {
    "a second SOA": (HEAD + "@ IN SOA ns1 hostmaster 8 7200 900 1209600 300\n", 6, "a second SOA"),
    "CNAME beside other data": (HEAD + "ns1 IN CNAME @\n", 6, "an alias has no other data"),
    "record outside the zone": (HEAD + "a.example.com. A 192.0.2.1\n", 6, "is outside the zone"),
    "TTL over 2^31-1": (HEAD + "a 2147483648 A 192.0.2.1\n", 6, "at most 2147483647"),
    "label over 63 octets": (HEAD + f"a{LABEL} A 192.0.2.1\n", 6, "a label of 64 octets"),
    "name over 255 octets": (
        HEAD + f"{LABEL}.{LABEL}.{LABEL}.{LABEL} A 192.0.2.1\n",
        6,
        "at most 255",
    ),
    "rdata that does not parse": (HEAD + "a A 192.0.2.300\n", 6, "is not an IPv4 address"),
    "unknown type": (HEAD + "a BOGUS x\n", 6, "unknown record type"),
    "open quote": (HEAD + 'a TXT "x\n', 6, "a quote is not closed"),
    "no origin": ("a A 192.0.2.1\n", 1, "(--zone)"),
    "include of nothing": (HEAD + "$INCLUDE nowhere\n", 6, "there is no such file"),
    "include from elsewhere": (HEAD + "$INCLUDE /etc/passwd\n", 6, "leaves the folder"),
    "generate without end": (HEAD + "$GENERATE 1-100000 a$ A 192.0.2.1\n", 6, "at most 65536"),
}


@pytest.mark.parametrize("case", ZONE_FILES)
@pytest.mark.parametrize("verb", ["import", "check"])
def test_a_bad_zone_file_is_refused_with_its_line(
    verb: str, case: str, node: Path, tmp_path: Path
) -> None:
    text, line, message = ZONE_FILES[case]
    file = tmp_path / "bad.zone"
    file.write_text(text)
    done = command("zone", verb, file, "--data", node)
    assert (done.code, done.out) == (1, "")
    assert f"{file}:{line}: " in done.err
    assert message in done.err
    assert done.err.count("bad.zone:") <= 2, "the place is said once"


FAILING = [
    # (arguments, words of the message); the data directory is added
    (("apply", "-f", "/nonexistent.yaml"), "cannot be read: No such file"),
    (("apply", "-f", "/dev/null"), "no objects in /dev/null"),
    (("zone", "import", "/nonexistent.zone"), "there is no such file"),
    (("zone", "import", "/tmp"), "it is a folder; give a master file"),
    (("zone", "export", "nope"), "there are: home.arpa."),
    (("zone", "check", "nope"), "neither a file nor a zone"),
    (("get", "bogus"), "there are DNSZone (zone)"),
    (("get", "zons"), "did you mean DNSZone?"),
    (("get", "zone", "nope"), "DNSZone nope does not exist"),
    (("get", "rs", "a/b"), "name: 'a/b' is no RFC 1123 subdomain"),
    (("get", "rs", "-n", "A b"), "namespace: 'A b' is no RFC 1123 label"),
    (("get", "rs", "-l", "a b=c"), "is not NAME=VALUE"),
    (("get", "zone", "--at", "99"), "position 99 is not in the log, which ends at 5"),
    (("get", "zone", "--at", "yesterday"), "write for example 1042"),
    (("get", "zone", "--at", "2020-01-01T00:00:00"), "before the first event"),
    (("get", "zone", "--at", "yesterday"), "'1d ago'"),
    (("get", "zone", "--at", "2020-01-01T00:00:00Z"), "is before the first event"),
    (("get", "zone", "--at", "mark:x"), "there is no mark 'x'"),
    (("describe", "zone", "nope"), "does not exist"),
    (("delete", "rs", "www.home.arpa", "nope"), "DNSRecordSet default/nope does not exist"),
    (("delete", "rs", "www.home.arpa", "--manager", "x"), "is managed by 'kudurru'"),
    (("delete", "rs", "www.home.arpa", "--manager", ""), "manager: empty"),
    (("delete", "rs", "www.home.arpa", "--manager", "external-dns"), "is reserved"),
    (("history", "nope"), "'nope' is not KIND/NAME, such as rs/www; of a zone: --zone Z"),
    (("history", "--type", "A"), "a record type is that of a name: give the name too"),
    (("history", "--name", "a..b"), "'a..b': "),
    (("history", "--since", "whenever"), "write for example 1042"),
    (("history", "--since", "9" * 30), "write for example 1042"),
    (("delete", "rs", "www.home.arpa", "--reason", "\udcff"), "reason: half of a surrogate pair"),
    (("diff", "--from", "3", "--to", "1"), "--to 1 is before --from 3"),
    (("query", "a..b"), "has an empty label"),
    (("query", "www.home.arpa", "BOGUS"), "unknown record type 'BOGUS'"),
    (("replay", "--projection", "nope"), "'nope' is none of"),
    (("replay", "--export", "/proc/nope"), "cannot be written"),
]


@pytest.mark.parametrize(
    ("args", "message"),
    FAILING,
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_cannot_be_done_says_why(args: tuple[str, ...], message: str, node: Path) -> None:
    done = command(*args, "--data", node)
    assert (done.code, done.out) == (1, "")
    assert message in done.err
    assert done.err.startswith("error: ")
    assert len(done.err.splitlines()) == 1


USAGE = [
    (),
    ("bogus",),
    ("get",),
    ("get", "zone", "-o", "xml"),
    ("get", "zone", "--bogus"),
    ("get", "zone", "--watch", "--at", "1"),
    ("apply",),
    ("delete", "rs"),
    ("diff",),
    ("history", "--limit", "0"),
    ("history", "--limit", "many"),
    ("audit", "verify", "--level", "deep"),
    ("audit", "tail", "--lines", "-1"),
    ("zone",),
    ("zone", "bogus"),
]


@pytest.mark.parametrize("args", USAGE, ids=" ".join)
def test_wrong_usage_exits_2_and_shows_the_usage(args: tuple[str, ...]) -> None:
    done = command(*args)
    assert done.code == 2
    assert done.out == ""
    assert "Usage: kudurru" in done.err


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (("get", "zone", "-o", "csv"), "'-o' / '--output': 'csv' is not one of"),
        (("audit", "verify", "--level", "deep"), "'--level': 'deep' is not one of"),
        (("history", "--limit", "many"), "'--limit': a whole number is wanted"),
        (("history", "--limit", "0"), "'--limit': has to be greater than or equal to 1"),
        (("audit", "prove", "first"), "'SEQ': a whole number is wanted"),
    ],
)
def test_what_a_value_has_to_be_is_said_to_people(args: tuple[str, ...], told: str) -> None:
    done = command(*args)
    assert done.code == 2
    assert told in done.err


def test_a_misspelt_command_is_answered_with_the_nearest() -> None:
    done = kudurru("aply")
    assert done.code == 2
    assert "Did you mean 'apply'?" in done.err


LISTENERS = [
    ("bogus", "'bogus' is no address with a port"),
    ("127.0.0.1:99999", "port 99999 in '127.0.0.1:99999' is above 65535"),
    ("localhost:53", "'localhost' is no IP address; write 192.0.2.1"),
    ("192.0.2.1:5300", "no interface of this machine has this address"),
]


@pytest.mark.parametrize(("address", "message"), LISTENERS)
def test_a_bad_listener_is_refused(address: str, message: str, tmp_path: Path) -> None:
    done = command("serve", "--data", tmp_path / "data", "--dns", address)
    assert (done.code, done.out) == (1, "")
    assert message in done.err
    assert len(done.err.splitlines()) == 1


def test_what_the_server_refuses_has_its_line_too(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with serving(data):
        file = write_json(tmp_path / "good.json", zone("home.arpa"))
        assert command("apply", "-f", file, "--data", data).code == 0
        text, line, message = MANIFESTS["record outside its zone"]
        bad = tmp_path / "bad.yaml"
        bad.write_text(text)
        done = command("apply", "-f", bad, "--data", data)
        assert (done.code, done.out) == (1, "")
        assert f"{bad}:{line}: " in done.err
        assert message in done.err


HOSTILE = "\x1b[31mred\x07\x9b\u202e"


def test_control_characters_from_outside_are_escaped_where_they_are_shown(tmp_path: Path) -> None:
    data = tmp_path / "data"
    text = records("t.home.arpa", "home.arpa", ("t\\027.home.arpa", "TXT", HOSTILE))
    text["metadata"]["annotations"] = {"kudurru.io/comment": HOSTILE}
    file = write_json(tmp_path / "t.json", zone("home.arpa"), text)
    manager = ("--manager", f"m{HOSTILE}")
    reason = ("--reason", HOSTILE + "\nfaked line")
    assert command("apply", "-f", file, "--data", data, *manager, *reason).code == 0
    shown = [
        command(*args, "--data", data)
        for args in (
            ("get", "rs"),
            ("get", "rs", "-o", "wide"),
            ("get", "rs", "-o", "yaml"),
            ("describe", "rs", "t.home.arpa"),
            ("history",),
            ("history", "-o", "wide"),
            ("audit", "tail"),
            ("diff", "--from", "1"),
            ("query", "t\\027.home.arpa", "TXT"),
            ("query", f"{HOSTILE}.home.arpa", "TXT"),
            ("zone", "export", "home.arpa"),
            ("get", HOSTILE),
            ("get", "rs", HOSTILE),
            ("delete", "rs", "t.home.arpa"),
        )
    ]
    for done in shown:
        for line in (done.out + done.err).splitlines():
            assert line.isprintable() or "\t" in line, line
            assert "\x1b" not in line
            assert not line.startswith("faked")
    assert (
        json.loads(command("get", "rs", "-o", "jsonl", "--data", data).out)["spec"]
        == (text["spec"])
    )
