"""Bounds and rules of every kind, and how a manifest that breaks them is refused."""

from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kudurru.domain.dns import records
from kudurru.domain.dns.record_types import TXT
from kudurru.domain.dns.tsig import ALGORITHMS
from kudurru.domain.errors import Cause, Invalid
from kudurru.domain.kinds.durations import duration_us
from kudurru.domain.kinds.meta import API_VERSION, Condition, Reason, is_enabled
from kudurru.domain.kinds.recordset import TARGET_MAX, expiry_s
from kudurru.domain.kinds.registry import KINDS, kind_by_word
from kudurru.domain.kinds.tsigkey import AlgorithmText
from kudurru.domain.kinds.validation import CAUSES_MAX, FOUND_MAX, Manifest, parse_manifest
from kudurru.domain.kinds.zone import DNSZoneSpec, zone_warnings
from tests.objects import document, endpoint, parse

Spec = dict[str, Any]

MINIMAL: dict[str, Spec] = {
    "DNSZone": {"zoneName": "example.org"},
    "DNSRecordSet": {"zoneRef": {"name": "example.org"}, "endpoints": []},
    "BlockList": {"sources": [{"inline": ["ads.example"]}]},
    "ClientGroup": {},
    "Policy": {},
    "TSIGKey": {
        "algorithm": "hmac-sha256",
        "secretDigest": f"sha256:{'0' * 32}:{'a' * 64}",
    },
}


def faults(value: Any, **how: Any) -> list[Cause]:
    with pytest.raises(Invalid) as caught:
        parse_manifest(value, what="test", default_namespace="default", **how)
    return list(caught.value.causes)


def fields(value: Any) -> list[str]:
    return [cause.field for cause in faults(value)]


def of(kind: str, /, **spec: Any) -> Any:
    return document(kind, "one", MINIMAL[kind] | spec)


def records_of(*endpoints: Any) -> Any:
    return of("DNSRecordSet", endpoints=list(endpoints))


def a(**fields: Any) -> Any:
    return endpoint("www.example.org", "A", "192.0.2.1") | fields


# One value that is accepted and one that is not, for each bound and rule: (field of the fault,
# accepted, refused). The documents are made from the values.

NAME_255 = ".".join(["a" * 63] * 3 + ["a" * 61])
NAME_256 = ".".join(["a" * 63] * 3 + ["a" * 62])


def zones(**spec: Any) -> Any:
    return of("DNSZone", **spec)


def secondary(**spec: Any) -> Any:
    return of("DNSZone", type="Secondary", secondary=spec)


def primaries(count: int) -> Any:
    return secondary(primaries=[{"address": "192.0.2.1"}] * count)


def lists(**spec: Any) -> Any:
    return of("BlockList", **spec)


def source(**fields: Any) -> Any:
    return of("BlockList", sources=[fields])


def client(**fields: Any) -> Any:
    return of("ClientGroup", clients=[fields])


def policy(**spec: Any) -> Any:
    return of("Policy", **spec)


def rewrite(**fields: Any) -> Any:
    return policy(rewrites=[{"name": "a.example", "targets": ["192.0.2.1"]} | fields])


def window(**fields: Any) -> Any:
    day = {"days": ["Mon"], "start": "22:00", "end": "06:00"}
    return policy(schedule={"windows": [day | fields]})


def named(name: str, kind: str = "DNSZone", **metadata: Any) -> Any:
    return document(kind, name, MINIMAL[kind], **metadata)


def labelled(**labels: str) -> Any:
    return named("one", labels=labels)


def annotated(annotations: dict[str, str]) -> Any:
    return named("one", annotations=annotations)


def txt(text: str) -> Any:
    return records_of(endpoint("www.example.org", "TXT", text))


def at(rtype: str, target: str) -> Any:
    return records_of(endpoint("www.example.org", rtype, target))


