"""What clients get where policies have a say."""

from typing import Any

import dns.edns
import dns.flags
import dns.message
import dns.name
import dns.rcode
import dns.rdataclass
import dns.rdatatype
import dns.rrset
import dns.zone
import msgspec
import pytest

from kudurru.adapters.memory.clock import ManualClock
from kudurru.adapters.memory.neighbours import FixedNeighbours
from kudurru.domain.dns import names
from kudurru.domain.dns.messages import Query
from kudurru.domain.dns.resolved import Resolved
from kudurru.domain.dns.responses import read_response
from kudurru.domain.dns.zone_set import ZoneSet
from kudurru.domain.filtering.clients import mac_from_text, packed_address
from kudurru.domain.filtering.decision import Filters
from kudurru.domain.filtering.policies import BlockDefaults, CompiledPolicy
from kudurru.domain.later import Later
from kudurru.domain.lists.memory import MemoryMatcher
from kudurru.domain.lists.rules import Context
from kudurru.domain.objects import Key
from kudurru.domain.ports import Reply
from kudurru.projections.pipeline.ingress import Identity
from kudurru.projections.pipeline.pipeline import Pipeline
from kudurru.projections.pipeline.policy import Policy
from kudurru.projections.pipeline.resolver import Route
from tests.filtering import groups, lists, policy
from tests.projections.test_pipeline import raise_again
from tests.zone_files import zone_from_text

KIDS, OTHER = "192.0.2.1", "192.0.2.2"

ZONE = """
home.example. 300 IN SOA ns.home.example. host.home.example. 1 3600 600 86400 300
home.example. 300 IN NS ns.home.example.
nas.home.example. 300 IN A 192.0.2.50
www.home.example. 300 IN CNAME nas.home.example.
"""
BEHIND_SHOP = "CNAME 60 x.tracker.example. | CNAME 50 y.cdn.example. | A 40 192.0.2.9"
BEHIND_WWW = "CNAME 300 nas.home.example. | A 300 192.0.2.50"


def pipeline_of(
    *policies: CompiledPolicy, known: dict[bytes, bytes] | None = None, **more: Any
) -> Pipeline:
    resolver, zones = more.pop("resolver", None), more.pop("zones", None)
    clients = groups(kids=[{"ip": KIDS}], tv=[{"mac": "aa:bb:cc:00:01:02"}])
    filters = Filters(policies, clients, **more)
    return Pipeline(
        zones or ZoneSet([zone_from_text(ZONE, "home.example.")]),
        lambda: True,
        clock=ManualClock(),
        identity=Identity(),
        is_lameduck=lambda: False,
        on_exception=raise_again,
        policy=Policy(lambda: filters, FixedNeighbours(known)),
        resolver=resolver,
    )


def ask(
    pipeline: Pipeline, name: str, rtype: str = "A", client: str = OTHER, proto: str = "udp"
) -> tuple[dns.message.Message, bool] | None:
    query = dns.message.make_query(name, rtype, use_edns=True)
    reply = pipeline.handle(query.to_wire(), client, proto)
    if reply is None:
        return None
    assert isinstance(reply, Reply)
    message = dns.message.from_wire(reply.wire)
    assert message.question == query.question
    return message, reply.memo


def told(pipeline: Pipeline, *question: str, **more: str) -> str:
    """Code and records of the answer, in a line."""
    found = ask(pipeline, *question, **more)
    return shown(found[0]) if found is not None else "dropped"


def shown(message: dns.message.Message) -> str:
    records = [
        f"{dns.rdatatype.to_text(rrset.rdtype)} {rrset.ttl} {rdata.to_text()}"
        for rrset in message.answer
        for rdata in rrset
    ]
    return " | ".join([dns.rcode.to_text(message.rcode()), *records])


