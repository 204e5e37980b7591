"""blocky: what becomes of config.yml."""

import pytest

from kudurru.domain.errors import Invalid
from kudurru.domain.imports import blocky
from kudurru.domain.imports.model import Imported
from tests.imports import import_texts, records, specs


def of(text: str) -> Imported:
    return import_texts("blocky", blocky.read, ("config.yml", text))


BLOCKING = """\
blocking:
  %s:
    ads:
    - https://lists.example/ads.txt
    - |
      bad.example
      *.worse.example
    kids: [/lists/kids.txt, kids.txt]
  %s:
    ads:
    - |
      good.example
    only: ["https://lists.example/only.txt"]
  clientGroupsBlock:
    default: [ads]
    laptop: [ads, kids]
    phone*: [kids]
    192.168.7.0/24: [only, gone]
clientLookup: {clients: {laptop: [192.168.7.29, "fd00::29"]}}
minTlsServeVersion: 1.3
"""


@pytest.mark.parametrize("words", [("denylists", "allowlists"), ("blackLists", "whiteLists")])
def test_lists_and_clients(words: tuple[str, str]) -> None:
    found = of(BLOCKING % words)
    assert specs(found, "BlockList") == {
        "blocky-ads": {
            "sources": [
                {"url": "https://lists.example/ads.txt"},
                {"inline": ["bad.example", "*.worse.example"]},
            ]
        },
        "blocky-kids": {"sources": [{"url": "file:/lists/kids.txt"}]},
        "blocky-ads-allow": {"sources": [{"inline": ["good.example"]}], "kind": "allow"},
        "blocky-only-allow": {
            "sources": [{"url": "https://lists.example/only.txt"}],
            "kind": "allow",
        },
        "blocky-only-everything-else": {"sources": [{"inline": ["||*^"]}]},
    }
    groups, policies = specs(found, "ClientGroup"), specs(found, "Policy")
    laptop, network = list(groups)
    assert groups[laptop]["clients"] == [{"ip": "192.168.7.29"}, {"ip": "fd00::29"}]
    assert groups[network]["clients"] == [{"cidr": "192.168.7.0/24"}]
    ads = ["blocky-ads", "blocky-ads-allow"]
    assert policies["blocky-everybody"] == {"blockListRefs": ads}
    assert policies[laptop]["blockListRefs"] == [*ads, "blocky-kids"]
    only = ["blocky-only-allow", "blocky-only-everything-else"]
    assert policies[network]["blockListRefs"] == only
    assert [left.at.partition(": ")[2] for left in found.left_out] == [
        f"blocking.{words[0]}.kids[1]",
        "blocking.clientGroupsBlock.phone*",
        "blocking.clientGroupsBlock.192.168.7.0/24[1]",
    ]


REST = """\
upstreams:
  groups:
    default: [192.0.2.1, "tcp-tls:dns.example:853", "https://dns.example/dns-query"]
    192.168.7.9: ["tcp+udp:192.0.2.7"]
  strategy: strict
  timeout: 2s
bootstrapDns:
- upstream: tcp+udp:192.0.2.1
blocking: {blockType: "192.0.2.66, 2001:db8::66", blockTTL: 1m, loading: {refreshPeriod: 12h}}
customDNS:
  customTTL: 1h
  mapping: {printer.lan: "192.168.7.3,fd00::3"}
  rewrite: {a.example: b.example}
  zone: "x"
conditional:
  mapping: {fritz.box: "192.168.7.1,192.168.7.2", .: 192.168.7.1}
  rewrite: {a.example: b.example}
caching: {minTime: 5m, maxTime: 30m, maxItemsCount: 10, prefetching: false}
filtering: {queryTypes: [AAAA]}
hostsFile: {filePath: /etc/hosts}
redis: {address: x}
"""


def test_names_upstreams_and_settings() -> None:
    found = of(REST)
    assert records(found) == {
        (name, rtype, target)
        for name in ("printer.lan", "*.printer.lan")
        for rtype, target in (("A", "192.168.7.3"), ("AAAA", "fd00::3"))
    }
    (forward,) = (z for z in specs(found, "DNSZone").values() if z.get("type") == "Forward")
    assert forward == {
        "zoneName": "fritz.box",
        "type": "Forward",
        "forward": {"upstreams": ["192.168.7.1", "192.168.7.2"]},
    }
    policy = specs(found, "Policy")["blocky-192.168.7.9"]
    assert policy["upstreams"] == ["192.0.2.7"]
    assert policy["customIPs"] == ["192.0.2.66", "2001:db8::66"]
    assert policy["blockTypes"] == ["AAAA"]
    assert found.settings == {
        "upstreams.groups.default": "192.0.2.1,tls://dns.example:853,https://dns.example/dns-query",
        "upstreams.strategy": "strict",
        "upstreams.timeout": "2s",
        "upstreams.bootstrap": "192.0.2.1",
        "blocking.ttl": "1m",
        "blocking.refreshInterval": "12h",
        "cache.minTTL": "5m",
        "cache.maxTTL": "30m",
        "cache.maxEntries": "10",
        "cache.prefetch": "false",
    }
    assert [left.at.partition(": ")[2] for left in found.left_out] == [
        "customDNS.zone",
        "customDNS.rewrite",
        "conditional.mapping..",
        "conditional.rewrite",
        "hostsFile",
        "redis",
    ]


@pytest.mark.parametrize(
    "text",
    ["x: 1", "blocking: 7", "upstreams: {strategy: odd}", "blocking: {blockType: odd}",
     "customDNS: {mapping: {a.lan: x}}", "customDNS: {mapping: {a..b: 192.0.2.1}}",
     "customDNS: {customTTL: soon, mapping: {a.lan: 192.0.2.1}}", "upstreams: &a {}\nblocking: *a"],
)  # fmt: skip
def test_broken_files_are_faults_with_their_line(text: str) -> None:
    with pytest.raises(Invalid) as refused:
        of(text)
    assert all(cause.at.startswith("config.yml:") for cause in refused.value.causes)
