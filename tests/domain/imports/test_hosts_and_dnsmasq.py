"""Hosts files and dnsmasq: what becomes of each line."""

import pytest

from kudurru.domain.dns import names
from kudurru.domain.errors import Invalid
from kudurru.domain.imports import dnsmasq, hosts
from kudurru.domain.imports.model import Imported
from tests.imports import import_texts, left_out, records, rewrites, specs


def of_hosts(text: str, **options: object) -> Imported:
    return import_texts("hosts", hosts.read, ("hosts", text), **options)  # type: ignore[arg-type]


def of_dnsmasq(text: str, *beside: tuple[str, str]) -> Imported:
    return import_texts("dnsmasq", dnsmasq.read, ("dnsmasq.conf", text), *beside)


def test_local_names_of_a_hosts_file_are_record_sets_and_others_are_rewrites() -> None:
    found = of_hosts(
        "192.168.7.5 nas.lan NAS # mine\nfd00::5 nas.lan\n192.0.2.80 www.example.com\n"
    )
    assert records(found) == {("nas.lan", "A", "192.168.7.5"), ("nas.lan", "AAAA", "fd00::5")}
    assert rewrites(found, "hosts-rewrites") == {
        ("nas", "A", "192.168.7.5"),
        ("www.example.com", "A", "192.0.2.80"),
    }
    assert specs(found, "DNSZone") == {"lan": {"zoneName": "lan"}}
    assert all(m.meta.labels == {"kudurru.io/imported-from": "hosts"} for m in found.manifests)


def test_blocking_addresses_are_rules_and_names_of_every_machine_are_nothing() -> None:
    found = of_hosts(
        "0.0.0.0 ads.example 0.0.0.0\n:: ads.example more.example\n127.0.0.1 localhost\n"
    )
    lists = specs(found, "BlockList")
    assert lists["hosts-blocked"]["sources"] == [{"inline": ["ads.example", "more.example"]}]
    assert specs(found, "Policy") == {"hosts-everybody": {"blockListRefs": ["hosts-blocked"]}}
    assert left_out(found) == []


def test_addresses_of_the_machine_are_left_out_with_their_line() -> None:
    found = of_hosts("192.168.7.5 nas.lan\n127.0.1.1 pi\nfe80::1%eth0 router.lan\n")
    assert left_out(found) == [
        "hosts:2: pi: 127.0.1.1 is this machine; to block it write 0.0.0.0",
        "hosts:3: fe80::1%eth0 is an address of one machine's interface",
    ]


def test_all_faults_of_a_hosts_file_are_told_at_once() -> None:
    with pytest.raises(Invalid) as refused:
        of_hosts("192.168.7.5 nas.lan\n192.168.7.999 a.lan\n192.168.7.6\n192.168.7.7 bad..lan\n")
    assert [cause.at for cause in refused.value.causes] == ["hosts:2", "hosts:3", "hosts:4"]


def test_a_zone_that_is_here_takes_its_records_and_is_left_as_it_is() -> None:
    zone = names.from_text("example.com")
    found = of_hosts("192.0.2.80 www.example.com\n", zones={zone: ("mine", "Primary")})
    assert records(found) == {("www.example.com", "A", "192.0.2.80")}
    assert specs(found, "DNSZone") == {}
    (record_set,) = specs(found, "DNSRecordSet").values()
    assert record_set["zoneRef"] == {"name": "mine"}


def test_many_blocked_names_are_several_lists_and_too_many_are_refused() -> None:
    found = of_hosts("".join(f"0.0.0.0 n{i}.example\n" for i in range(10_001)))
    assert list(specs(found, "BlockList")) == ["hosts-blocked", "hosts-blocked-2"]
    assert specs(found, "Policy")["hosts-everybody"]["blockListRefs"] == [
        "hosts-blocked",
        "hosts-blocked-2",
    ]
    with pytest.raises(Invalid, match="subscribe"):
        of_hosts("".join(f"0.0.0.0 n{i}.example\n" for i in range(200_001)))


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("address=/tv.lan/192.168.7.60", {("tv.lan", "A", "192.168.7.60"),
                                          ("*.tv.lan", "A", "192.168.7.60")}),
        ("host-record=p.lan,192.168.7.9,fd00::9", {("p.lan", "A", "192.168.7.9"),
                                                   ("p.lan", "AAAA", "fd00::9")}),
        ("cname=a.lan,b.lan,c.lan", {("a.lan", "CNAME", "c.lan."), ("b.lan", "CNAME", "c.lan.")}),
        ("mx-host=lan,mail.lan,10", {("lan", "MX", "10 mail.lan.")}),
        ('txt-record=t.lan,"v=1, ok",x', {("t.lan", "TXT", '"v=1, ok" "x"')}),
        ("srv-host=_ldap._tcp.lan,ds.lan,389,5,7",
         {("_ldap._tcp.lan", "SRV", "5 7 389 ds.lan.")}),
    ],
)  # fmt: skip
def test_records_of_dnsmasq(line: str, expected: set[tuple[str, str, str]]) -> None:
    assert records(of_dnsmasq(line)) == expected


def test_names_of_addresses_are_rewrites() -> None:
    found = of_dnsmasq("ptr-record=5.7.168.192.in-addr.arpa,nas.lan")
    expected = {("5.7.168.192.in-addr.arpa", "PTR", "nas.lan.")}
    assert rewrites(found, "dnsmasq-rewrites") == expected


