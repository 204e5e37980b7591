"""What who is no admin may have this node send to."""

from typing import Any

import msgspec
import pytest

from kudurru.domain.kinds.blocklist import BlockListSpec
from kudurru.domain.kinds.policy import PolicySpec
from kudurru.domain.kinds.reach import reach_faults
from kudurru.domain.kinds.zone import DNSZoneSpec

KINDS = {"zone": DNSZoneSpec, "policy": PolicySpec, "list": BlockListSpec}


def faults(kind: str, *, allow_private: bool = False, **spec: Any) -> dict[str, str]:
    if kind == "zone":
        spec |= {"zoneName": "lab.example."}
    parsed = msgspec.convert(spec, KINDS[kind])
    found = reach_faults(parsed, allow_private=allow_private, groups=("office",))
    return {cause.field: cause.message for cause in found}


@pytest.mark.parametrize(
    ("kind", "spec", "fields"),
    [
        (
            "zone",
            {"type": "Forward", "forward": {"upstreams": ["127.0.0.1:53", "tls://dns.example",
                                                          "1.1.1.1", "tls://x.example#ip=10.0.0.1"]}},
            ["spec.forward.upstreams[0]", "spec.forward.upstreams[1]",
             "spec.forward.upstreams[3]"],
        ),
        (
            "zone",
            {"type": "Secondary", "secondary": {"primaries": [{"address": "169.254.169.254"},
                                                              {"address": "2606:4700::1"}]}},
            ["spec.secondary.primaries[0].address"],
        ),
        (
            "zone",
            {"transfer": {"notify": ["10.0.0.1", "10.0.0.2:5353", "[::1]:53", "fe80::1",
                                     "1.1.1.1:53", "2606:4700::1"]}},
            [f"spec.transfer.notify[{i}]" for i in range(4)],
        ),
        (
            "zone",
            {"catalog": {"groups": [{"name": "a", "secondary": {"primaries": [
                {"address": "127.0.0.1"}]}}], "transfer": {"notify": ["::1"]}}},
            ["spec.catalog.groups[0].secondary.primaries[0].address",
             "spec.catalog.transfer.notify[0]"],
        ),
        ("policy", {"upstreams": ["office", "192.168.1.1", "9.9.9.9"]}, ["spec.upstreams[1]"]),
        ("list", {"sources": [{"url": "file:/etc/passwd"}, {"url": "https://lists.example/a"}]},
         ["spec.sources[0].url"]),
    ],
)  # fmt: skip
def test_every_field_that_leads_inside_is_named(
    kind: str, spec: dict[str, Any], fields: list[str]
) -> None:
    assert list(faults(kind, **spec)) == fields


def test_private_addresses_may_be_allowed_and_this_machine_may_not() -> None:
    upstreams = {"upstreams": ["192.168.1.1", "127.0.0.1"]}
    assert list(faults("policy", allow_private=True, **upstreams)) == ["spec.upstreams[1]"]
    told = faults("policy", **upstreams)
    assert told["spec.upstreams[0]"] == (
        "192.168.1.1 is private, and lists.allowPrivate is off; an admin may apply this"
    )
    assert told["spec.upstreams[1]"] == "127.0.0.1 is this machine itself; an admin may apply this"


def test_a_scope_hides_no_address_and_is_not_repeated() -> None:
    hostile = ["fd00:ec2::254%\x1b[31m\nOK", "[::ffff:169.254.169.254%a]:53", "::1%lo"]
    found = faults("zone", allow_private=True, transfer={"notify": hostile})
    assert sorted(found) == [f"spec.transfer.notify[{i}]" for i in range(3)]
    assert all(message.isprintable() for message in found.values())
    assert "metadata service" in found["spec.transfer.notify[0]"]