@pytest.mark.parametrize(
    ("mode", "rtype", "answer"),
    [
        ("zeroip", "A", "NOERROR | A 30 0.0.0.0"),
        ("zeroip", "AAAA", "NOERROR | AAAA 30 ::"),
        ("zeroip", "HTTPS", "NOERROR"),
        ("zeroip", "SVCB", "NOERROR"),
        ("zeroip", "TXT", "NOERROR"),
        ("zeroip", "ANY", "NOERROR | A 30 0.0.0.0"),
        ("nxdomain", "A", "NXDOMAIN"),
        ("nxdomain", "TXT", "NXDOMAIN"),
        ("nodata", "A", "NOERROR"),
        ("refused", "A", "REFUSED"),
        ("refused", "MX", "REFUSED"),
        ("custom", "A", "NOERROR | A 30 192.0.2.80 | A 30 192.0.2.81"),
        ("custom", "AAAA", "NOERROR | AAAA 30 2001:db8::80"),
        ("custom", "HTTPS", "NOERROR"),
    ],
)
def test_a_blocked_name_is_blocked_for_every_type(mode: str, rtype: str, answer: str) -> None:
    ips = ["192.0.2.80", "192.0.2.81", "2001:db8::80"] if mode == "custom" else []
    one = policy("one", deny=["ads.example"], blockMode=mode, customIPs=ips)
    found = pipeline_of(one)
    assert told(found, "ads.example", rtype) == answer
    assert told(found, "other.example", rtype) == "REFUSED"


def test_a_blocked_name_is_no_referral_to_stub_resolvers() -> None:
    for mode in ("nodata", "zeroip", "nxdomain"):
        one = policy("one", deny=["ads.example"], blockMode=mode)
        found = ask(pipeline_of(one), "ads.example", "TXT")
        assert found is not None
        assert found[0].flags & dns.flags.RA
        assert not found[0].flags & dns.flags.AA


def test_a_no_tells_how_long_it_may_be_kept() -> None:
    one = policy("one", deny=["ads.example"], blockTTL=77)
    found = ask(pipeline_of(one), "ads.example", "TXT")
    assert found is not None
    (soa,) = found[0].authority
    assert (soa.name.to_text(), soa.ttl, soa[0].minimum) == ("ads.example.", 77, 77)


def test_a_policy_that_says_nothing_blocks_as_the_settings_say() -> None:
    defaults = BlockDefaults("nxdomain", 5)
    found = pipeline_of(policy("one", deny=["ads.example"]), defaults=defaults)
    assert told(found, "ads.example") == "NXDOMAIN"
    own = policy("one", deny=["ads.example"], blockMode="zeroip")
    assert told(pipeline_of(own, defaults=defaults), "ads.example") == "NOERROR | A 5 0.0.0.0"


def test_the_client_is_told_policy_and_list_and_never_the_rule() -> None:
    one = policy("one", deny=["ads.example"], blockListRefs=["big"])
    found = pipeline_of(one, matcher=lists(big=["||tracker.example^"]))
    for name, text in (
        ("ads.example", "policy default/one"),
        ("tracker.example", "policy default/one, list default/big"),
    ):
        reply = ask(found, name)
        assert reply is not None
        (ede,) = [o for o in reply[0].options if isinstance(o, dns.edns.EDEOption)]
        assert (ede.code, ede.text) == (dns.edns.EDECode.BLOCKED, text)


def test_local_zones_come_before_every_policy() -> None:
    one = policy("one", deny=["*.home.example", "/./"], rewrites=[
        {"name": "nas.home.example", "targets": ["203.0.113.1"]}])  # fmt: skip
    assert told(pipeline_of(one), "nas.home.example") == "NOERROR | A 300 192.0.2.50"


REWRITES = [
    {"name": "tv.example", "targets": ["192.0.2.60", "192.0.2.61"], "ttl": 60},
    {"name": "tv.example", "type": "AAAA", "targets": ["2001:db8::60"]},
    {"name": "*.lab.example", "targets": ["192.0.2.70"]},
    {"name": "box.lab.example", "type": "CNAME", "targets": ["www.home.example."]},
    {"name": "far.example", "type": "CNAME", "targets": ["elsewhere.example."]},
    {"name": "svc.example", "type": "HTTPS", "targets": ["1 . alpn=h2"]},
]


