from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kudurru.domain.notation import (
    SocketAddress,
    duration_text,
    parse_duration,
    parse_network,
    parse_size,
    parse_socket_address,
    size_text,
)

DURATIONS = {
    "30s": timedelta(seconds=30),
    "1h30m": timedelta(minutes=90),
    "1800ms": timedelta(milliseconds=1800),
    "400d": timedelta(days=400),
    "0s": timedelta(0),
    "0": timedelta(0),
    "1d2h3m4s5ms": timedelta(days=1, hours=2, minutes=3, seconds=4, milliseconds=5),
}
SIZES = {"64 MiB": 64 << 20, "1GiB": 1 << 30, "512 B": 512, "4096": 4096, "0": 0, "3 KiB": 3072}


@pytest.mark.parametrize("text", DURATIONS)
def test_a_duration_is_read(text: str) -> None:
    assert parse_duration(text) == DURATIONS[text]


@pytest.mark.parametrize(
    "text", ["", "30", "30 s", "-1s", "1.5s", "1y", "s", "1h30", "40000d", "٣s"]
)
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"duration|years"):
        parse_duration(text)


@pytest.mark.parametrize("text", SIZES)
def test_a_size_is_read(text: str) -> None:
    assert parse_size(text) == SIZES[text]


@pytest.mark.parametrize("text", ["", "MiB", "64 MB", "64Mi", "-1", "1.5 GiB", "1  MiB"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="write it as 64 MiB"):
        parse_size(text)


def test_durations_and_sizes_are_written_as_they_are_read() -> None:
    @given(st.integers(0, 36_525 * 86_400_000), st.integers(0, 1 << 49))
    def check(ms: int, size: int) -> None:
        assert parse_duration(duration_text(timedelta(milliseconds=ms))) == timedelta(
            milliseconds=ms
        )
        assert parse_size(size_text(size)) == size

    check()
    assert duration_text(timedelta(milliseconds=1800)) == "1800ms"
    assert size_text(8 << 20) == "8 MiB"


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:5300", "127.0.0.1", 5300),
        ("[::1]:0", "::1", 0),
        ("[2001:DB8:0::1]:53", "2001:db8::1", 53),
    ],
)
def test_a_socket_address_is_read(text: str, host: str, port: int) -> None:
    found = parse_socket_address(text)
    assert found == SocketAddress(host, port)
    assert parse_socket_address(str(found)) == found


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (":53", "write 127.0.0.1:5300"),
        ("127.0.0.1", "write 127.0.0.1:5300"),
        ("::1:53", "write 127.0.0.1:5300"),
        ("localhost:53", "no IP address"),
        ("127.0.0.1:65536", "above 65535"),
        ("[127.0.0.1]:53", "brackets"),
        ("[fe80::1%eth0]:53", "zone index"),
        ("010.0.0.1:53", "no IP address"),
    ],
)
def test_what_is_no_socket_address_is_refused(text: str, fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        parse_socket_address(text)


def test_a_network_has_no_bits_beyond_its_prefix() -> None:
    assert str(parse_network("10.0.0.0/8")) == "10.0.0.0/8"
    assert str(parse_network("::1")) == "::1/128"
    with pytest.raises(ValueError, match=r"write 10\.0\.0\.0/8"):
        parse_network("10.1.0.0/8")
    with pytest.raises(ValueError, match="no network"):
        parse_network("office")
