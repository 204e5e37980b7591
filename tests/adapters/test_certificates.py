"""The certificate of encrypted listeners: what is refused, and what becomes of renewed files."""

import logging
import ssl
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from kudurru.adapters.certificates import Certificates
from kudurru.adapters.clock import SystemClock
from kudurru.adapters.memory.clock import ManualClock
from kudurru.domain.errors import Invalid
from tests.certificates import make_pair, names_of, pair, write_pair

DAY_US = 86_400_000_000


def opened(folder: Path, clock=None) -> Certificates:
    return Certificates(
        str(folder / "cert.pem"), str(folder / "key.pem"), clock or ManualClock(now())
    )


def now() -> int:
    return SystemClock().now_us()


def encrypted(key: bytes) -> bytes:
    secret = BestAvailableEncryption(b"secret")
    loaded = load_pem_private_key(key, None)
    return loaded.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, secret)


CERT, KEY = pair()
BROKEN = {
    "no files": (
        (None, None),
        ["tls.cert: {}/cert.pem cannot be read: No such", "tls.key: {}/key"],
    ),
    "empty": ((b"", KEY), ["tls.cert: {}/cert.pem holds no certificate chain in PEM"]),
    "swapped": ((KEY, CERT), ["holds no certificate chain in PEM", "holds no private key in PEM"]),
    "cut": ((CERT[:200], KEY), ["tls.cert: {}/cert.pem holds no certificate chain in PEM"]),
    "encrypted": ((CERT, encrypted(KEY)), ["tls.key: {}/key.pem is encrypted: give a key without"]),
    "another's": (
        (CERT, make_pair()[1]),
        ["tls.key: {}/key.pem is not the key of the certificate"],
    ),
}
UNTIMELY = {
    "expired": (make_pair(since_days=-9, until_days=-1), ["cert.pem expired at", "renew it"]),
    "future": (make_pair(since_days=1), ["cert.pem is not valid before", "is the clock right?"]),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_pair_that_cannot_be_served_is_refused_with_every_fault(
    name: str, tmp_path: Path
) -> None:
    contents, faults = BROKEN[name]
    for file, content in zip(("cert.pem", "key.pem"), contents, strict=True):
        if content is not None:
            (tmp_path / file).write_bytes(content)
    with pytest.raises(Invalid) as caught:
        opened(tmp_path)
    for fault in faults:
        assert fault.format(tmp_path) in str(caught.value)


def test_files_that_may_not_be_read_are_named(tmp_path: Path, unprivileged) -> None:
    _, key = write_pair(tmp_path)
    key.chmod(0)
    with unprivileged(tmp_path, mode=0o755), pytest.raises(Invalid, match="Permission denied"):
        opened(tmp_path)


def test_a_renewed_pair_is_taken_over_whole_and_told(tmp_path: Path, caplog) -> None:
    write_pair(tmp_path, make_pair("old.test"))
    certificates = opened(tmp_path)
    context = certificates.context("dot")
    before = context()
    assert not certificates.check()
    write_pair(tmp_path, make_pair("new.test", kind="rsa"))
    with caplog.at_level(logging.INFO):
        assert certificates.check()
    assert names_of(certificates.current) == ["new.test"]
    assert context() is not before
    assert "is served now" in caplog.text
    assert certificates.statistics().reloads == 1


def test_a_link_that_points_elsewhere_is_a_change(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        write_pair(tmp_path / name, make_pair(f"{name}.test"))
    for file in ("cert.pem", "key.pem"):
        (tmp_path / file).symlink_to(Path("data") / file)
    (tmp_path / "data").symlink_to("one")
    certificates = opened(tmp_path)
    (tmp_path / "next").symlink_to("two")
    (tmp_path / "next").replace(tmp_path / "data")  # as Kubernetes renews a mounted Secret
    assert certificates.check()
    assert names_of(certificates.current) == ["two.test"]


@pytest.mark.parametrize("name", UNTIMELY)
def test_a_server_starts_with_a_certificate_out_of_its_time_and_tells_once(
    name: str, tmp_path: Path, caplog
) -> None:
    content, words = UNTIMELY[name]
    write_pair(tmp_path, content)
    certificates = opened(tmp_path)
    for _ in range(3):
        assert not certificates.check()
    assert len(caplog.records) == 1
    for word in words:
        assert word in caplog.text
        assert word in certificates.problem
    write_pair(tmp_path, make_pair("new.test"))
    assert certificates.check()
    assert certificates.problem == ""


def test_a_clock_that_is_set_right_makes_a_certificate_good(tmp_path: Path) -> None:
    write_pair(tmp_path)
    clock = ManualClock(0)
    certificates = opened(tmp_path, clock)
    assert "is not valid before" in certificates.problem
    clock.advance(now())
    assert not certificates.check()
    assert certificates.problem == ""


@pytest.mark.parametrize("name", BROKEN | UNTIMELY)
def test_a_broken_renewal_keeps_the_old_and_tells_once(name: str, tmp_path: Path, caplog) -> None:
    cert, key = write_pair(tmp_path, make_pair("old.test"))
    certificates = opened(tmp_path)
    context = certificates.context("dot")
    before = context()
    for file, content in zip((cert, key), (BROKEN | UNTIMELY)[name][0], strict=True):
        file.unlink() if content is None else file.write_bytes(content)
    for _ in range(3):
        assert not certificates.check()
    assert names_of(certificates.current) == ["old.test"]
    assert context() is before
    assert len(caplog.records) == 1
    assert "serving the certificate that was read before" in caplog.text
    assert certificates.problem in caplog.text
    assert certificates.statistics().failures == 1
    write_pair(tmp_path, make_pair("new.test"))
    assert certificates.check()
    assert certificates.problem == ""


def test_half_a_renewal_waits_for_the_other_half(tmp_path: Path) -> None:
    cert, key = write_pair(tmp_path, make_pair("old.test"))
    certificates = opened(tmp_path)
    renewed = make_pair("new.test")
    cert.write_bytes(renewed[0])
    assert not certificates.check()
    key.write_bytes(renewed[1])
    assert certificates.check()
    assert names_of(certificates.current) == ["new.test"]


def test_a_certificate_that_expires_while_it_is_served_is_told_once(tmp_path: Path, caplog) -> None:
    write_pair(tmp_path, make_pair(until_days=2))
    clock = ManualClock(now())
    certificates = opened(tmp_path, clock)
    certificates.check()
    assert certificates.problem == ""
    clock.advance(3 * DAY_US)
    for _ in range(3):
        certificates.check()
    assert "expired at" in certificates.problem
    assert len(caplog.records) == 1


def test_old_versions_of_tls_are_not_spoken(tmp_path: Path) -> None:
    write_pair(tmp_path)
    context = opened(tmp_path).context("dot")()
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2
    assert context.options & ssl.OP_NO_RENEGOTIATION