BOUNDS: dict[str, tuple[str, Any, Any]] = {
    # metadata
    "object name length": ("metadata.name", named("a" * 253), named("a" * 254)),
    "object name letters": ("metadata.name", named("a-1.b"), named("A_b")),
    "object name ends": ("metadata.name", named("a.b"), named("a.b.")),
    "namespace": (
        "metadata.namespace",
        named("a", "Policy", namespace="team-1"),
        named("a", "Policy", namespace="team.1"),
    ),
    "namespace length": (
        "metadata.namespace",
        named("a", "Policy", namespace="n" * 63),
        named("a", "Policy", namespace="n" * 64),
    ),
    "namespace of a cluster-scoped kind": (
        "metadata.namespace",
        named("a"),
        named("a", namespace="default"),
    ),
    "label value": ("metadata.labels[a]", labelled(a="x" * 63), labelled(a="x" * 64)),
    "label value letters": ("metadata.labels[a]", labelled(a=""), labelled(a="-x")),
    "label key": (
        "metadata.labels[a/b/c]",
        labelled(**{"a.b/c": "x"}),
        labelled(**{"a/b/c": "x"}),
    ),
    "annotation key": ("metadata.annotations[a b]", annotated({"A/b": ""}), annotated({"a b": ""})),
    "annotation key that lowers to ASCII": (
        "metadata.annotations[\u212a]",
        annotated({"K": ""}),
        annotated({"\u212a": ""}),
    ),
    "annotations in all": (
        "metadata.annotations",
        annotated({"a": "x" * ((256 << 10) - 1)}),
        annotated({"a": "x" * (256 << 10)}),
    ),
    "enabled": (
        "metadata.annotations[kudurru.io/enabled]",
        annotated({"kudurru.io/enabled": " FALSE "}),
        annotated({"kudurru.io/enabled": "off"}),
    ),
    # DNSZone
    "zone name": ("spec.zoneName", zones(zoneName=NAME_255), zones(zoneName=NAME_256)),
    "label of a zone name": (
        "spec.zoneName",
        zones(zoneName="a" * 63 + ".x"),
        zones(zoneName="a" * 64 + ".x"),
    ),
    "zone type": (
        "spec.type",
        zones(type="Forward", forward={"upstreams": ["udp://192.0.2.1"]}),
        zones(type="primary"),
    ),
    "default TTL": ("spec.defaultTTL", zones(defaultTTL=2**31 - 1), zones(defaultTTL=2**31)),
    "default TTL below zero": ("spec.defaultTTL", zones(defaultTTL=0), zones(defaultTTL=-1)),
    "SOA minimum": (
        "spec.soa.minimum",
        zones(soa={"minimum": 2**31 - 1}),
        zones(soa={"minimum": 2**31}),
    ),
    "SOA mname": ("spec.soa.mname", zones(soa={"mname": "ns."}), zones(soa={"mname": "a..b"})),
    "SOA rname as an address": (
        "spec.soa.rname",
        zones(soa={"rname": r"host\@master.x"}),
        zones(soa={"rname": "host.master@x.example"}),
    ),
    "SOA rname": ("spec.soa.rname", zones(soa={"rname": r"a\.b.c"}), zones(soa={"rname": "a b"})),
    "nameservers": (
        "spec.nameservers",
        zones(nameservers=["a"] * 32),
        zones(nameservers=["a"] * 33),
    ),
    "name server": ("spec.nameservers[0]", zones(nameservers=["a."]), zones(nameservers=[".a"])),
    "allowed namespaces": (
        "spec.allowedNamespaces",
        zones(allowedNamespaces=["a"] * 256),
        zones(allowedNamespaces=["a"] * 257),
    ),
    "allowed namespace": (
        "spec.allowedNamespaces[0]",
        zones(allowedNamespaces=["a"]),
        zones(allowedNamespaces=["A"]),
    ),
    "transfer.allow entries": (
        "spec.transfer.allow",
        zones(transfer={"allow": ["::/0"] * 64}),
        zones(transfer={"allow": ["::/0"] * 65}),
    ),
    "transfer.keys": (
        "spec.transfer.keys[0]",
        zones(transfer={"keys": ["key-1"]}),
        zones(transfer={"keys": ["key 1"]}),
    ),
    "transfer.keys for each target": (
        "spec.transfer.keys",
        zones(transfer={"notify": ["192.0.2.1", "192.0.2.2"], "keys": ["a", "b"]}),
        zones(transfer={"notify": ["192.0.2.1"], "keys": ["a", "b"]}),
    ),
    "transfer.notify multicast": (
        "spec.transfer.notify[0]",
        zones(transfer={"notify": ["192.0.2.1"]}),
        zones(transfer={"notify": ["224.0.0.251"]}),
    ),
    "TSIG key digest": (
        "spec.secretDigest",
        of("TSIGKey"),
        of("TSIGKey", secretDigest="0123"),
    ),
    "TSIG key algorithm": (
        "spec.algorithm",
        of("TSIGKey", algorithm="hmac-md5"),
        of("TSIGKey", algorithm="md5"),
    ),
    "transfer.allow": (
        "spec.transfer.allow[1]",
        zones(transfer={"allow": ["192.0.2.0/24", "key-1"]}),
        zones(transfer={"allow": ["192.0.2.0/24", "192.0.2.0/33"]}),
    ),
    "transfer.notify entries": (
        "spec.transfer.notify",
        zones(transfer={"notify": ["::1"] * 64}),
        zones(transfer={"notify": ["::1"] * 65}),
    ),
    "transfer.notify": (
        "spec.transfer.notify[2]",
        zones(transfer={"notify": ["192.0.2.1", "192.0.2.1:53", "[2001:db8::1]:53"]}),
        zones(transfer={"notify": ["192.0.2.1", "192.0.2.1:53", "192.0.2.1:0"]}),
    ),
    "primaries": ("spec.secondary.primaries", primaries(16), primaries(17)),
    "scope of transfer.notify": (
        "spec.transfer.notify[0]",
        zones(transfer={"notify": ["[fe80::1%eth0]:53"]}),
        zones(transfer={"notify": ["[2001:db8::1%eth0]:53"]}),
    ),
    "scope of transfer.allow": (
        "spec.transfer.allow[0]",
        zones(transfer={"allow": ["fe80::/10"]}),
        zones(transfer={"allow": ["fe80::%eth0/64"]}),
    ),
    "scope of customIPs": (
        "spec.customIPs[0]",
        policy(blockMode="custom", customIPs=["2001:db8::1"]),
        policy(blockMode="custom", customIPs=["2001:db8::1%a"]),
    ),
    "scope of ip": (
        "spec.clients[0].ip",
        client(ip="fe80::1%eth0"),
        client(ip="fe80::1%eth 0"),
    ),
    "scope of cidr": (
        "spec.clients[0].cidr",
        client(cidr="fe80::/10"),
        client(cidr="fe80::%eth0/64"),
    ),
    "upstream's control characters": (
        "spec.forward.upstreams[0]",
        zones(type="Forward", forward={"upstreams": ["tls://[2001:db8::1]#ip=2001:db8::1"]}),
        zones(type="Forward", forward={"upstreams": ["tls://[2001:db8::1]#name=a\x1b[31m"]}),
    ),
    "scope of a primary": (
        "spec.secondary.primaries[0].address",
        secondary(primaries=[{"address": "fe80::1%eth0"}]),
        secondary(primaries=[{"address": "2001:db8::1%eth0"}]),
    ),
    "text in the place of a scope": (
        "spec.secondary.primaries[0].address",
        secondary(primaries=[{"address": "fe80::1%br-lan.2"}]),
        secondary(primaries=[{"address": "fe80::1%\x1b[31m\nOK"}]),
    ),
    "no primary": ("spec.secondary.primaries", primaries(1), primaries(0)),
    "address of a primary": (
        "spec.secondary.primaries[0].address",
        secondary(primaries=[{"address": "2001:db8::1"}]),
        secondary(primaries=[{"address": "ns.example"}]),
    ),
    "port of a primary": (
        "spec.secondary.primaries[0].port",
        secondary(primaries=[{"address": "192.0.2.1", "port": 65535}]),
        secondary(primaries=[{"address": "192.0.2.1", "port": 65536}]),
    ),
    "transport": (
        "spec.secondary.transport",
        secondary(primaries=[{"address": "192.0.2.1"}], transport="tls"),
        secondary(primaries=[{"address": "192.0.2.1"}], transport="udp"),
    ),
    "secondary of a secondary zone": ("spec.secondary", primaries(1), zones(type="Secondary")),
    "secondary of a primary zone": (
        "spec.type",
        zones(),
        zones(secondary={"primaries": [{"address": "192.0.2.1"}]}),
    ),
    "forward of a forward zone": (
        "spec.forward",
        zones(type="Forward", forward={"upstreams": ["udp://192.0.2.1"]}),
        zones(type="Forward"),
    ),
    # DNSRecordSet
    "zone of a record set": (
        "spec.zoneRef.name",
        of("DNSRecordSet", zoneRef={"name": "a.b"}),
        of("DNSRecordSet", zoneRef={"name": "a/b"}),
    ),
    "endpoints": (
        "spec.endpoints",
        records_of(*(a(setIdentifier=str(i)) for i in range(256))),
        records_of(*(a(setIdentifier=str(i)) for i in range(257))),
    ),
    "targets": (
        "spec.endpoints[0].targets",
        records_of(a(targets=[f"192.0.2.{i}" for i in range(256)])),
        records_of(a(targets=["192.0.2.1"] * 257)),
    ),
    "no target": ("spec.endpoints[0].targets", records_of(a()), records_of(a(targets=[]))),
    "owner name": (
        "spec.endpoints[0].dnsName",
        records_of(a(dnsName=NAME_255)),
        records_of(a(dnsName=NAME_256)),
    ),
    "record type": (
        "spec.endpoints[0].recordType",
        records_of(a(recordType="a")),
        records_of(a(recordType="ADDRESS")),
    ),
    "record TTL": (
        "spec.endpoints[0].recordTTL",
        records_of(a(recordTTL=2**31 - 1)),
        records_of(a(recordTTL=2**31)),
    ),
    "set identifier": (
        "spec.endpoints[0].setIdentifier",
        records_of(a(setIdentifier="x" * 128)),
        records_of(a(setIdentifier="x" * 129)),
    ),
    "expiresAt": (
        "spec.endpoints[0].expiresAt",
        records_of(a(expiresAt="2027-01-31T12:00:00+01:00")),
        records_of(a(expiresAt="2027-01-31T12:00:00")),
    ),
    "expiresAt of another form": (
        "spec.endpoints[0].expiresAt",
        records_of(a(expiresAt="2027-01-31T12:00:00.123Z")),
        records_of(a(expiresAt="20270131T120000Z")),
    ),
    "one identity": (
        "spec.endpoints[1]",
        records_of(a(), a(setIdentifier="b")),
        records_of(a(), a(dnsName="WWW.example.ORG.", targets=["192.0.2.2"])),
    ),
    "an identity that is switched off": (
        "spec.endpoints[1]",
        records_of(a(disabled=True), a(setIdentifier="b")),
        records_of(a(disabled=True), a()),
    ),
    "SOA in a record set": (
        "spec.endpoints[0].recordType",
        at("NS", "ns.example.org"),
        at("SOA", "ns. host. 1 2 3 4 5"),
    ),
    "meta type": ("spec.endpoints[0].recordType", at("TYPE65280", r"\# 0"), at("ANY", r"\# 0")),
    "CNAME of two targets": (
        "spec.endpoints[0].targets",
        at("CNAME", "a.example"),
        records_of(endpoint("www.example.org", "CNAME", "a.example", "b.example")),
    ),
    "second CNAME": (
        "spec.endpoints[1]",
        records_of(
            endpoint("www.example.org", "CNAME", "a.example"),
            endpoint("www.example.org", "CNAME", "b.example", setIdentifier="b", disabled=True),
        ),
        records_of(
            endpoint("www.example.org", "CNAME", "a.example"),
            endpoint("www.example.org", "CNAME", "b.example", setIdentifier="b"),
        ),
    ),
    "CNAME beside other data": (
        "spec.endpoints[0]",
        records_of(a(disabled=True), endpoint("www.example.org", "CNAME", "a.example")),
        records_of(a(), endpoint("www.example.org", "CNAME", "a.example")),
    ),
    "A": ("spec.endpoints[0].targets[0]", at("A", "192.0.2.1"), at("A", "192.0.2.256")),
    "AAAA": ("spec.endpoints[0].targets[0]", at("AAAA", "2001:db8::1"), at("AAAA", "192.0.2.1")),
    "MX": ("spec.endpoints[0].targets[0]", at("MX", "10 mx.example"), at("MX", "mx.example")),
    "SRV": ("spec.endpoints[0].targets[0]", at("SRV", "0 0 65535 a."), at("SRV", "0 0 65536 a.")),
    "CAA": ("spec.endpoints[0].targets[0]", at("CAA", '0 issue "a"'), at("CAA", '256 issue "a"')),
    "PTR": ("spec.endpoints[0].targets[0]", at("PTR", "a.example."), at("PTR", "a..example")),
    "DNAME": ("spec.endpoints[0].targets[0]", at("DNAME", "a.example"), at("DNAME", "a b")),
    "NS": ("spec.endpoints[0].targets[0]", at("NS", "ns.example"), at("NS", "x" * 64)),
    "TXT": ("spec.endpoints[0].targets[0]", txt('a "b; c'), txt('"a" "b')),
    "unknown type": (
        "spec.endpoints[0].targets[0]",
        at("TYPE65280", r"\# 2 abcd"),
        at("TYPE65280", "abcd"),
    ),
    # BlockList
    "sources": (
        "spec.sources",
        lists(sources=[{"inline": []}] * 256),
        lists(sources=[{"inline": []}] * 257),
    ),
    "no source": ("spec.sources", lists(), lists(sources=[])),
    "one of a source": (
        "spec.sources[0]",
        source(configMapRef={"name": "a"}),
        source(url="https://a.example", inline=[]),
    ),
    "none of a source": ("spec.sources[0]", source(url="file:/lists/a"), source()),
    "inline lines": (
        "spec.sources[0].inline",
        source(inline=["a"] * 10_000),
        source(inline=["a"] * 10_001),
    ),
    "inline line": (
        "spec.sources[0].inline[0]",
        source(inline=["a" * 4096]),
        source(inline=["a" * 4097]),
    ),
    "scheme": ("spec.sources[0].url", source(url="http://a.example"), source(url="ftp://a.example")),
    "user in a URL": (
        "spec.sources[0].url",
        source(url="https://a.example/@x"),
        source(url="https://me:secret@a.example/x"),
    ),
    "token in a URL": (
        "spec.sources[0].url",
        source(url="https://a.example/?page=2"),
        source(url="https://a.example/?page=2&ApiKey=x"),
    ),
    "format": ("spec.format", lists(format="rpz"), lists(format="bind")),
    "kind": ("spec.kind", lists(kind="allow"), lists(kind="block")),
    "match": ("spec.match", lists(match="subtree"), lists(match="regex")),
    "refresh interval": (
        "spec.refreshInterval",
        lists(refreshInterval="1h30m"),
        lists(refreshInterval="1 hour"),
    ),
    "maxBytes": ("spec.maxBytes", lists(maxBytes=1 << 30), lists(maxBytes=(1 << 30) + 1)),
    # ClientGroup
    "clients": (
        "spec.clients",
        of("ClientGroup", clients=[{"ip": "192.0.2.1"}] * 1000),
        of("ClientGroup", clients=[{"ip": "192.0.2.1"}] * 1001),
    ),
    "one of a client": (
        "spec.clients[0]",
        client(listener="dot"),
        client(ip="192.0.2.1", mac="00:00:5e:00:53:01"),
    ),
    "none of a client": ("spec.clients[0]", client(ip="::1"), client()),
    "cidr": ("spec.clients[0].cidr", client(cidr="192.0.2.1/24"), client(cidr="192.0.2.0/33")),
    "ip": ("spec.clients[0].ip", client(ip="2001:db8::1"), client(ip="192.0.2.0/24")),
    "mac": (
        "spec.clients[0].mac",
        client(mac="00-00-5E-00-53-01"),
        client(mac="00:00:5e:00:53"),
    ),
    "clientID": ("spec.clients[0].clientID", client(clientID="phone-1"), client(clientID="a.b")),
    "ipSuffix": (
        "spec.clients[0].ipSuffix",
        client(ipSuffix="::1:2:3:4"),
        client(ipSuffix="2001:db8::1"),
    ),
    # Policy
    "priority": ("spec.priority", policy(priority=-1_000_000), policy(priority=1_000_001)),
    "clientGroupRefs": (
        "spec.clientGroupRefs",
        policy(clientGroupRefs=["a"] * 128),
        policy(clientGroupRefs=["a"] * 129),
    ),
    "clientGroupRef": (
        "spec.clientGroupRefs[0]",
        policy(clientGroupRefs=["team/kids"]),
        policy(clientGroupRefs=["a/b/c"]),
    ),
    "blockListRefs": (
        "spec.blockListRefs",
        policy(blockListRefs=["a"] * 128),
        policy(blockListRefs=["a"] * 129),
    ),
    "blockListRef": (
        "spec.blockListRefs[0]",
        policy(blockListRefs=["a.b"]),
        policy(blockListRefs=["/a"]),
    ),
    "allow entries": ("spec.allow", policy(allow=["a"] * 1000), policy(allow=["a"] * 1001)),
    "deny entries": ("spec.deny", policy(deny=["a"] * 1000), policy(deny=["a"] * 1001)),
    "wildcard": ("spec.allow[0]", policy(allow=["*.a.example"]), policy(allow=["*."])),
    "regex": ("spec.deny[0]", policy(deny=["/ads[0-9]/"]), policy(deny=["/ads"])),
    "regex length": (
        "spec.deny[0]",
        policy(deny=["/" + "a" * 4094 + "/"]),
        policy(deny=["/" + "a" * 4095 + "/"]),
    ),
    "rewrites": (
        "spec.rewrites",
        policy(rewrites=[{"name": "a", "targets": ["192.0.2.1"]}] * 1000),
        policy(rewrites=[{"name": "a", "targets": ["192.0.2.1"]}] * 1001),
    ),
    "name of a rewrite": ("spec.rewrites[0].name", rewrite(name="*.a"), rewrite(name="..")),
    "type of a rewrite": (
        "spec.rewrites[0].type",
        rewrite(type="AAAA", targets=["::1"]),
        rewrite(type="QUAD-A"),
    ),
    "target of a rewrite": (
        "spec.rewrites[0].targets[0]",
        rewrite(type="CNAME", targets=["b.example"]),
        rewrite(targets=["b.example"]),
    ),
    "block types": ("spec.blockTypes[0]", policy(blockTypes=["HTTPS"]), policy(blockTypes=["X"])),
    "block mode": ("spec.blockMode", policy(blockMode="nodata"), policy(blockMode="null")),
    "customIPs of another mode": (
        "spec.blockMode",
        policy(blockMode="custom", customIPs=["192.0.2.1"]),
        policy(customIPs=["192.0.2.1"]),
    ),
    "no customIPs": (
        "spec.customIPs",
        policy(blockMode="custom", customIPs=["::1"]),
        policy(blockMode="custom"),
    ),
    "customIPs": (
        "spec.customIPs",
        policy(blockMode="custom", customIPs=["::1"] * 16),
        policy(blockMode="custom", customIPs=["::1"] * 17),
    ),
    "block TTL": ("spec.blockTTL", policy(blockTTL=0), policy(blockTTL=2**31)),
    "windows": (
        "spec.schedule.windows",
        policy(schedule={"windows": [{"days": ["Mon"], "start": "22:00", "end": "06:00"}] * 64}),
        policy(schedule={"windows": [{"days": ["Mon"], "start": "22:00", "end": "06:00"}] * 65}),
    ),
    "day": ("spec.schedule.windows[0].days[0]", window(days=["Sun"]), window(days=["sunday"])),
    "start": ("spec.schedule.windows[0].start", window(start="00:00"), window(start="0:00")),
    "end": ("spec.schedule.windows[0].end", window(end="24:00"), window(end="24:01")),
    "time zone": (
        "spec.schedule.timeZone",
        policy(schedule={"timeZone": "America/Port-au-Prince", "windows": [
            {"days": ["Mon"], "start": "22:00", "end": "06:00"}]}),
        policy(schedule={"timeZone": "../etc/passwd", "windows": [
            {"days": ["Mon"], "start": "22:00", "end": "06:00"}]}),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BOUNDS.values(), ids=BOUNDS.keys())
def test_a_bound_accepts_its_last_value_and_refuses_the_next(case: tuple[str, Any, Any]) -> None:
    field, accepted, refused = case
    assert isinstance(parse(accepted), Manifest)
    assert fields(refused) == [field]


def test_an_object_may_take_a_mebibyte_with_its_metadata_and_no_more() -> None:
    spec = {"sources": [{"inline": ["x" * 4096] * 180}]}
    annotations = {"note": "y" * 100_000}
    parse(document("BlockList", "one", spec, annotations=annotations))
    labels = {f"a{i}": "x" * 60 for i in range(3500)}
    (fault,) = faults(document("BlockList", "one", spec, annotations=annotations, labels=labels))
    assert "at most 1048576" in fault.message


def test_a_target_may_hold_the_largest_record_there_is() -> None:
    rdata = b"".join(b"\xff" + b"\x07" * 255 for _ in range(255)) + b"\xfe" + b"\x07" * 254
    assert len(rdata) == 65_535
    text = records.rdata_to_text(TXT, rdata)
    assert len(text) <= TARGET_MAX
    parse(txt(text))


# All faults at once


def test_all_faults_are_named_at_once_each_with_its_path() -> None:
    value = {
        "apiVersion": "kudurru.io/v1",
        "kind": "DNSRecordSet",
        "metadata": {"name": "UPPER", "lables": {}, "labels": {"a": "-"}},
        "spec": {
            "zoneRef": {"name": "example.org"},
            "endpoints": [
                a(recordTTL=-1, targets=["192.0.2.1", "192.0.2.300"]),
                a(dnsName="a..b"),
                a(dnsName="b", recordType="NOPE", ttl=5),
            ],
        },
        "data": {},
    }
    assert sorted(fields(value)) == [
        "apiVersion",
        "data",
        "metadata.labels[a]",
        "metadata.lables",
        "metadata.name",
        "spec.endpoints[0].recordTTL",
        "spec.endpoints[0].targets[1]",
        "spec.endpoints[1].dnsName",
        "spec.endpoints[2].recordType",
        "spec.endpoints[2].ttl",
    ]


def test_the_error_names_the_document_the_object_and_every_fault() -> None:
    with pytest.raises(Invalid) as caught:
        parse_manifest(
            zones(defaultTTL=-1, nameservers=["a..b"]), what="zone.yaml", default_namespace=""
        )
    assert str(caught.value) == (
        "zone.yaml: DNSZone one: 2 faults\n"
        "  spec.defaultTTL: -1 is too small; at least 0\n"
        "  spec.nameservers[0]: 'a..b' has an empty label"
    )


def test_one_fault_is_told_in_one_line() -> None:
    with pytest.raises(Invalid) as caught:
        parse_manifest(zones(defaultTTL=-1), what="zone.yaml", default_namespace="")
    assert str(caught.value) == (
        "zone.yaml: DNSZone one: spec.defaultTTL: -1 is too small; at least 0"
    )


def test_a_flood_of_faults_is_cut_and_counted() -> None:
    found = faults(policy(deny=["a..b"] * 150))
    assert len(found) == CAUSES_MAX + 1
    assert found[-1].message == "and 50 more"


@pytest.mark.parametrize("count", [FOUND_MAX, 200_000])
def test_what_is_all_faults_is_not_looked_at_to_its_end(count: int) -> None:
    """A hundred thousand fields that nobody knows took twenty seconds."""
    for value in (
        policy(**{f"x{i}": i for i in range(count)}),
        {**policy(), "metadata": {"name": "p", "labels": {f"/{i}": i for i in range(count)}}},
        {**policy(), **{f"x{i}": 1 for i in range(count)}},
    ):
        found = faults(value)
        assert len(found) == CAUSES_MAX + 1
        assert found[-1].message == "and many more"


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (source(url=5), ["spec.sources[0].url"]),
        (zones(type="Secundary", secondary={"primaries": []}),
         ["spec.type", "spec.secondary.primaries"]),
        (zones(type="Secundary", secondary={"primaries": [{"address": "::1"}]}), ["spec.type"]),
        (policy(blockMode="costum", customIPs=["::1"]), ["spec.blockMode"]),
        (client(ip=5), ["spec.clients[0].ip"]),
        (policy(blockMode="custom", customIPs="::1"), ["spec.customIPs"]),
        (zones(type="Forward", forward=[]), ["spec.forward"]),
    ],
)  # fmt: skip
def test_a_fault_does_not_bring_others_that_are_none(value: Any, wanted: list[str]) -> None:
    assert fields(value) == wanted


