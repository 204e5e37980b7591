"""Pi-hole: lists, domains, groups, clients, and the names and servers of pihole.toml."""

import json
from typing import Any

import pytest

from kudurru.domain.errors import Invalid
from kudurru.domain.imports import pihole
from kudurru.domain.imports.model import Imported, Source
from tests.imports import import_texts, left_out, records, rewrites, specs


def of_tables(**tables: list[dict[str, Any]]) -> Imported:
    """Of a gravity.db; what every row has is left out below."""

    def tables_of(source: Source) -> pihole.Tables | None:
        return tables if source.name == "gravity.db" else None

    return import_texts("pihole", pihole.read, ("gravity.db", ""), tables_of=tables_of)


def of_files(*files: tuple[str, str]) -> Imported:
    return import_texts("pihole", pihole.read, *files, tables_of=lambda _: None)


GROUPS = [
    {"id": 0, "enabled": 1, "name": "Default"},
    {"id": 1, "enabled": 1, "name": "kids"},
    {"id": 2, "enabled": 0, "name": "off"},
]
AD = {"enabled": 1, "type": 0, "comment": None}


def domain(number: int, kind: int, text: str, enabled: int = 1) -> dict[str, Any]:
    return {"id": number, "type": kind, "domain": text, "enabled": enabled}


def test_lists_are_block_lists_of_the_groups_that_they_are_in() -> None:
    found = of_tables(
        group=GROUPS,
        adlist=[
            {"id": 1, "address": "https://lists.example/a.txt", **AD, "comment": "ads"},
            {"id": 2, "address": "https://lists.example/b.txt", **AD, "enabled": 0},
            {"id": 3, "address": "https://lists.example/c.txt", **AD, "type": 1},
        ],
        adlist_by_group=[
            {"adlist_id": 1, "group_id": 0},
            {"adlist_id": 2, "group_id": 1},
            {"adlist_id": 3, "group_id": 1},
        ],
    )
    lists = {
        manifest.meta.name: manifest
        for manifest in found.manifests
        if manifest.kind.name == "BlockList"
    }
    a, b, c = lists
    urls = [spec["sources"][0]["url"][-5:] for spec in specs(found, "BlockList").values()]
    assert urls == ["a.txt", "b.txt", "c.txt"]
    assert lists[a].meta.annotations == {"kudurru.io/comment": "ads"}
    assert lists[b].meta.annotations == {"kudurru.io/enabled": "false"}
    assert specs(found, "BlockList")[c]["kind"] == "allow"
    policies = specs(found, "Policy")
    assert policies["pihole-everybody"] == {"blockListRefs": [a]}
    assert policies["pihole-kids"] == {"clientGroupRefs": ["pihole-kids"], "blockListRefs": [b, c]}


def test_domains_are_rules_of_the_policies_of_their_groups() -> None:
    found = of_tables(
        group=GROUPS,
        domainlist=[
            domain(1, pihole.DENY_EXACT, "bad.example"),
            domain(2, pihole.DENY_REGEX, r"(^|\.)track[0-9]+\."),
            domain(3, pihole.ALLOW_EXACT, "good.example"),
            domain(4, pihole.ALLOW_REGEX, "^ok"),
            domain(5, pihole.DENY_EXACT, "games.example"),
        ],
        domainlist_by_group=[
            *({"domainlist_id": n, "group_id": 0} for n in (1, 2, 3, 4)),
            {"domainlist_id": 5, "group_id": 1},
        ],
    )
    policies = specs(found, "Policy")
    assert policies["pihole-everybody"] == {
        "allow": ["good.example", "/^ok/"],
        "deny": ["bad.example", r"/(^|\.)track[0-9]+\./"],
    }
    assert policies["pihole-kids"]["deny"] == ["games.example"]


def test_domains_without_a_counterpart_are_left_out() -> None:
    every = [
        domain(1, pihole.DENY_REGEX, "(?=x)y"),
        domain(2, pihole.DENY_REGEX, "abc;querytype=A"),
        domain(3, pihole.DENY_EXACT, "gone.example", enabled=0),
        domain(4, pihole.DENY_EXACT, "bad.example"),
    ]
    found = of_tables(
        domainlist=every,
        domainlist_by_group=[{"domainlist_id": row["id"], "group_id": 0} for row in every],
    )
    assert specs(found, "Policy") == {"pihole-everybody": {"deny": ["bad.example"]}}
    assert [left.at for left in found.left_out] == [
        f"gravity.db: domainlist[{n}]" for n in (0, 1, 2)
    ]