@pytest.mark.parametrize(
    ("name", "rtype", "answer"),
    [
        ("tv.example", "A", "NOERROR | A 60 192.0.2.60 | A 60 192.0.2.61"),
        ("tv.example", "AAAA", "NOERROR | AAAA 30 2001:db8::60"),
        ("tv.example", "HTTPS", "NOERROR"),
        ("tv.example", "SVCB", "NOERROR"),
        ("tv.example", "ANY", "NOERROR | A 60 192.0.2.60 | A 60 192.0.2.61"),
        ("tv.example", "TXT", "REFUSED"),  # goes on; nobody forwards here
        ("a.b.lab.example", "A", "NOERROR | A 30 192.0.2.70"),
        ("a.lab.example", "AAAA", "NOERROR"),
        ("lab.example", "A", "REFUSED"),
        (
            "box.lab.example",
            "A",
            "NOERROR | CNAME 30 www.home.example. | CNAME 300 nas.home.example. | A 300 192.0.2.50",
        ),
        ("box.lab.example", "CNAME", "NOERROR | CNAME 30 www.home.example."),
        (
            "box.lab.example",
            "TXT",
            "NOERROR | CNAME 30 www.home.example. | CNAME 300 nas.home.example.",
        ),
        ("far.example", "A", "NOERROR | CNAME 30 elsewhere.example."),
        ("svc.example", "HTTPS", 'NOERROR | HTTPS 30 1 . alpn="h2"'),
        ("svc.example", "A", "NOERROR"),
    ],
)
def test_a_rewritten_name_has_what_the_policy_gives_it(name: str, rtype: str, answer: str) -> None:
    assert told(pipeline_of(policy("one", rewrites=REWRITES)), name, rtype) == answer


def test_safe_search_answers_with_the_safe_name() -> None:
    one = policy("one", safeSearch=True)
    assert told(pipeline_of(one), "www.google.com") == (
        "NOERROR | CNAME 300 forcesafesearch.google.com."
    )


def test_a_blocked_type_has_no_data_and_the_name_stays() -> None:
    one = policy("one", blockTypes=["HTTPS"], blockMode="nxdomain")
    assert told(pipeline_of(one), "x.example", "HTTPS") == "NOERROR"
    assert told(pipeline_of(one), "x.example", "A") == "REFUSED"


RPZ_LIKE = [
    "||a.example^$dnsrewrite=192.0.2.90",
    "||c.example^$dnsrewrite=www.home.example",
    "||n.example^$dnsrewrite=NXDOMAIN",
    "||r.example^$dnsrewrite=REFUSED",
    "||s.example^$dnsrewrite=SERVFAIL",
]


@pytest.mark.parametrize(
    ("name", "rtype", "answer"),
    [
        ("a.example", "A", "NOERROR | A 30 192.0.2.90"),
        ("a.example", "AAAA", "NOERROR"),
        (
            "c.example",
            "A",
            "NOERROR | CNAME 30 www.home.example. | CNAME 300 nas.home.example. | A 300 192.0.2.50",
        ),
        ("n.example", "A", "NXDOMAIN"),
        ("r.example", "A", "REFUSED"),
        ("s.example", "TXT", "SERVFAIL"),
    ],
)
def test_a_rule_of_a_list_may_say_what_to_answer(name: str, rtype: str, answer: str) -> None:
    one = policy("one", blockListRefs=["own"], blockMode="custom", customIPs=["192.0.2.1"])
    assert told(pipeline_of(one, matcher=lists(own=RPZ_LIKE)), name, rtype) == answer


CHAINS = [
    {"name": "a.example", "type": "CNAME", "targets": ["b.example."]},
    {"name": "b.example", "type": "CNAME", "targets": ["c.example."]},
    {"name": "c.example", "targets": ["192.0.2.3"]},
    {"name": "home.example.org", "type": "CNAME", "targets": ["b2.example."]},
    {"name": "b2.example", "type": "CNAME", "targets": ["nas.home.example."]},
    {"name": "one.example", "type": "CNAME", "targets": ["two.example."]},
    {"name": "two.example", "type": "CNAME", "targets": ["one.example."]},
    {"name": "self.example", "type": "CNAME", "targets": ["SELF.example."]},
    {"name": "out.example", "type": "CNAME", "targets": ["onward.example."]},
    {"name": "onward.example", "type": "CNAME", "targets": ["fine.example."]},
    {"name": "ad.example", "type": "CNAME", "targets": ["blocked.example."]},
]