# What is missing or unknown


@pytest.mark.parametrize("value", [None, [], "text", 5, True])
def test_what_is_no_object_is_refused_with_a_word_on_how_one_begins(value: Any) -> None:
    (fault,) = faults(value)
    assert "apiVersion, kind, metadata" in fault.message


@pytest.mark.parametrize("part", ["apiVersion", "kind", "metadata", "spec"])
def test_a_missing_part_is_named(part: str) -> None:
    value = zones()
    del value[part]
    assert [f for f in fields(value) if f.startswith(part)]


@pytest.mark.parametrize(
    ("kind", "hint"), [("dnszone", "'DNSZone'"), ("DNSRecordset", "'DNSRecordSet'"), ("Pod", "")]
)
def test_an_unknown_kind_is_refused_with_those_there_are(kind: str, hint: str) -> None:
    (fault,) = faults(zones() | {"kind": kind})
    assert fault.field == "kind"
    assert all(known in fault.message for known in KINDS)
    assert hint in fault.message
    assert ("did you mean" in fault.message) == bool(hint)


@pytest.mark.parametrize("version", ["v1", "kudurru.io/v1", "", None, 5])
def test_an_unknown_version_is_refused_with_the_one_to_write(version: Any) -> None:
    (fault,) = faults(zones() | {"apiVersion": version})
    assert fault.field == "apiVersion"
    assert API_VERSION in fault.message