def test_clients_are_of_the_groups_that_they_are_in_and_of_none_are_not_filtered() -> None:
    ips = ["192.168.7.20", "AA:BB:CC:00:11:22", "10.0.0.0/8", "fd00::7", "a-host", ":eth0"]
    found = of_tables(
        group=GROUPS,
        client=[{"id": n, "ip": ip} for n, ip in enumerate(ips)],
        client_by_group=[
            {"client_id": 0, "group_id": 1},
            {"client_id": 1, "group_id": 2},
            {"client_id": 2, "group_id": 0},
            {"client_id": 2, "group_id": 1},
        ],
    )
    groups = specs(found, "ClientGroup")
    default = next(name for name in groups if name.startswith("pihole-default-"))
    assert groups["pihole-kids"]["clients"] == [{"ip": "192.168.7.20"}, {"cidr": "10.0.0.0/8"}]
    assert groups[default]["clients"] == [{"cidr": "10.0.0.0/8"}]
    nobody = [{"mac": "aa:bb:cc:00:11:22"}, {"ip": "fd00::7"}]
    assert groups["pihole-in-no-group"]["clients"] == nobody
    assert specs(found, "Policy")["pihole-in-no-group"]["action"] == "bypass"
    off = next(m for m in found.manifests if str(m.key).endswith("pihole-off"))
    assert off.kind.name == "ClientGroup" or off.meta.annotations["kudurru.io/enabled"] == "false"
    assert [left.at for left in found.left_out] == [
        "gravity.db: client[4]",
        "gravity.db: client[5]",
    ]


def test_a_client_within_a_network_of_another_is_told_of() -> None:
    found = of_tables(
        client=[{"id": 1, "ip": "192.168.7.20"}, {"id": 2, "ip": "192.168.7.0/24"}],
        client_by_group=[{"client_id": 1, "group_id": 0}, {"client_id": 2, "group_id": 0}],
    )
    (said,) = left_out(found)
    assert "192.168.7.20: it is in 192.168.7.0/24 too" in said


def test_a_url_with_a_credential_is_left_out_and_not_repeated() -> None:
    found = of_tables(
        adlist=[
            {"id": 1, "address": "https://me:secret@lists.example/a.txt", **AD},
            {"id": 2, "address": "https://lists.example/a.txt", **AD},
        ]
    )
    (said,) = left_out(found)
    assert "secret" not in said.replace("secret reference", "")


@pytest.mark.parametrize(
    "row",
    [{"id": 1, "address": None}, {"id": "x", "address": "https://a.example"}, {"address": "a"},
     {"id": 1, "address": 7}],
)  # fmt: skip
def test_rows_of_other_types_are_faults(row: dict[str, Any]) -> None:
    with pytest.raises(Invalid) as refused:
        of_tables(adlist=[row])
    assert refused.value.causes[0].at == "gravity.db: adlist[0]"


TOML = """\
[dns]
  upstreams = ["192.0.2.1#5335", "2001:db8::1"]
  hosts = ["192.168.7.5 nas.lan", "192.0.2.80 www.example.com"]
  cnameRecords = ["files.lan,nas.lan", "cdn.example.com,www.example.com,60"]
  revServers = ["true,192.168.0.0/24,192.168.0.1#54,office.example", "false,10.0.0.0/8,10.0.0.1"]
  hostRecord = "box.lan,192.168.7.44"
  blockTTL = 2
  [dns.blocking]
    active = false
    mode = "NXDOMAIN"
[dhcp]
  active = true
[webserver.api.temp]
  limit = 60.5
[misc]
  privacylevel = 2
  dnsmasq_lines = ["address=/tv.lan/192.168.7.60", "dhcp-host=x"]
"""


def test_names_and_servers_of_version_6() -> None:
    found = of_files(("pihole.toml", TOML))
    assert records(found) == {
        ("nas.lan", "A", "192.168.7.5"),
        ("files.lan", "CNAME", "nas.lan."),
        ("box.lan", "A", "192.168.7.44"),
        ("tv.lan", "A", "192.168.7.60"),
        ("*.tv.lan", "A", "192.168.7.60"),
    }
    assert rewrites(found, "pihole-rewrites") == {
        ("www.example.com", "A", "192.0.2.80"),
        ("cdn.example.com", "CNAME", "www.example.com."),
    }
    forwards = {
        spec["zoneName"]: spec["forward"]["upstreams"]
        for spec in specs(found, "DNSZone").values()
        if spec.get("type") == "Forward"
    }
    expected = ["192.168.0.1:54"]
    assert forwards == {"office.example": expected, "0.168.192.in-addr.arpa": expected}
    assert found.settings == {
        "upstreams.groups.default": "192.0.2.1:5335,2001:db8::1",
        "blocking.mode": "nxdomain",
        "blocking.ttl": "2s",
    }
    assert [left.at for left in found.left_out] == [
        "pihole.toml:5: dns.revServers[1]",
        "pihole.toml:9: dns.blocking.active",
        "pihole.toml:11: dhcp",
        "pihole.toml:16: misc.privacylevel",
        "pihole.toml:17: misc.dnsmasq_lines[1]",
    ]