@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize(
    ("name", "rtype", "answer"),
    [
        ("a.example", "A", "NOERROR | CNAME 30 b.example. | CNAME 30 c.example. | A 30 192.0.2.3"),
        ("a.example", "AAAA", "NOERROR | CNAME 30 b.example. | CNAME 30 c.example."),
        ("a.example", "CNAME", "NOERROR | CNAME 30 b.example."),
        (
            "home.example.org",
            "A",
            "NOERROR | CNAME 30 b2.example. | CNAME 30 nas.home.example. | A 300 192.0.2.50",
        ),
        ("one.example", "A", "NOERROR | CNAME 30 two.example. | CNAME 30 one.example."),
        ("self.example", "A", "NOERROR | CNAME 30 SELF.example."),
        (
            "out.example",
            "A",
            "NOERROR | CNAME 30 onward.example. | CNAME 30 fine.example. | A 60 192.0.2.7",
        ),
        # A rewrite has precedence over what lists and rules say of where it leads.
        ("ad.example", "A", "NOERROR | CNAME 30 blocked.example. | A 60 192.0.2.8"),
    ],
)
def test_rewrites_lead_on_to_other_rewrites(
    later: bool, name: str, rtype: str, answer: str
) -> None:
    upstream = Upstream(
        "fine.example 60 IN A 192.0.2.7", "blocked.example 60 IN A 192.0.2.8", later=later
    )
    one = policy("one", rewrites=CHAINS, deny=["blocked.example"])
    assert told_at_last(pipeline_of(one, resolver=upstream), upstream, name, rtype) == answer


def told_at_last(pipeline: Pipeline, upstream: "Upstream", name: str, rtype: str) -> str:
    """What is told, where the upstream may take its time for each of its answers."""
    query = dns.message.make_query(name, rtype, use_edns=True)
    reply = pipeline.handle(query.to_wire(), OTHER, "udp")
    if isinstance(reply, Later):
        replies: list[Reply | None] = []
        reply.then(replies.append)
        while upstream.waiting:
            later, resolved = upstream.waiting.pop(0)
            later.settle(resolved)
        (reply,) = replies
    assert reply is not None
    return shown(dns.message.from_wire(reply.wire))


@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("a.example", "NOERROR | CNAME 30 b.example. | A 30 192.0.2.1"),
        ("n.example", "NXDOMAIN | CNAME 30 none.example."),
        ("o.example", "NOERROR | CNAME 30 open.example. | A 60 192.0.2.7"),
        # An alias of an upstream's leads to a name that a list gives another alias.
        ("www.shop.example", "NOERROR | CNAME 30 open.example. | A 60 192.0.2.7"),
        ("www.other.example", "NOERROR | CNAME 30 b.example. | A 30 192.0.2.1"),
    ],
)
def test_an_alias_out_of_a_list_leads_on_through_its_rules(
    later: bool, name: str, answer: str
) -> None:
    rules = [
        *("a.example CNAME b.example.", "b.example A 192.0.2.1"),
        *("n.example CNAME none.example.", "none.example CNAME ."),
        *("o.example CNAME open.example.", "tracker.example CNAME open.example."),
        "spy.example CNAME b.example.",
    ]
    matcher = MemoryMatcher()
    matcher.put(Key("BlockList/default/rpz"), [("inline", rules)], Context(format="rpz"))
    upstream = Upstream(
        "open.example 60 IN A 192.0.2.7",
        "www.shop.example 60 IN CNAME tracker.example.",
        "www.other.example 60 IN CNAME spy.example.",
        later=later,
    )
    one = policy("one", blockListRefs=["rpz"])
    found = pipeline_of(one, matcher=matcher, resolver=upstream)
    assert told_at_last(found, upstream, name, "A") == answer


def test_an_address_of_an_answer_may_be_a_trigger_of_a_policy_zone() -> None:
    rules = ["32.66.2.0.192.rpz-ip CNAME .", "128.66.zz.db8.2001.rpz-ip AAAA 2001:db8::1"]
    matcher = MemoryMatcher()
    matcher.put(Key("BlockList/default/rpz"), [("inline", rules)], Context(format="rpz"))
    found = pipeline_of(
        policy("one", blockListRefs=["rpz"]), matcher=matcher, resolver=Upstream(*RECORDS)
    )
    assert told(found, "addr.example") == "NXDOMAIN"
    assert told(found, "addr.example", "AAAA") == "NOERROR | AAAA 30 2001:db8::1"
    assert told(found, "fine.example") == "NOERROR | A 60 192.0.2.7"


