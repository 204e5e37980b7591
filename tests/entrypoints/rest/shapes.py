"""Manifests that these tests share."""

from typing import Any

VERSION = "kudurru.io/v1alpha1"


def zone(name: str) -> dict[str, Any]:
    return {
        "apiVersion": VERSION, "kind": "DNSZone", "metadata": {"name": name},
        "spec": {"zoneName": name},
    }  # fmt: skip


def record_set(name: str, of: str, namespace: str, target: str = "192.0.2.1") -> dict[str, Any]:
    endpoint = {"dnsName": f"{name}.{of}", "recordType": "A", "targets": [target]}
    return {
        "apiVersion": VERSION, "kind": "DNSRecordSet",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"zoneRef": {"name": of}, "endpoints": [endpoint]},
    }  # fmt: skip