def test_blocked_domains_of_dnsmasq_are_blocked_with_what_is_below() -> None:
    found = of_dnsmasq("address=/a.example/\naddress=/b.example/#\naddress=/c.example/0.0.0.0\n")
    (block_list,) = specs(found, "BlockList").values()
    assert block_list == {
        "sources": [{"inline": [".a.example", ".b.example", ".c.example"]}],
        "format": "domains",
    }


def test_servers_by_domain_are_forward_zones_and_those_of_all_a_setting() -> None:
    found = of_dnsmasq(
        "server=/corp.example/10.0.0.53#5353\nserver=/corp.example/10.0.1.53\n"
        "rev-server=192.168.0.0/16,192.168.0.1\nserver=192.0.2.1\nserver=2001:db8::1#5335@eth0\n"
    )
    forwards = {
        spec["zoneName"]: spec["forward"]["upstreams"] for spec in specs(found, "DNSZone").values()
    }
    assert forwards == {
        "corp.example": ["10.0.0.53:5353", "10.0.1.53"],
        "168.192.in-addr.arpa": ["192.168.0.1"],
    }
    assert found.settings == {"upstreams.groups.default": "192.0.2.1,[2001:db8::1]:5335"}


def test_a_domain_that_is_declared_local_is_a_zone_and_one_that_is_forwarded_none() -> None:
    found = of_dnsmasq(
        "local=/home.example/\nhost-record=nas.home.example,192.168.7.5\n"
        "server=/lan/192.168.7.1\nhost-record=tv.lan,192.168.7.6\n"
    )
    assert records(found) == {("nas.home.example", "A", "192.168.7.5")}
    assert rewrites(found, "dnsmasq-rewrites") == {("tv.lan", "A", "192.168.7.6")}
    assert {spec["zoneName"]: spec.get("type") for spec in specs(found, "DNSZone").values()} == {
        "home.example": None,
        "lan": "Forward",
    }


def test_hosts_files_that_lines_name_are_read_when_they_are_given_beside() -> None:
    config = "expand-hosts\ndomain=lan\naddn-hosts=/etc/more.hosts\naddn-hosts=/etc/gone.hosts\n"
    found = of_dnsmasq(config, ("more.hosts", "192.168.7.5 nas\n"))
    assert records(found) == {("nas.lan", "A", "192.168.7.5")}
    gone = "dnsmasq.conf:4: addn-hosts: give the file /etc/gone.hosts to this command too"
    assert left_out(found) == [gone]


def test_what_dnsmasq_does_beside_dns_is_left_out_with_its_line() -> None:
    found = of_dnsmasq(
        "# a comment\nhost-record=a.lan,192.0.2.1\ndhcp-range=192.0.2.5,192.0.2.9\n"
        "bogus-priv\naddress=/#/192.0.2.1\nserver=//192.0.2.1\nserver=/x.lan/#\n"
    )
    assert [left.at for left in found.left_out] == [f"dnsmasq.conf:{n}" for n in (3, 4, 5, 6, 7)]


@pytest.mark.parametrize(
    "line",
    ["host-record=a.lan", "cname=a.lan", "address=x", "address=/a.lan/x", "cname", "what is this?",
     "ptr-record=a", "txt-record=t.lan," + "x" * 256, "cache-size=x", "mx-host=a..b,c.lan"],
)  # fmt: skip
def test_a_broken_line_is_a_fault_with_its_line(line: str) -> None:
    with pytest.raises(Invalid) as refused:
        of_dnsmasq(f"# one\n{line}\n")
    assert refused.value.causes[0].at == "dnsmasq.conf:2"


def test_an_alias_beside_other_records_and_a_second_one_are_left_out() -> None:
    found = of_dnsmasq(
        "host-record=a.lan,192.0.2.1\ncname=a.lan,b.lan\ncname=c.lan,b.lan\ncname=c.lan,d.lan\n"
    )
    assert records(found) == {("a.lan", "A", "192.0.2.1"), ("c.lan", "CNAME", "b.lan.")}
    assert sorted(left.at for left in found.left_out) == ["dnsmasq.conf:2", "dnsmasq.conf:4"]


@pytest.mark.parametrize(
    ("network", "zones"),
    [
        ("192.168.7.0/24", ["7.168.192.in-addr.arpa"]),
        ("192.168.4.0/23", ["4.168.192.in-addr.arpa", "5.168.192.in-addr.arpa"]),
        ("10.0.0.0/8", ["10.in-addr.arpa"]),
        ("fd00:1::/32", ["1.0.0.0.0.0.d.f.ip6.arpa"]),
    ],
)
def test_networks_have_zones_of_names(network: str, zones: list[str]) -> None:
    found = of_dnsmasq(f"rev-server={network},192.0.2.1")
    assert [spec["zoneName"] for spec in specs(found, "DNSZone").values()] == zones


@pytest.mark.parametrize("network", ["192.168.7.0/25", "192.168.7.9", "0.0.0.0/1x", "fd00::1"])
def test_networks_that_no_zone_is_as_large_as_are_left_out(network: str) -> None:
    found = of_dnsmasq(f"host-record=a.lan,192.0.2.1\nrev-server={network},192.0.2.1")
    assert [left.at for left in found.left_out] == ["dnsmasq.conf:2"]