def test_who_asks_decides_what_is_answered() -> None:
    kids = policy("kids", clientGroupRefs=["kids"], deny=["games.example"])
    tv = policy("tv", clientGroupRefs=["tv"], deny=["spy.example"])
    television = "192.0.2.77"
    known = {packed_address(television): mac_from_text("aa:bb:cc:00:01:02")}
    found = pipeline_of(kids, tv, known=known)
    for client in (KIDS, OTHER, KIDS, f"::ffff:{KIDS}"):
        blocked = told(found, "games.example", client=client).startswith("NOERROR")
        assert blocked == client.endswith(KIDS)
    assert told(found, "spy.example", client=television).startswith("NOERROR")
    assert told(found, "spy.example", client=OTHER) == "REFUSED"


def test_a_client_may_be_known_by_what_it_calls_itself_or_where_it_asks() -> None:
    clients = groups(phone=[{"clientID": "Anna-Phone"}], guest=[{"listener": "192.0.2.53:53"}])
    filters = Filters(
        [
            policy("phone", clientGroupRefs=["phone"], deny=["a.example"]),
            policy("guest", clientGroupRefs=["guest"], deny=["b.example"]),
        ],
        clients,
    )
    found = Pipeline(
        ZoneSet([]),
        lambda: True,
        clock=ManualClock(),
        identity=Identity(),
        is_lameduck=lambda: False,
        on_exception=raise_again,
        policy=Policy(lambda: filters, FixedNeighbours()),
    )
    for name, client_id, listener, is_blocked in (
        ("a.example", "anna-phone", "", True),
        ("a.example", "ben-phone", "", False),
        ("b.example", "", "192.0.2.53:53", True),
        ("b.example", "", "192.0.2.54:53", False),
    ):
        query = dns.message.make_query(name, "A")
        reply = found.handle(query.to_wire(), OTHER, "tls", client_id, listener)
        assert isinstance(reply, Reply)
        assert (dns.message.from_wire(reply.wire).rcode() == dns.rcode.NOERROR) == is_blocked


def test_an_answer_is_remembered_only_where_everybody_gets_it() -> None:
    kids = policy("kids", clientGroupRefs=["kids"], deny=["games.example"])
    personal = ["||a.example^$client=192.0.2.1"]
    for found, memos in (
        (pipeline_of(policy("one", deny=["games.example"])), {"games": True, "x": True}),
        (pipeline_of(kids), {"games": False, "x": False}),
        (
            pipeline_of(policy("one", blockListRefs=["own"]), matcher=lists(own=personal)),
            {"a": False, "x": True},
        ),
    ):
        for client in (KIDS, OTHER):
            for name, memo in memos.items():
                reply = ask(found, f"{name}.example", client=client)
                assert reply is not None
                assert reply[1] == memo, name
            local = ask(found, "nas.home.example", client=client)
            assert local is not None
            assert local[1]  # local zones are the same for all


def test_rules_may_drop_a_query_or_send_the_client_to_tcp() -> None:
    rpz = ["d.example CNAME rpz-drop.", "t.example CNAME rpz-tcp-only."]
    matcher = MemoryMatcher()
    matcher.put(Key("BlockList/default/rpz"), [("inline", rpz)], Context(format="rpz"))
    found = pipeline_of(policy("one", blockListRefs=["rpz"]), matcher=matcher)
    assert told(found, "d.example") == "dropped"
    assert found.statistics().dropped["policy"] == 1
    reply = ask(found, "t.example")
    assert reply is not None
    assert reply[0].flags & dns.flags.TC
    assert not reply[0].answer
    assert told(found, "t.example", proto="tcp") == "REFUSED"


def test_blocks_are_counted_by_policy_and_list() -> None:
    one = policy("one", deny=["a.example"], blockListRefs=["big"])
    filters = Filters([one], matcher=lists(big=["||b.example^"]))
    stage = Policy(lambda: filters, FixedNeighbours())
    pipeline = Pipeline(
        ZoneSet([]),
        lambda: True,
        clock=ManualClock(),
        identity=Identity(),
        is_lameduck=lambda: False,
        on_exception=raise_again,
        policy=stage,
    )
    for name in ("a.example", "b.example", "b.example", "c.example"):
        told(pipeline, name)
    assert stage.statistics().blocked == {
        ("default/one", ""): 1,
        ("default/one", "default/big"): 2,
    }


# --- what the resolver finds --------------------------------------------------------------------


