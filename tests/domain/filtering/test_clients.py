from ipaddress import ip_address, ip_network

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kudurru.domain.filtering.clients import (
    Caller,
    ClientIndex,
    caller_from,
    mac_from_text,
    places_of,
)
from kudurru.domain.kinds.clientgroup import ClientGroupSpec

GROUPS = {
    "home/lan": [{"cidr": "192.168.0.0/16"}, {"cidr": "fd00::/8"}],
    "home/kids": [{"cidr": "192.168.7.0/24"}, {"mac": "AA-bb-cc-00-11-22"}],
    "home/tv": [{"ip": "192.168.7.9"}, {"ipSuffix": "::a1b2:c3ff:fed4:1"}],
    "home/phone": [{"clientID": "Anna-Phone"}],
    "home/dot": [{"listener": "tls"}],
    "home/guest": [{"listener": "192.0.2.1:53"}],
    "home/mapped": [{"cidr": "::ffff:10.1.0.0/112"}],
}


def index_of(groups: dict[str, list[dict[str, str]]]) -> ClientIndex:
    return ClientIndex(
        {
            name: places_of(msgspec.convert({"clients": clients}, ClientGroupSpec))
            for name, clients in groups.items()
        }
    )


@pytest.mark.parametrize(
    ("caller", "groups"),
    [
        (caller_from("192.168.1.1"), "lan"),
        (caller_from("192.168.7.1"), "lan kids"),
        (caller_from("192.168.7.9"), "lan kids tv"),
        (caller_from("::ffff:192.168.7.9"), "lan kids tv"),
        (caller_from("203.0.113.1", mac=mac_from_text("aa:bb:cc:00:11:22")), "kids"),
        (caller_from("2001:db8::a1b2:c3ff:fed4:1"), "tv"),
        (caller_from("fd12::a1b2:c3ff:fed4:1%eth0"), "lan tv"),
        (caller_from("2001:db8::1:a1b2:c3ff:fed4:1"), "tv"),
        (caller_from("2001:db8::a1b2:c3ff:fed4:2"), ""),
        (caller_from("203.0.113.1", client_id="anna-phone"), "phone"),
        (caller_from("203.0.113.1", listener="tls/192.0.2.9:853"), "dot"),
        (caller_from("203.0.113.1", listener="udp/192.0.2.1:53"), "guest"),
        (caller_from("203.0.113.1", listener="udp"), ""),
        (caller_from("10.1.2.3"), "mapped"),
    ],
)
def test_a_client_is_in_every_group_that_names_it(caller: Caller, groups: str) -> None:
    found = index_of(GROUPS).groups_of(caller)
    assert found == {f"home/{name}" for name in groups.split()}


def test_what_a_client_calls_itself_counts_where_a_group_names_that() -> None:
    index = index_of(GROUPS)
    assert [index.names_id(one) for one in ("anna-phone", "ANNA-PHONE")] == [True, True]
    # Another kind of name, and what hosts of servers are called.
    assert not any(map(index.names_id, ("", "dns", "tls", "192.0.2.1:53", "anna-phone2")))


addresses = st.one_of(
    st.integers(0, 255).map(lambda n: f"10.0.{n % 4}.{n}"),
    st.integers(0, 255).map(lambda n: f"fd00::{n % 4:x}:{n:x}"),
)
networks = st.one_of(
    st.tuples(st.integers(0, 255), st.integers(16, 32)).map(lambda p: f"10.0.{p[0] % 4}.0/{p[1]}"),
    st.tuples(st.integers(0, 3), st.integers(8, 128)).map(lambda p: f"fd00::{p[0]:x}:0/{p[1]}"),
    st.just("0.0.0.0/0"),
    st.just("::/0"),
)


@given(st.dictionaries(st.sampled_from("abcdef"), st.lists(networks, max_size=4)), addresses)
def test_networks_hold_what_the_standard_library_says(
    groups: dict[str, list[str]], address: str
) -> None:
    index = index_of({name: [{"cidr": c} for c in cidrs] for name, cidrs in groups.items()})
    expected = {
        name
        for name, cidrs in groups.items()
        if any(
            ip_address(address) in ip_network(cidr, strict=False)
            for cidr in cidrs
            if ip_network(cidr, strict=False).version == ip_address(address).version
        )
    }
    assert index.groups_of(caller_from(address)) == expected
