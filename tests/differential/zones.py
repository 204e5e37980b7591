"""Random zones and questions, small enough that names meet each other often."""

import itertools
from collections.abc import Iterator
from typing import NamedTuple

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from kudurru.domain.dns import master_file, names
from kudurru.domain.dns.zone_rules import check_zone

LABELS = ("a", "b", "*", "c-c", "_x")
OWNER_DEPTH_MAX = 3
RECORDS_MIN, RECORDS_MAX = 8, 20
TYPES = (
    *("A", "AAAA", "TXT", "MX", "SRV", "NS", "CNAME", "DNAME", "DS", "PTR", "SVCB", "HTTPS"),
    *("CAA", "NAPTR", "SOA", "TYPE65280", "ANY"),
)


class ZoneText(NamedTuple):
    origin: str
    text: str


class Question(NamedTuple):
    name: str
    rtype: str
    has_edns: bool


def relative_names(depth: int) -> st.SearchStrategy[str]:
    labels = st.lists(st.sampled_from(LABELS), min_size=1, max_size=depth)
    return labels.map(".".join)


def records(others: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """A line of a zone; targets are names in it, in other zones, or nowhere."""
    owner = relative_names(OWNER_DEPTH_MAX) | st.just("@")
    target = relative_names(OWNER_DEPTH_MAX) | st.just("@") | others | st.just("out.of.bounds.")
    host = st.integers(0, 3)
    data = st.one_of(
        st.builds("A 192.0.2.{}".format, host),
        st.builds("AAAA 2001:db8::{}".format, host),
        st.builds('TXT "{}"'.format, host),
        st.builds("MX {} {}".format, host, target),
        st.builds("SRV 0 0 {} {}".format, host, target),
        st.builds("NS {}".format, target),
        st.builds("CNAME {}".format, target),
        st.builds("DNAME {}".format, target),
        st.builds("DS {} 13 2 {}".format, host, st.just("ab" * 32)),
        st.builds("PTR {}".format, target),
        st.builds("HTTPS {} {}".format, st.integers(0, 1), target | st.just(".")),
        st.builds('CAA 0 issue "{}"'.format, host),
        st.builds("TYPE65280 \\# 2 000{}".format, host),
    )
    return st.builds("{} {} IN {}".format, owner, st.sampled_from((300, 3600)), data)


def zone_texts(count: int, number: int) -> list[ZoneText]:
    """`count` zones that follow from a seed. Their names are those of others' targets."""
    origins = [f"z{i}.test." for i in range(count)]
    elsewhere = st.builds(
        "{}{}".format,
        st.just("") | relative_names(2).map("{}.".format),
        st.sampled_from(origins[: min(count, 6)]),
    )
    lists = drawn(
        st.lists(records(elsewhere), min_size=RECORDS_MIN, max_size=RECORDS_MAX), count, number
    )
    return [whole_zone(origin, lines) for origin, lines in zip(origins, lists, strict=False)]


def whole_zone(origin: str, lines: list[str]) -> ZoneText:
    """A zone of these records, but for those that no zone may have."""
    head = [
        f"$ORIGIN {origin}",
        "@ 3600 IN SOA ns host 7 3600 600 86400 300",
        "@ 3600 IN NS ns",
        "ns 3600 IN A 192.0.2.53",
    ]
    while True:
        text = "\n".join(head + lines) + "\n"
        apex = names.from_text(origin)
        read = master_file.read(text, file="z", origin=apex, default_ttl=300).records
        faults = check_zone(read, apex).faults
        if not faults:
            return ZoneText(origin, same_ttls(text, origin))
        at = int(faults[0].at.rpartition(":")[2]) - 1 - len(head)
        del lines[at if 0 <= at < len(lines) else -1]


def same_ttls(text: str, origin: str) -> str:
    """Records of one RRset with one TTL: servers differ in which of several they take (RFC 2181
    section 5.2 calls it an error)."""
    least: dict[tuple[str, str], int] = {}
    lines = [line.split(None, 4) for line in text.splitlines()[1:]]
    for owner, ttl, _, rtype, _ in lines:
        least[owner, rtype] = min(int(ttl), least.get((owner, rtype), 1 << 31))
    unique = dict.fromkeys(
        f"{owner} {least[owner, rtype]} IN {rtype} {data}" for owner, _, _, rtype, data in lines
    )
    return "\n".join([f"$ORIGIN {origin}", *unique]) + "\n"


def questions(zones: list[ZoneText], count: int, number: int) -> list[Question]:
    """Questions about names in and around the zones, each once."""
    known = st.sampled_from(sorted({name for zone in zones for name in names_in(zone)}))
    below = st.just("") | relative_names(3).map("{}.".format)
    elsewhere = st.sampled_from(["elsewhere.", "test.", "."])
    name = known | st.builds("{}{}".format, below, known) | elsewhere
    question = st.builds(Question, name, st.sampled_from(TYPES), st.booleans())

    found: dict[Question, None] = {}
    for turn in itertools.count():
        for some in drawn(st.lists(question, min_size=20, max_size=20), 100, number + turn):
            found.update(dict.fromkeys(some))
        if len(found) >= count:
            return list(found)[:count]
    raise AssertionError("it counts for ever")


def drawn(strategy: st.SearchStrategy, count: int, number: int) -> list:
    """What hypothesis makes of a seed."""
    found: list = []

    @seed(number)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def collect(one) -> None:
        found.append(one)

    collect()
    return found


def names_in(zone: ZoneText) -> Iterator[str]:
    """Owners, and the last words of records, which are names where records point at something."""
    for line in zone.text.splitlines()[1:]:
        owner, *_, last = line.split()
        for word in (owner, last):
            if word == "@":
                yield zone.origin
            elif word.endswith(".test."):
                yield word
            elif word[0] in "abc*_n" and len(word) < 32:
                yield f"{word}.{zone.origin}"