class Upstream:
    """A resolver that knows answers as text; `later` hands them over when it is told to."""

    is_on = True

    def __init__(self, *records: str, later: bool = False, stranger: str = "") -> None:
        self._records = records
        self._later = later
        self._stranger = stranger
        self.waiting: list[tuple[Later[Resolved], Resolved]] = []
        self.asked: list[str] = []

    @property
    def admits_all(self) -> bool:
        return not self._stranger

    def admits(self, client: str) -> bool:
        return client != self._stranger

    def resolve(
        self, query: Query, client: str, now_us: int, route: Route | None = None
    ) -> Resolved | Later[Resolved] | None:
        name = dns.name.from_wire(query.qname, 0)[0]
        self.asked.append(name.to_text())
        question = dns.message.make_query(name, query.qtype, use_edns=False)
        response = dns.message.make_response(question)
        text = "\n".join(self._records)
        zone = dns.zone.from_text(text, origin=".", relativize=False, check_origin=False)
        for _ in range(5):
            node = zone.get_node(name)
            if node is None:
                break
            alias = node.get_rdataset(dns.rdataclass.IN, dns.rdatatype.CNAME)
            found = node.get_rdataset(dns.rdataclass.IN, dns.rdatatype.RdataType(query.qtype))
            rdataset = alias or found
            if rdataset is not None:
                response.answer.append(dns.rrset.from_rdata_list(name, rdataset.ttl, rdataset))
            if alias is None:
                break
            name = alias[0].target
        wire = response.to_wire()
        resolved = Resolved(read_response(query.question, wire), "forward")
        if not self._later:
            return resolved
        later: Later[Resolved] = Later()
        self.waiting.append((later, resolved))
        return later


def test_policies_are_for_clients_who_may_recurse_and_the_next_one_gets_no_answer_of_theirs() -> (
    None
):
    home = policy(
        "home",
        deny=["ads.example"],
        rewrites=[{"name": "tv.example", "targets": ["192.0.2.60"]}],
    )
    found = pipeline_of(home, resolver=Upstream(stranger=KIDS))
    for name, answer in (("ads.example", "A 30 0.0.0.0"), ("tv.example", "A 30 192.0.2.60")):
        assert told(found, name, client=KIDS) == "REFUSED"
        admitted = ask(found, name, client=OTHER)
        assert admitted is not None
        assert shown(admitted[0]) == f"NOERROR | {answer}"
        assert not admitted[1], "an engine would repeat it to the stranger"
    assert told(found, "nas.home.example", client=KIDS) == "NOERROR | A 300 192.0.2.50"


@pytest.mark.parametrize("later", [False, True])
def test_a_rewrite_to_a_name_below_what_is_forwarded_leads_there(later: bool) -> None:
    home = policy(
        "home", rewrites=[{"name": "tv.example", "type": "CNAME", "targets": ["nas.home.example."]}]
    )
    upstream = Upstream("nas.home.example. 60 IN A 10.0.0.9", later=later)
    zones = ZoneSet([zone_from_text(ZONE, "home.example.")])
    found = pipeline_of(home, resolver=upstream, zones=zones)
    assert told(found, "tv.example") == ("NOERROR | CNAME 30 nas.home.example. | A 300 192.0.2.50")
    zones.forward(names.from_text("nas.home.example."), ("10.0.0.53",))
    assert told(found, "www.home.example") == "NOERROR | CNAME 300 nas.home.example."
    query = dns.message.make_query("tv.example", "A").to_wire()
    reply = found.handle(query, OTHER, "udp")
    if isinstance(reply, Later):
        replies: list[Any] = []
        reply.then(replies.append)
        ((one, resolved),) = upstream.waiting
        one.settle(resolved)
        (reply,) = replies
    assert isinstance(reply, Reply)
    assert shown(dns.message.from_wire(reply.wire)) == (
        "NOERROR | CNAME 30 nas.home.example. | A 60 10.0.0.9"
    )
    assert upstream.asked == ["nas.home.example."]


