from pathlib import Path

import pytest

from kudurru.adapters.neighbours import NeighbourTable, messages, read_arp, read_ipv6
from kudurru.domain.filtering.clients import mac_from_text, packed_address

ARP = """\
IP address       HW type     Flags       HW address            Mask     Device
192.168.1.7      0x1         0x2         aa:bb:cc:dd:ee:01     *        eth0
192.168.1.8      0x1         0x0         00:00:00:00:00:00     *        eth0
192.168.1.9      0x1         0x6         AA:BB:CC:DD:EE:02     *        eth0
192.168.1.10     0x1         0x2         00:00:00:00:00:00     *        eth0
10.0.0.1         0x20        0x2         80:00:00:02:fe:80:00:00:00:00     *        ib0
nonsense
"""


def test_complete_entries_of_the_arp_table_are_neighbours(tmp_path: Path) -> None:
    path = tmp_path / "arp"
    path.write_text(ARP)
    assert dict(read_arp(path)) == {
        packed_address("192.168.1.7"): mac_from_text("aa:bb:cc:dd:ee:01"),
        packed_address("192.168.1.9"): mac_from_text("aa:bb:cc:dd:ee:02"),
    }
    table = NeighbourTable(path)
    assert table.mac_of(packed_address("192.168.1.7")) == b""
    table.refresh()
    assert table.mac_of(packed_address("192.168.1.7")) == mac_from_text("aa:bb:cc:dd:ee:01")
    assert table.mac_of(packed_address("192.168.1.99")) == b""
    path.write_text(ARP.splitlines()[0])
    table.refresh()
    assert table.mac_of(packed_address("192.168.1.7")) == b""


def test_a_table_that_cannot_be_read_knows_nobody(tmp_path: Path) -> None:
    table = NeighbourTable(tmp_path / "none")
    table.refresh()
    assert table.mac_of(packed_address("192.168.1.7")) == b""


def test_the_kernel_is_asked_for_ipv6_neighbours() -> None:
    for address, mac in read_ipv6():  # whatever there is here, it has the right form
        assert (len(address), len(mac)) == (16, 6)


@pytest.mark.parametrize("data", [b"", bytes(15), bytes(64), b"\x03" + bytes(31), b"\xff" * 40])
def test_a_torn_answer_of_the_kernel_ends_quietly(data: bytes) -> None:
    assert len(list(messages(data))) < 4