def test_an_unknown_field_is_refused_with_the_one_that_was_probably_meant() -> None:
    (fault,) = faults(zones(defaultTtl=300))
    assert (fault.field, fault.message) == (
        "spec.defaultTtl",
        "unknown field; did you mean 'defaultTTL'?",
    )


def test_status_is_accepted_and_ignored_as_kubectl_writes_it() -> None:
    assert parse(zones() | {"status": {"anything": [1]}}) == parse(zones())


# YAML traps: a document reader gives builtins, and the message says how to write what was meant


@pytest.mark.parametrize(
    ("value", "field", "hint"),
    [
        (annotated({"kudurru.io/enabled": False}), "metadata.annotations[kudurru.io/enabled]",
         'the boolean false; if text is meant, put it in quotes: "false"'),
        (labelled(zone=5), "metadata.labels[zone]",
         'the number 5; if text is meant, put it in quotes: "5"'),
        (records_of(a(dnsName=1.5)), "spec.endpoints[0].dnsName",
         'the number 1.5; if text is meant, put it in quotes: "1.5"'),
        (records_of(a(recordType=None)), "spec.endpoints[0].recordType", "nothing"),
        (records_of(a(targets="192.0.2.1")), "spec.endpoints[0].targets",
         "expected a list, found text '192.0.2.1'"),
        (records_of(a(recordTTL="300")), "spec.endpoints[0].recordTTL",
         "expected a number, found text '300'"),
        (records_of(a(recordTTL=True)), "spec.endpoints[0].recordTTL", "expected a number"),
        (records_of(a(disabled="no")), "spec.endpoints[0].disabled", "expected true or false"),
        (policy(blockMode=None), "spec.blockMode", "nothing is none of custom, "),
        (zones(soa="ns. host."), "spec.soa", "expected a mapping, found text"),
        (zones(zoneName={"a": 1}), "spec.zoneName", "expected text, found a mapping"),
        (zones(nameservers=["ns.", ["x"]]), "spec.nameservers[1]", "expected text, found a list"),
    ],
)  # fmt: skip
def test_a_value_of_another_type_is_refused_with_what_was_found(
    value: Any, field: str, hint: str
) -> None:
    (fault,) = faults(value)
    assert fault.field == field
    assert hint in fault.message