RECORDS = [
    "www.shop.example 60 IN CNAME x.tracker.example.",
    "x.tracker.example 50 IN CNAME y.cdn.example.",
    "y.cdn.example 40 IN A 192.0.2.9",
    "addr.example 60 IN A 192.0.2.66",
    "addr.example 60 IN AAAA 2001:db8::66",
    "svc.example 60 IN HTTPS 1 . alpn=h2 ipv4hint=192.0.2.66",
    "svc6.example 60 IN HTTPS 1 . ipv6hint=2001:db8::1,2001:db8::66",
    "alt.example 60 IN HTTPS 1 x.tracker.example. alpn=h2",
    "fine.example 60 IN A 192.0.2.7",
    "forcesafesearch.google.com 60 IN A 192.0.2.120",
    "far.example 60 IN CNAME www.shop.example.",
]


@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize(
    ("name", "rtype", "answer"),
    [
        ("www.shop.example", "A", "NOERROR | A 30 0.0.0.0"),
        ("www.shop.example", "AAAA", "NOERROR | AAAA 30 ::"),
        ("addr.example", "A", "NOERROR | A 30 0.0.0.0"),
        ("addr.example", "AAAA", "NOERROR | AAAA 30 ::"),
        ("svc.example", "HTTPS", "NOERROR"),
        ("svc6.example", "HTTPS", "NOERROR"),
        ("alt.example", "HTTPS", "NOERROR"),
        ("fine.example", "A", "NOERROR | A 60 192.0.2.7"),
        (
            "good.example",
            "A",
            f"NOERROR | CNAME 30 www.shop.example. | {BEHIND_SHOP}",
        ),
        (
            "www.google.com",
            "A",
            "NOERROR | CNAME 300 forcesafesearch.google.com. | A 60 192.0.2.120",
        ),
        ("www.google.com", "AAAA", "NOERROR | CNAME 300 forcesafesearch.google.com."),
    ],
)
def test_what_is_found_is_looked_through(later: bool, name: str, rtype: str, answer: str) -> None:
    one = policy(
        "one",
        deny=["*.tracker.example", "192.0.2.66", "2001:DB8:0::66"],
        rewrites=[{"name": "good.example", "type": "CNAME", "targets": ["www.shop.example"]}],
        safeSearch=True,
    )
    upstream = Upstream(*RECORDS, later=later)
    found = pipeline_of(one, resolver=upstream)
    query = dns.message.make_query(name, rtype, use_edns=True)
    reply = found.handle(query.to_wire(), OTHER, "udp")
    if later:
        assert isinstance(reply, Later)
        for waiting, resolved in upstream.waiting:
            waiting.settle(resolved)
        reply = reply.value
    assert isinstance(reply, Reply)
    assert shown(dns.message.from_wire(reply.wire)) == answer
    assert not reply.memo or not upstream.asked


def test_a_name_that_is_allowed_is_answered_as_it_comes() -> None:
    one = policy("one", deny=["*.tracker.example"], allow=["www.shop.example"])
    assert told(pipeline_of(one, resolver=Upstream(*RECORDS)), "www.shop.example") == (
        f"NOERROR | {BEHIND_SHOP}"
    )


def test_nobody_is_asked_for_what_is_blocked() -> None:
    upstream = Upstream(*RECORDS)
    told(pipeline_of(policy("one", deny=["fine.example"]), resolver=upstream), "fine.example")
    assert upstream.asked == []


def test_one_client_does_not_get_what_another_was_given() -> None:
    kids = policy("kids", clientGroupRefs=["kids"], deny=["*.tracker.example"])
    found = pipeline_of(kids, resolver=Upstream(*RECORDS))
    for client in (OTHER, KIDS, OTHER, KIDS):
        answer = told(found, "www.shop.example", client=client)
        assert (answer == "NOERROR | A 30 0.0.0.0") == (client == KIDS)


def test_a_fault_in_the_look_at_an_answer_costs_its_query_only() -> None:
    upstream = Upstream(*RECORDS, later=True)
    faults: list[Exception] = []
    found = pipeline_of(policy("one", deny=["x.example"]), resolver=upstream)
    found._on_exception = faults.append
    query = dns.message.make_query("fine.example", "A")
    reply = found.handle(query.to_wire(), OTHER, "udp")
    assert isinstance(reply, Later)
    ((waiting, resolved),) = upstream.waiting
    broken = msgspec.structs.replace(resolved.message, body=None)
    waiting.settle(msgspec.structs.replace(resolved, message=broken))
    assert isinstance(reply.value, Reply)
    assert shown(dns.message.from_wire(reply.value.wire)) == "SERVFAIL"
    assert len(faults) == found.statistics().unhandled_exceptions == 1
