"""The zone that `kudurru serve --demo` adds once, so that the first `dig` has something to find."""

from typing import Any

from kudurru.domain.kinds.meta import API_VERSION, DEFAULT_NAMESPACE
from kudurru.domain.kinds.validation import Manifest, parse_manifest
from kudurru.domain.objects import Key, key_of

ZONE = "demo.example"
KEY: Key = key_of("DNSZone", "", ZONE)

_HINT = f"served by kudurru: try kudurru history --zone {ZONE}"
_RECORDS = {
    "apex": [(ZONE, "TXT", _HINT), (ZONE, "MX", f"10 mail.{ZONE}")],
    "ns1": [(f"ns1.{ZONE}", "A", "127.0.0.1"), (f"ns1.{ZONE}", "AAAA", "::1")],
    "www": [(f"www.{ZONE}", "A", "192.0.2.80"), (f"www.{ZONE}", "AAAA", "2001:db8::80")],
    "mail": [(f"mail.{ZONE}", "A", "192.0.2.25")],
    "wildcard": [(f"*.apps.{ZONE}", "CNAME", f"www.{ZONE}")],
}


def manifests() -> list[Manifest]:
    """The demo zone and its record sets."""
    documents = [_document("DNSZone", ZONE, {"zoneName": ZONE, "nameservers": [f"ns1.{ZONE}"]})]
    for name, endpoints in _RECORDS.items():
        spec = {
            "zoneRef": {"name": ZONE},
            "endpoints": [
                {"dnsName": owner, "recordType": rtype, "targets": [target]}
                for owner, rtype, target in endpoints
            ],
        }
        documents.append(_document("DNSRecordSet", f"{name}.{ZONE}", spec))
    return [
        parse_manifest(document, what="demo", default_namespace=DEFAULT_NAMESPACE)
        for document in documents
    ]


def _document(kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": {"name": name}, "spec": spec}
