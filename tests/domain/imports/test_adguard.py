"""AdGuard Home: what becomes of AdGuardHome.yaml."""

import pytest

from kudurru.domain.errors import Invalid
from kudurru.domain.imports import adguard
from kudurru.domain.imports.model import Imported
from tests.imports import import_texts, left_out, records, rewrites, specs


def of(text: str) -> Imported:
    return import_texts("adguard", adguard.read, ("AdGuardHome.yaml", text))


LISTS = """\
dns: {ratelimit: 20}
filters:
- {enabled: true, url: "https://lists.example/1.txt", name: Base, id: 1}
- {enabled: false, url: /opt/own.txt, name: Own, id: 2}
whitelist_filters:
- {enabled: true, url: "https://lists.example/1.txt", name: ok, id: 3}
user_rules:
- '||ads.example^'
- '@@||good.ads.example^$important'
"""


def test_lists_and_rules_hold_for_everybody() -> None:
    found = of(LISTS)
    lists = specs(found, "BlockList")
    assert [spec["sources"][0].get("url") for spec in lists.values()] == [
        "https://lists.example/1.txt",
        "file:/opt/own.txt",
        "https://lists.example/1.txt",
        None,
    ]
    assert [spec.get("kind", "deny") for spec in lists.values()] == [
        "deny",
        "deny",
        "allow",
        "deny",
    ]
    own = lists["adguard-user-rules"]["sources"]
    assert own == [{"inline": ["||ads.example^", "@@||good.ads.example^$important"]}]
    assert specs(found, "Policy")["adguard-everybody"]["blockListRefs"] == list(lists)


@pytest.mark.parametrize("parent", ["dns", "filtering"])
def test_rewrites_are_record_sets_or_rewrites(parent: str) -> None:
    found = of(
        f"filters: []\n{parent}:\n  rewrites:\n"
        "  - {domain: nas.lan, answer: 192.168.7.5}\n"
        "  - {domain: '*.lab.lan', answer: nas.lan}\n"
        "  - {domain: tv.example.com, answer: 192.168.7.6}\n"
        "  - {domain: off.lan, answer: 192.168.7.7, enabled: false}\n"
        "  - {domain: x.lan, answer: A}\n"
        f"{'dns: {}' if parent != 'dns' else 'other: 1.5'}\n".replace(
            "filters: []", "filters:\n- {enabled: true, url: 'https://lists.example/1.txt'}"
        )
    )
    assert records(found) == {("nas.lan", "A", "192.168.7.5"), ("*.lab.lan", "CNAME", "nas.lan.")}
    assert rewrites(found, "adguard-rewrites") == {("tv.example.com", "A", "192.168.7.6")}
    assert [left.at.partition(": ")[2] for left in found.left_out] == [
        f"{parent}.rewrites[3].domain",
        f"{parent}.rewrites[4].domain",
    ]


UPSTREAMS = """\
dns:
  upstream_dns:
  - https://dns.example/dns-query
  - 192.0.2.1
  - '# not one'
  - '[/corp.example/*.lab.example/]10.0.0.53:5353 10.0.1.53'
  - '[/x.example/]#'
  - '[//]192.0.2.1'
  bootstrap_dns: [192.0.2.2]
  fallback_dns: [192.0.2.3]
  upstream_mode: fastest_addr
  upstream_timeout: 5s
  cache_size: 4194304
  cache_ttl_min: 60
  local_ptr_upstreams: [192.168.7.1]
"""


def test_upstreams_are_settings_and_those_of_domains_forward_zones() -> None:
    found = of(UPSTREAMS)
    assert found.settings == {
        "upstreams.groups.default": "https://dns.example/dns-query,192.0.2.1",
        "upstreams.bootstrap": "192.0.2.2",
        "upstreams.fallback": "192.0.2.3",
        "upstreams.strategy": "fastest",
        "upstreams.timeout": "5s",
        "cache.maxBytes": "4194304",
        "cache.minTTL": "60s",
    }
    forwards = {z["zoneName"]: z["forward"]["upstreams"] for z in specs(found, "DNSZone").values()}
    servers = ["10.0.0.53:5353", "10.0.1.53"]
    assert forwards == {"corp.example": servers, "lab.example": servers}
    assert len(found.left_out) == 3


