"""unbound's scenarios of local zones, tags and views, played with what an operator writes here:
zones, client groups, and policies with rewrites, rules and lists. What a step says that is not for
us is named with its reason."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from kudurru.domain.dns import names
from kudurru.domain.dns.zone_tree import Zone
from kudurru.domain.filtering.decision import Filters
from tests.filtering import groups, lists, policy
from tests.replays import LocalData, Player, read_replay
from tests.vectors import vectors
from tests.zone_files import zone_from_text

EVERYBODY = {"all": [{"cidr": "10.10.10.0/24"}]}


def clients(*last: int) -> dict[str, list[dict[str, str]]]:
    """A group for each client of 10.10.10.0/24."""
    return {f"c{i}": [{"ip": f"10.10.10.{i}"}] for i in last}


def rewrite(*names_: str, **records: str | list[str]) -> list[dict[str, Any]]:
    return [
        {"name": name, "type": rtype, "targets": [data] if isinstance(data, str) else data}
        for name in names_
        for rtype, data in records.items()
    ]


def whole(domain: str) -> list[str]:
    """A name, and what is below it."""
    return [domain, f"*.{domain}"]


def redirected(domain: str, **records: str) -> list[dict[str, Any]]:
    return rewrite(*whole(domain), **records)


def override() -> LocalData:
    """local-zone-override: another action for one client."""
    return LocalData(
        Filters(
            [
                policy("a", clientGroupRefs=["c20"], deny=whole("1.example"), blockMode="refused"),
                policy("b", clientGroupRefs=["c30"], deny=whole("2.example"), blockMode="refused"),
                policy("c", clientGroupRefs=["c40"], deny=whole("2.example"), blockMode="nxdomain"),
            ],
            groups(**clients(20, 30, 40)),
        )
    )


def tags() -> LocalData:
    """access-control-tag and local-zone-tag: zones for the clients of a group."""
    tag_of = {"tag1": [20], "tag2": [30], "tag3": [30, 40], "tag4": [50, 60]}
    tagged = {tag: [{"ip": f"10.10.10.{i}"} for i in members] for tag, members in tag_of.items()}
    base = [
        *redirected("example", TXT="data 0"),
        *redirected("c.d.example", TXT="data 2"),
    ]
    closer = redirected("b.c.d.example", TXT="data 3")
    return LocalData(
        Filters(
            [
                policy("all", clientGroupRefs=["all"], rewrites=base),
                policy(
                    "d",
                    priority=1,
                    clientGroupRefs=["tag1", "tag2"],
                    rewrites=rewrite("d.example", TXT="data 1"),
                ),
                policy("b", priority=1, clientGroupRefs=["tag3"], rewrites=closer),
                policy(
                    "foo",
                    priority=1,
                    clientGroupRefs=["tag4"],
                    rewrites=redirected("foo", TXT="data plain 4"),
                ),
                policy(
                    "data",
                    priority=2,
                    clientGroupRefs=["c50"],
                    rewrites=redirected("foo", TXT="data tag4"),
                ),
            ],
            groups(**EVERYBODY, **tagged, **clients(50)),
        )
    )


def tag_actions() -> LocalData:
    """access-control-tag-action: what a zone does depends on the client."""
    return LocalData(
        Filters(
            [
                policy("r", clientGroupRefs=["c10", "c30"], deny=["example"], blockMode="refused"),
                policy("n", clientGroupRefs=["c20"], deny=["example"], blockMode="nxdomain"),
                policy("d", clientGroupRefs=["c40"], rewrites=rewrite("example", TXT="data 0")),
            ],
            groups(**clients(10, 20, 30, 40)),
        )
    )


def blocked_types() -> LocalData:
    """block_a and block_aaaa: no addresses of a kind, below a name."""
    rules = [
        *("||example1.com^$dnstype=A", "||example2.com^$dnstype=AAAA"),
        *("||example3.com^$dnstype=A", "||example4.com^$dnstype=AAAA"),
    ]
    data = rewrite("b.example3.com", "b.example4.com", A="1.2.3.5", AAAA="1:2:3::5")
    blocking = policy("p", blockListRefs=["l"], blockMode="nodata", rewrites=data)
    return LocalData(Filters([blocking], matcher=lists(l=rules)))


def aliases() -> LocalData:
    """CNAME as local data: the answer goes on behind it, elsewhere or in a zone here."""
    text = '@ 3600 SOA a b 1 2 3 4 5\n@ 3600 TXT "hello from {} auth zone"\n'
    zones = [
        zone_from_text(text.format(which), f"{which}.zone.") for which in ("downstream", "upstream")
    ]
    found = [
        *redirected("example.com", CNAME="example.org"),
        *redirected("another.example.com", CNAME="example.org"),
        *redirected("nx.example.com", CNAME="nx.example.org"),
        *redirected("servfail.example.com", CNAME="servfail.example.org"),
        *redirected("sec.example.com", CNAME="www.infoblox.com"),
        *redirected("example.net", CNAME="cname.example.org"),
        *redirected("authdown.example.net", CNAME="downstream.zone"),
        *redirected("authup.example.net", CNAME="upstream.zone"),
    ]
    return LocalData(
        Filters([policy("p", rewrites=found)]),
        zones,
        # The target of an alias is a name here; there it may be made of the one that was asked.
        left_out=(201, 202),
        other=((260, "ANSWER"),),  # the alias is true also while its target fails
    )


def beside_an_alias() -> LocalData:
    """NSEC is one of the types that may stand beside a CNAME (RFC 4034 section 4)."""
    text = (
        "@ 3600 SOA ns h 1 2 3 4 5\n"
        "myd 3600 NSEC myd2.a. CNAME NSEC\nmyd 3600 CNAME myd.target.a.\n"
        "myd2 3600 CNAME myd2.target.a.\nmyd2 3600 NSEC myd3.a. CNAME NSEC\n"
    )
    return LocalData(zones=[zone_from_text(text, "a.")])


def special_zone() -> LocalData:
    return LocalData(
        has_special_names=True,
        # RFC 6303 section 3: the primary that the SOA names is the zone itself.
        other=((10, "AUTHORITY"),),
    )


def special_zone_elsewhere() -> LocalData:
    """nodefault: somebody has the zone."""
    domain = names.key(names.from_text("10.in-addr.arpa."))
    return LocalData(has_special_names=True, forwarded=[domain])


def one_name() -> LocalData:
    """transparent and typetransparent: a rewrite has the last word on addresses of its name, and
    none on anything else."""
    return LocalData(Filters([policy("p", rewrites=rewrite("mail.example.com", A="10.20.30.40"))]))


def local_data() -> LocalData:
    """Zones and data of all kinds."""
    found = [
        *rewrite("a.a.implicit", A="20.30.41.50"),
        *rewrite("b.a.implicit", A="20.30.42.50"),
        *rewrite("b.b.implicit", A="20.30.43.50"),
        *redirected("redirect.top", A="20.30.40.54"),
    ]
    soa = "@ 3600 SOA nobody. nobody. 1 2 3 4 5\n"
    local = "serv 3600 A 20.30.40.50\n" + "".join(
        f"bla.bla 3600 A 20.30.40.{i}\n" for i in (51, 52, 53)
    )
    zones: Sequence[Zone] = [
        zone_from_text(soa + local, "local."),
        zone_from_text(soa + "bla.bla 3600 AAAA 2001::2\n", "noso.local."),
    ]
    return LocalData(
        Filters(
            [
                policy("data", rewrites=found),
                policy("refuse", deny=whole("refuse.top"), blockMode="refused"),
                policy("null", deny=whole("null.top")),
                policy("deny", blockListRefs=["drop"]),
            ],
            matcher=lists(drop=["deny.top CNAME rpz-drop.", "*.deny.top CNAME rpz-drop."]),
        ),
        zones,
        has_special_names=True,
        # Classes CH and ANY: the first is about this server, in the second nobody has authority.
        left_out=(1, 2, 3, 4, 64, 65, 66, 67),
        dropped=(42,),
        other=((39, "AUTHORITY"),),  # RFC 6303 section 3: the primary of the SOA is the zone itself
    )


def views() -> LocalData:
    """A policy for everybody counts where no group is named: what view-first says is a second
    policy for the group."""
    shared = redirected("example.com", TXT="global")
    return LocalData(
        Filters(
            [
                policy("global", rewrites=shared),
                policy(
                    "v1",
                    clientGroupRefs=["c10"],
                    rewrites=redirected("nomatch.example.com", TXT="view 1"),
                ),
                policy(
                    "v2",
                    clientGroupRefs=["c20"],
                    rewrites=redirected("example.com", TXT="view 2"),
                ),
                policy(
                    "v3",
                    clientGroupRefs=["c30"],
                    rewrites=[*shared, *redirected("nomatch.example.com", TXT="view 3")],
                ),
                policy(
                    "v4",
                    clientGroupRefs=["c40"],
                    rewrites=redirected("example.com", TXT="view 4"),
                ),
            ],
            groups(**clients(10, 20, 30, 40)),
        )
    )


LOCAL: dict[str, Callable[[], LocalData]] = {
    "local_acl_override": override,
    "local_acl_taglist": tags,
    "local_acl_taglist_action": tag_actions,
    "local_block_a": blocked_types,
    "local_cname": aliases,
    "local_cnameother": beside_an_alias,
    "local_ds": special_zone,
    "local_nodefault": special_zone_elsewhere,
    "local_transparent_sametype": one_name,
    "local_typetransparent": one_name,
    "localdata": local_data,
    "views": views,
}


@pytest.mark.parametrize("name", LOCAL)
def test_local_zones_and_views_hold_as_zones_and_policies(name: str) -> None:
    Player(read_replay(vectors(f"unbound/rpl/{name}.rpl")), local=LOCAL[name]()).play()


def test_every_scenario_of_local_zones_is_played() -> None:
    found = {path.stem for path in vectors("unbound/rpl").glob("local*.rpl")} | {"views"}
    assert found == LOCAL.keys()
    print(f"suite local-replays: {len(LOCAL)} of {len(LOCAL)}")
