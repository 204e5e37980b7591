"""The zone that `kudurru serve --demo` adds once, so that the first `dig` has something to find."""

from typing import Any

from kudurru.domain.kinds.meta import API_VERSION, DEFAULT_NAMESPACE
from kudurru.domain.kinds.validation import Manifest, parse_manifest
from kudurru.domain.objects import Key, key_of

ZONE = "demo.example"
KEY: Key = key_of("DNSZone", "", ZONE)

_RECORDS = {
    "apex": [("demo.example", "TXT", ["served by kudurru: try kudurru history --zone demo.example"])],
    "ns1": [("ns1.demo.example", "A", ["127.0.0.1"]), ("ns1.demo.example", "AAAA", ["::1"])],
    "www": [("www.demo.example", "A", ["192.0.2.80"]), ("www.demo.example", "AAAA", ["2001:db8::80"])],
    "mail": [("demo.example", "MX", ["10 mail.demo.example"]), ("mail.demo.example", "A", ["192.0.2.25"])],
    "wildcard": [("*.apps.demo.example", "CNAME", ["www.demo.example"])],
}  # fmt: skip


def manifests() -> list[Manifest]:
    """The demo zone and its record sets."""
    documents = [
        _document("DNSZone", ZONE, {"zoneName": ZONE, "nameservers": ["ns1.demo.example"]})
    ]
    for name, endpoints in _RECORDS.items():
        spec = {
            "zoneRef": {"name": ZONE},
            "endpoints": [
                {"dnsName": owner, "recordType": rtype, "targets": targets}
                for owner, rtype, targets in endpoints
            ],
        }
        documents.append(_document("DNSRecordSet", f"{name}.{ZONE}", spec))
    return [
        parse_manifest(document, what="demo", default_namespace=DEFAULT_NAMESPACE)
        for document in documents
    ]


def _document(kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": {"name": name}, "spec": spec}
