"""Addresses that others may not send us to."""

from ipaddress import ip_address

import pytest

from kudurru.domain.outbound import why_refused

NEVER = ["127.0.0.1", "127.9.9.9", "::1", "0.0.0.0", "::", "169.254.169.254", "fe80::1",
         "224.0.0.1", "ff02::1", "255.255.255.255", "168.63.129.16", "100.100.100.200",
         "192.0.0.192",
         "fd00:ec2::254", "::ffff:127.0.0.1", "::ffff:169.254.169.254", "64:ff9b::7f00:1",
         "2002:7f00:1::", "240.0.0.1"]  # fmt: skip
PRIVATE = ["10.0.0.1", "172.16.0.1", "192.168.1.1", "100.64.0.1", "fd00::1", "fec0::1",
           "::ffff:10.0.0.1", "64:ff9b::a00:1"]  # fmt: skip
PUBLIC = ["1.1.1.1", "2606:4700::1", "::ffff:1.1.1.1", "64:ff9b::101:101", "2002:101:101::1"]


@pytest.mark.parametrize("text", NEVER)
def test_some_addresses_are_refused_whatever_is_set(text: str) -> None:
    assert why_refused(ip_address(text), allow_private=True)
    assert why_refused(ip_address(text), allow_private=False)


@pytest.mark.parametrize("text", PRIVATE)
def test_private_addresses_are_refused_unless_they_are_allowed(text: str) -> None:
    assert why_refused(ip_address(text), allow_private=True) is None
    assert why_refused(ip_address(text), allow_private=False)


@pytest.mark.parametrize("text", PUBLIC)
def test_public_addresses_are_not_refused(text: str) -> None:
    assert why_refused(ip_address(text), allow_private=False) is None