def test_the_text_of_the_document_is_shown_where_it_is_known() -> None:
    found = faults(labelled(zone=False), source_text={"metadata.labels[zone]": "no"}.get)
    assert 'the boolean no; if text is meant, put it in quotes: "no"' in found[0].message


# Reading manifests of any kind


json_like = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(), max_size=8)
    | st.sampled_from(["DNSZone", "DNSRecordSet", "Policy", "a.example", "192.0.2.1", "A", "5m"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=8,
)


def _field_names() -> list[str]:
    def walk(type_: Any) -> Any:
        for part in msgspec.structs.fields(type_):
            yield part.encode_name

    return sorted({name for kind in KINDS.values() for name in walk(kind.spec)})


def causes_of(value: Any) -> list[Cause]:
    """Faults of a value, none when it is a manifest. Nothing but Invalid may be raised."""
    try:
        parse(value)
    except Invalid as error:
        return list(error.causes) if str(error) else []
    return []


@given(
    st.sampled_from([*KINDS, "Pod"]),
    st.dictionaries(st.sampled_from([*_field_names(), "x"]), json_like, max_size=4) | json_like,
    st.dictionaries(
        st.sampled_from(["name", "namespace", "labels", "annotations", "uid", "x"]), json_like
    )
    | json_like,
)
def test_whatever_is_given_is_a_manifest_or_invalid(kind: Any, spec: Any, meta: Any) -> None:
    causes_of({"apiVersion": API_VERSION, "kind": kind, "metadata": meta, "spec": spec})


@given(json_like)
def test_a_value_that_is_no_envelope_is_invalid(value: Any) -> None:
    assert causes_of(value)


@given(
    st.sampled_from(
        ["dnsName", "recordType", "recordTTL", "setIdentifier", "expiresAt", "targets"]
    ),
    json_like,
)
def test_any_value_of_a_field_is_accepted_or_a_fault_of_that_field(field: str, value: Any) -> None:
    for cause in causes_of(records_of(a(**{field: value}))):
        assert cause.field.startswith("spec.endpoints[0]") or not cause.field


@pytest.mark.parametrize("place", ["zoneName", "label", "annotation", "target"])
def test_half_of_a_surrogate_pair_is_invalid_wherever_it_stands(place: str) -> None:
    half = "a\ud800"
    value = {
        "zoneName": zones(zoneName=half),
        "label": labelled(a=half),
        "annotation": annotated({"a": half}),
        "target": txt(half),
    }[place]
    assert faults(value)


# Small parts


@pytest.mark.parametrize(
    ("text", "us"),
    [("0s", 0), ("250ms", 250_000), ("30s", 30_000_000), ("1h30m", 5_400_000_000),
     ("7d", 604_800_000_000), ("1w", 604_800_000_000)],
)  # fmt: skip
def test_durations_are_read_as_people_write_them(text: str, us: int) -> None:
    assert duration_us(text) == us


@pytest.mark.parametrize("text", ["", "5", "s", "1.5h", "-1s", "1h 30m", "36526d", "1y", "٣s"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is no duration|longer than 100 years"):
        duration_us(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("1970-01-01T00:00:01Z", 1), ("1970-01-01T01:00:01+01:00", 1), ("1970-01-01T00:00:01.9Z", 1)],
)
def test_a_time_means_whole_seconds_utc(text: str, seconds: int) -> None:
    assert expiry_s(text) == seconds


@pytest.mark.parametrize(
    ("value", "is_on"),
    [("false", False), ("False", False), (" FALSE\t", False), ("true", True), ("", True)],
)
def test_the_switch_is_read_in_any_letter_case_and_trimmed(value: str, is_on: bool) -> None:
    assert is_enabled({"kudurru.io/enabled": value}) is is_on


def test_an_object_without_the_switch_is_on() -> None:
    assert is_enabled({})


@pytest.mark.parametrize(
    ("word", "kind"),
    [("zone", "DNSZone"), ("zones", "DNSZone"), ("DNSZones", "DNSZone"), ("rs", "DNSRecordSet"),
     ("bl", "BlockList"), ("BlockList", "BlockList"), ("CG", "ClientGroup"), ("policies", "Policy"),
     ("pol", "Policy")],
)  # fmt: skip
def test_a_kind_is_found_by_any_of_its_words(word: str, kind: str) -> None:
    assert kind_by_word(word).name == kind


def test_an_unknown_word_for_a_kind_is_refused_with_the_nearest() -> None:
    with pytest.raises(Invalid, match="did you mean DNSZone"):
        kind_by_word("zonne")


def test_a_condition_has_the_shape_of_kubernetes() -> None:
    shown = msgspec.to_builtins(Condition(type="Ready", status="True", reason="AsExpected"))
    assert list(shown) == [
        "type", "status", "reason", "message", "observedGeneration", "lastTransitionTime",
    ]  # fmt: skip


@pytest.mark.parametrize("status", ["True", "False", "Unknown"])
def test_the_status_of_a_condition_is_one_of_three(status: str) -> None:
    value = {"type": "Ready", "status": status, "reason": "AsExpected"}
    assert msgspec.convert(value, Condition).status == status
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(value | {"status": status.lower()}, Condition)


def test_the_reasons_that_controllers_give_are_shared() -> None:
    wanted = {"AsExpected", "ZoneNotFound", "NotSelected", "MissingReference", "Unsupported",
              "Duplicated", "OutsideZone", "Invalid"}  # fmt: skip
    assert wanted <= set(get_args(Reason))


def test_every_list_of_every_spec_has_a_bound() -> None:
    def unbounded(type_: Any, path: str) -> Any:
        match type_:
            case msgspec.inspect.StructType(fields=parts):
                for part in parts:
                    yield from unbounded(part.type, f"{path}.{part.encode_name}")
            case msgspec.inspect.ListType(item_type=item, max_length=bound):
                if bound is None:
                    yield path
                yield from unbounded(item, f"{path}[]")
            case msgspec.inspect.UnionType(types=types):
                for one in types:
                    yield from unbounded(one, path)

    found = [
        path
        for kind in KINDS.values()
        for path in unbounded(msgspec.inspect.type_info(kind.spec), kind.name)
    ]
    assert found == []


def test_an_address_as_rname_is_answered_with_the_name_it_means() -> None:
    (fault,) = faults(zones(soa={"rname": "host.master@x.example"}))
    assert r"host\.master.x.example" in fault.message


@pytest.mark.parametrize(
    ("allow", "is_warned"),
    [([], False), (["192.0.2.0/24"], True), (["192.0.2.0/24", "k1"], False), (["k1"], False)],
)
def test_transfers_by_address_alone_are_warned_of(allow: list[str], is_warned: bool) -> None:
    spec = parse(zones(transfer={"allow": allow})).spec
    assert isinstance(spec, DNSZoneSpec)
    assert bool(list(zone_warnings(spec))) == is_warned


NAMED = {"nameservers": [f"ns{i}.x.example" for i in range(6)], "soa": {"rname": "h.x.example"}}


@pytest.mark.parametrize(
    ("before", "after", "warned"),
    [
        (NAMED, {}, ["name servers, ns0.x.example, ns1.x.example, ", "SOA, rname h.x.example"]),
        (NAMED, {"soa": NAMED["soa"]}, ["name servers"]),
        (NAMED, {"nameservers": ["ns9.x.example"]}, ["SOA"]),
        (NAMED, {"nameservers": ["ns9.x.example"], "soa": {"refresh": 60}}, []),
        (NAMED, NAMED, []),
        ({}, NAMED, []),
        ({}, {"defaultTTL": 60}, []),
        (NAMED, {"type": "Forward", "forward": {"upstreams": ["udp://192.0.2.1"]}}, []),
    ],
)  # fmt: skip
def test_a_zone_that_replaces_one_is_warned_of_what_is_gone(before, after, warned) -> None:
    found = [parse(zones(**spec)).spec for spec in (before, after)]
    was, now = (spec for spec in found if isinstance(spec, DNSZoneSpec))
    told = list(zone_warnings(now, was))
    assert len(told) == len(warned)
    for part, text in zip(warned, told, strict=True):
        assert f" loses its {part}" in text
        assert "`kudurru undo`" in text
        assert "SOA" in part or "ns3.x.example and 2 more: " in text


def test_keys_may_have_every_algorithm_that_is_implemented() -> None:
    assert set(get_args(AlgorithmText)) == set(ALGORITHMS)