CLIENTS = """\
dns: {}
filtering: {blocking_mode: custom_ip, blocking_ipv4: 192.0.2.66, blocking_ipv6: "2001:db8::66"}
user_rules: ['||ads.example^']
clients:
  persistent:
  - name: tv
    ids: [192.168.7.9, 'aa:bb:cc:00:11:22', living-room, 10.0.0.0/8, not_known]
    tags: [device_tv]
    use_global_settings: false
    filtering_enabled: false
    safe_search: {enabled: false}
  - {name: child, ids: [192.168.7.8], use_global_settings: false, filtering_enabled: true,
     safe_search: {enabled: true, bing: false, google: true}, ignore_querylog: true}
  - {name: laptop, ids: [192.168.7.10], use_global_settings: true, upstreams: [192.0.2.9]}
  - {name: plain, ids: [192.168.7.11], use_global_settings: true}
"""


def test_clients_have_a_policy_where_they_differ_from_everybody() -> None:
    found = of(CLIENTS)
    assert specs(found, "ClientGroup")["adguard-tv"]["clients"] == [
        {"ip": "192.168.7.9"},
        {"mac": "aa:bb:cc:00:11:22"},
        {"clientID": "living-room"},
        {"cidr": "10.0.0.0/8"},
    ]
    policies = specs(found, "Policy")
    custom = {"blockMode": "custom", "customIPs": ["192.0.2.66", "2001:db8::66"]}
    rules = {"blockListRefs": ["adguard-user-rules"], **custom}
    assert policies == {
        "adguard-everybody": rules,
        "adguard-tv": {"clientGroupRefs": ["adguard-tv"]},
        "adguard-child": rules
        | {"clientGroupRefs": ["adguard-child"], "safeSearch": True, "queryLog": False},
        "adguard-laptop": rules
        | {"clientGroupRefs": ["adguard-laptop"], "upstreams": ["192.0.2.9"]},
    }
    assert "adguard-plain" in specs(found, "ClientGroup")
    assert [left.at.partition(": ")[2] for left in found.left_out] == [
        "clients.persistent[0].ids[4]",
        "clients.persistent[0].tags",
        "clients.persistent[1].safe_search.bing",
    ]


def test_clients_have_the_rewrites_too_behind_what_their_policy_says_of_upstreams() -> None:
    rewrite = "filtering: {rewrites: [{domain: a.example.com, answer: 192.0.2.1}], "
    found = of(CLIENTS.replace("filtering: {", rewrite))
    policies = specs(found, "Policy")
    groups = ["adguard-tv", "adguard-child", "adguard-laptop"]
    assert policies["adguard-rewrites-groups"]["clientGroupRefs"] == groups
    assert policies["adguard-rewrites-groups"]["priority"] < 0


SERVICES = """\
dns: {blocked_hosts: [version.bind, x.example], allowed_clients: [192.0.2.1]}
tls: {enabled: true}
dhcp: {enabled: true}
filters: [{enabled: true, url: 'https://lists.example/1.txt'}]
filtering:
  blocking_mode: nxdomain
  blocked_response_ttl: 10
  parental_enabled: true
  safebrowsing_enabled: true
  protection_enabled: false
  filters_update_interval: 24
  safe_search: {enabled: true}
  blocked_services:
    schedule: {time_zone: UTC, mon: {start: 0s, end: 24h}}
    ids: [youtube]
"""


def test_what_has_no_counterpart_is_told() -> None:
    found = of(SERVICES)
    said = "\n".join(left_out(found))
    expected = ["protection is off", "parental control", "safe browsing", "service youtube"]
    expected += ["hours without", "DHCP", "certificates", "allowed_clients", "x.example"]
    for what in expected:
        assert what in said
    assert "version.bind" not in said
    assert specs(found, "Policy")["adguard-everybody"]["safeSearch"] is True
    assert found.settings == {
        "blocking.mode": "nxdomain",
        "blocking.ttl": "10s",
        "blocking.refreshInterval": "24h",
    }


@pytest.mark.parametrize(
    "text",
    ["dns: [", "other: 1", "dns: 5", "dns: {upstream_dns: {a: b}}", "a: &x 1\ndns: *x",
     "dns: !!python/object {}", "dns: {}\nfilters: [{enabled: true}]", "dns: {}\nfilters: 7",
     "dns: {upstream_dns: ['[/corp.example']}", "dns: {}\nfiltering: {blocking_mode: odd}",
     "dns: {}\nfiltering: {rewrites: [{domain: a.lan}]}", "dns: {}\n---\ndns: {}",
     "dns: {rewrites: [{domain: a.lan, answer: 'b..c'}]}"],
)  # fmt: skip
def test_broken_files_are_faults_with_their_line(text: str) -> None:
    with pytest.raises(Invalid) as refused:
        of(text)
    assert all(cause.at.startswith("AdGuardHome.yaml:") for cause in refused.value.causes)
