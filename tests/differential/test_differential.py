"""kudurru beside Knot and NSD: the same random zones and questions, the answers compared section
by section. What we answer is what one of them answers, or `differs.toml` says why not."""

import os
import random
import shutil
from collections import Counter
from collections.abc import Iterator

import dns.flags
import dns.message
import dns.rcode
import dns.rdatatype
import dns.rrset
import pytest

from kudurru.adapters.dns.engine_native import AnswerTable
from kudurru.adapters.dns.zone_images import ZoneImages
from kudurru.domain.dns.zone_set import ZoneSet
from kudurru.domain.ports import Reply
from tests.absent import absent, needs_engine
from tests.conformance.answers import lines, pipeline_of
from tests.conformance.conftest import DIFFERS
from tests.differential.servers import ask_all, ours, peers
from tests.differential.zones import Question, ZoneText, questions, zone_texts
from tests.saying import Say
from tests.zone_files import zone_from_text

ZONES, QUESTIONS = 120, 6000
SHOWN_MAX = 5

pytestmark = pytest.mark.slow


def needs_peers() -> None:
    missing = [program for program in ("knotd", "nsd") if shutil.which(program) is None]
    if missing:
        absent(f"{', '.join(missing)}: not installed")


def test_answers_are_those_of_knot_or_nsd(say: Say) -> None:
    needs_peers()
    number = int(os.environ.get("KUDURRU_SEED", random.SystemRandom().randrange(1 << 32)))
    say(f"seed {number}: differential run, KUDURRU_SEED repeats it")
    zones = zone_texts(ZONES, number)
    asked = questions(zones, QUESTIONS, number)
    pipeline = pipeline_of(*(zone_from_text(zone.text, zone.origin) for zone in zones))
    counts: Counter[str] = Counter()
    unexplained = []
    with peers(zones) as ports, ours(pipeline) as port:
        for question, answers in ask_all({"kudurru": port, **ports}, asked):
            why = verdict(question, answers)
            counts[why] += 1
            if why not in DIFFERS["differential"] and why != "equal":
                unexplained.append(shown(question, answers, zones))
    say(f"suite differential: {counts['equal']} of {counts.total()} equal, {dict(counts)}")
    assert not unexplained, "\n\n".join(unexplained[:SHOWN_MAX])


TARGETS_OF_WILDCARDS = """\
$ORIGIN z0.test.
@ 300 IN SOA ns host 7 3600 600 86400 300
@ 300 IN NS @
@ 300 IN NS ns
@ 300 IN NS w
@ 300 IN HTTPS 0 *
@ 300 IN A 192.0.2.4
* 300 IN A 192.0.2.1
* 300 IN HTTPS 1 .
sub 300 IN NS x.y
sub 300 IN NS ns.sub
m 300 IN MX 1 x.y
m 300 IN MX 2 x.ent
m 300 IN MX 3 x.sub
a.x.ent 300 IN TXT t
"""


def test_addresses_of_targets_that_come_of_a_wildcard_are_added_as_there() -> None:
    """What the random zones found for the name servers of an apex."""
    needs_peers()
    zones = [ZoneText("z0.test.", TARGETS_OF_WILDCARDS)]
    names = ("", "sub.", "a.sub.", "m.", "w.", "*.")
    asked = [
        Question(f"{name}z0.test.", rtype, True)
        for name in names
        for rtype in ("NS", "MX", "HTTPS", "A")
    ]
    pipeline = pipeline_of(zone_from_text(zones[0].text, zones[0].origin))
    with peers(zones) as ports, ours(pipeline) as port:
        found = list(ask_all({"kudurru": port, **ports}, asked))
    unlike = [shown(*one, zones) for one in found if verdict(*one) not in ("equal", "addresses")]
    assert not unlike, "\n\n".join(unlike)
    (apex,) = [answers for question, answers in found if question[:2] == ("z0.test.", "NS")]
    assert additional(apex["kudurru"]) == additional(apex["knot"]) == additional(apex["nsd"])


@needs_engine
def test_the_threads_answer_from_these_zones_what_the_pipeline_answers() -> None:
    number = int(os.environ.get("KUDURRU_SEED", random.SystemRandom().randrange(1 << 32)))
    texts = zone_texts(ZONES, number)
    zones = ZoneSet(zone_from_text(text.text, text.origin) for text in texts)
    pipeline = pipeline_of(*zones)
    images = ZoneImages(AnswerTable(100))
    images.follow(zones, dict, lambda: True)
    while images.advance():
        pass
    answered = 0
    for name, rtype, has_edns in questions(texts, QUESTIONS, number):
        packet = dns.message.make_query(name, rtype, use_edns=has_edns or None).to_wire()
        found, reply = images.core.find(packet), pipeline.handle(packet, "192.0.2.1", "udp")
        assert isinstance(reply, Reply)
        assert found in (None, reply.wire), f"{name} {rtype}, seed {number}"
        answered += found is not None
    assert answered > QUESTIONS // 20


def verdict(question: Question, answers: dict[str, dns.message.Message]) -> str:
    """ "equal", or why it differs: a key of `differs.toml`, or the sections that do."""
    own = answers["kudurru"]
    others = [answers[name] for name in ("knot", "nsd")]
    if any(core(own) == core(other) for other in others):
        differing = []
    else:
        differing = [
            section
            for section, of in CORE.items()
            if of(own) not in [of(other) for other in others]
        ] or ["sections of two servers"]
    theirs = [additional(other) for other in others]
    if question.rtype == "ANY" and (differing or additional(own) not in theirs):
        return "any"
    if not differing and additional(own) not in theirs:
        is_more = any(
            additional(own) > other and only_addresses_of_targets(own, other) for other in theirs
        )
        return "addresses" if is_more else "additional"
    if question.rtype == "DS" and differing and {"CNAME", "DS"} <= types(own.answer):
        return "ds-behind-alias"
    return " ".join(differing) or "equal"


def types(section: list[dns.rrset.RRset]) -> set[str]:
    return {dns.rdatatype.to_text(rrset.rdtype) for rrset in section}


def only_addresses_of_targets(own: dns.message.Message, known: set[tuple[str, ...]]) -> bool:
    """Whether what is there beside the known records belongs to names that the answer names."""
    words = {str(rrset.name).lower() for rrset in own.answer}
    words |= {word.lower() for rrset in own.answer for word in rrset[0].to_text().split()}
    more = additional(own) - known
    return all(
        name in words and rtype in ("A", "AAAA", "SVCB", "HTTPS") for name, _, rtype, _ in more
    )


def header(message: dns.message.Message) -> tuple[str, str]:
    return dns.rcode.to_text(message.rcode()), dns.flags.to_text(message.flags)


def additional(message: dns.message.Message) -> set[tuple[str, ...]]:
    return set(lines(message.additional))


def core(message: dns.message.Message) -> list[object]:
    return [of(message) for of in CORE.values()]


CORE = {
    "header": header,
    "answer": lambda message: set(lines(message.answer)),
    "authority": lambda message: set(lines(message.authority)),
}


def shown(
    question: Question, answers: dict[str, dns.message.Message], zones: list[ZoneText]
) -> str:
    return "\n".join(
        [
            verdict(question, answers),
            str(question),
            *(f"--- {name}\n{answer}" for name, answer in answers.items()),
            *(zone.text for zone in relevant(question, zones)),
        ]
    )


def relevant(question: Question, zones: list[ZoneText]) -> Iterator[ZoneText]:
    return (zone for zone in zones if question.name.endswith("." + zone.origin))