def test_a_backup_of_version_5_is_files_of_rows() -> None:
    ids = {"domainlist_id": 7, "group_id": 0}
    found = of_files(
        ("t/group.json", json.dumps(GROUPS[:1])),
        ("t/blacklist.exact.json", json.dumps([{"id": 7, "domain": "bad.example", "enabled": 1}])),
        ("t/domainlist_by_group.json", json.dumps([ids])),
        ("t/domain_audit.json", "[]"),
        ("t/etc/pihole/custom.list", "192.168.7.5 nas.lan\n"),
        ("t/etc/pihole/setupVars.conf", "PIHOLE_DNS_1=192.0.2.1#53\nDHCP_ACTIVE=true\n"),
        ("t/etc/dnsmasq.d/05-pihole-custom-cname.conf", "cname=files.lan,nas.lan\n"),
        ("t/etc/dnsmasq.d/01-pihole.conf", "addn-hosts=/etc/pihole/local.list\n"),
    )
    assert specs(found, "Policy") == {"pihole-everybody": {"deny": ["bad.example"]}}
    assert records(found) == {("nas.lan", "A", "192.168.7.5"), ("files.lan", "CNAME", "nas.lan.")}
    assert found.settings == {"upstreams.groups.default": "192.0.2.1:53"}
    assert [left.at for left in found.left_out] == ["t/etc/pihole/setupVars.conf:2"]


@pytest.mark.parametrize(
    ("name", "text"),
    [("adlist.json", "{"), ("adlist.json", "{}"), ("adlist.json", "[1]"), ("pihole.toml", "["),
     ("pihole.toml", "[dns]\nhosts = 5.5\nupstreams = [[1]]"), ("photo.png", "x"),
     ("pihole.toml", '[dns]\nrevServers = ["true"]'), ("custom.list", "x y")],
)  # fmt: skip
def test_broken_files_are_faults(name: str, text: str) -> None:
    with pytest.raises(Invalid):
        of_files((name, text))


def test_more_rules_than_a_policy_holds_are_several_policies() -> None:
    rows = [domain(n, pihole.DENY_EXACT, f"n{n}.example") for n in range(1001)]
    found = of_tables(
        domainlist=rows,
        domainlist_by_group=[{"domainlist_id": row["id"], "group_id": 0} for row in rows],
    )
    policies = specs(found, "Policy")
    assert [len(spec["deny"]) for spec in policies.values()] == [1000, 1]
    assert list(policies) == ["pihole-everybody", "pihole-everybody-2"]


def test_groups_may_be_called_as_other_policies_are() -> None:
    rows = [
        {"id": n, "enabled": 1, "name": name} for n, name in enumerate(["everybody", "rewrites"], 1)
    ]
    found = of_tables(
        group=rows,
        domainlist=[domain(1, pihole.DENY_EXACT, "bad.example")],
        domainlist_by_group=[{"domainlist_id": 1, "group_id": 0}],
    )
    policies = specs(found, "Policy")
    assert policies["pihole-everybody"] == {"deny": ["bad.example"]}
    assert len(policies) == 3


def test_two_groups_of_one_name_are_a_fault() -> None:
    rows = [{"id": n, "enabled": 1, "name": "kids"} for n in (1, 2)]
    with pytest.raises(Invalid, match="2 things in the input would be ClientGroup"):
        of_tables(group=rows)


def test_the_domain_of_the_network_is_a_zone_where_it_has_names() -> None:
    text = '[dns]\nhosts = ["192.168.7.5 nas.home.example"]\n[dns.domain]\nname = "home.example"\n'
    found = of_files(("pihole.toml", text))
    assert records(found) == {("nas.home.example", "A", "192.168.7.5")}
    assert specs(found, "DNSZone") == {"home.example": {"zoneName": "home.example"}}
    assert specs(of_files(("pihole.toml", text + "[dns.blocking]\nmode = 'NX'\n")), "Policy") == {}
