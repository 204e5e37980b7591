"""TSIG keys: the object in the log, the secret beside it."""

from pathlib import Path

import msgspec
import pytest

from kudurru.adapters.memory.clock import ManualClock, SeededEntropy
from kudurru.adapters.sealing import NodeKey
from kudurru.domain.commands import Delete
from kudurru.domain.dns import names
from kudurru.domain.dns.tsig import ALGORITHMS
from kudurru.domain.errors import Conflict, Invalid, NotFound
from kudurru.domain.kinds.tsigkey import UpdateRule, parse_rule
from kudurru.domain.objects import Key
from kudurru.domain.ports import SecretBox
from kudurru.entrypoints.keyring import KeyRequest, Keyring, revocation
from kudurru.entrypoints.wiring import Node
from tests.nodes import TESTER, a_change, memory_node, rebuilt

NAME = names.from_text("key.example")
OBJECT = Key("TSIGKey//key.example")
SECRET = bytes(range(32))


def request(**how: object) -> KeyRequest:
    return KeyRequest(
        **{"name": "key.example", "algorithm": "hmac-sha256", "secret": SECRET} | how  # type: ignore[arg-type]  # what a test gives
    )


@pytest.fixture
def node() -> Node:
    return memory_node(ManualClock(1_760_000_000_000_000))


@pytest.fixture
def box(tmp_path: Path) -> SecretBox:
    return NodeKey(tmp_path / "node.key", SeededEntropy(7))


@pytest.fixture
def keyring(node: Node, box: SecretBox) -> Keyring:
    return Keyring(node, box)


CHANCE = SeededEntropy(5)


def create(node: Node, keyring: Keyring, **how: object) -> None:
    node.commit(keyring.creation(request(**how), TESTER, CHANCE))


def test_a_key_that_was_made_is_found_by_its_name(node: Node, keyring: Keyring) -> None:
    assert keyring.find(NAME) is None
    create(node, keyring, name="KEY.example.")
    found = keyring.find(NAME)
    assert found is not None
    assert (found.name, found.secret, found.algorithm.text) == (NAME, SECRET, "hmac-sha256")
    assert keyring.problems() == []


def test_the_log_holds_a_digest_and_never_the_secret(node: Node, keyring: Keyring) -> None:
    create(node, keyring)
    rows = msgspec.msgpack.encode(list(node.log.read()))
    assert b"secretDigest" in rows
    for form in (SECRET, SECRET.hex().encode(), msgspec.json.encode(SECRET).strip(b'"')):
        assert form not in rows
        assert form not in (node.log.secret(OBJECT) or b"")


def test_a_key_works_on_a_node_that_was_built_again(
    node: Node, keyring: Keyring, box: SecretBox
) -> None:
    create(node, keyring)
    assert Keyring(rebuilt(node), box).find(NAME) == keyring.find(NAME)


def test_a_revoked_key_is_gone_with_its_secret(node: Node, keyring: Keyring) -> None:
    create(node, keyring)
    node.commit(revocation(node, "key.example", TESTER))
    assert keyring.find(NAME) is None
    assert node.log.secret(OBJECT) is None
    with pytest.raises(NotFound):
        revocation(node, "key.example", TESTER)


def test_a_key_that_comes_back_without_its_secret_does_not_work(
    node: Node, keyring: Keyring, box: SecretBox
) -> None:
    create(node, keyring)
    node.log.append([], 0)
    node.commit(a_change(Delete(key=OBJECT)))  # as a restore or undo would: the secret is left
    create(node, keyring, secret=bytes(32))
    sealed_before = box.seal(OBJECT, SECRET)
    node.log._secrets[OBJECT] = sealed_before  # type: ignore[attr-defined]  # a table of another time
    other = Keyring(node, box)
    assert other.find(NAME) is None
    assert "another version" in other.problems()[0]


def test_a_log_that_comes_without_its_secrets_says_which_to_give_again(
    node: Node, keyring: Keyring, box: SecretBox
) -> None:
    create(node, keyring)
    node.log._secrets.clear()  # type: ignore[attr-defined]  # as an exported log has none
    other = Keyring(node, box)
    assert other.find(NAME) is None
    (problem,) = other.problems()
    assert "key.example" in problem
    assert "tsig create" in problem
    create(node, other)  # and it may be given without --replace
    assert other.find(NAME) is not None
    assert other.problems() == []


def test_a_node_with_another_node_key_says_which_file_to_copy(
    node: Node, keyring: Keyring, box: SecretBox, tmp_path: Path
) -> None:
    create(node, keyring)
    for path in (tmp_path / "none", tmp_path / "other"):
        theirs = NodeKey(path, SeededEntropy(9))
        if path.name == "other":
            theirs.seal(OBJECT, SECRET)
        other = Keyring(node, theirs)
        assert other.find(NAME) is None
        (problem,) = other.problems()
        assert f"sealed with node key {box.id}" in problem
        assert "copy keys/node.key" in problem


def test_a_second_node_key_is_not_made_for_a_log_that_has_secrets(
    node: Node, keyring: Keyring, tmp_path: Path
) -> None:
    create(node, keyring)
    other = Keyring(node, NodeKey(tmp_path / "none", SeededEntropy(9)))
    for name in ("second", "key.example"):
        with pytest.raises(Invalid, match=r"copy keys/node\.key"):
            other.creation(request(name=name), TESTER, CHANCE)
    assert not (tmp_path / "none").exists()
    create(node, other, replace=True)  # the node key is lost
    assert other.find(NAME) is not None


def test_a_key_that_works_keeps_its_secret_unless_it_is_replaced(
    node: Node, keyring: Keyring
) -> None:
    create(node, keyring)
    with pytest.raises(Conflict, match="--replace"):
        create(node, keyring, secret=bytes(32))
    create(node, keyring, secret=bytes(32), replace=True)
    found = keyring.find(NAME)
    assert found is not None
    assert found.secret == bytes(32)


@pytest.mark.parametrize("algorithm", [a.text for a in ALGORITHMS.values() if a.is_old])
def test_old_algorithms_are_off_unless_they_are_let_work(
    node: Node, box: SecretBox, algorithm: str
) -> None:
    create(node, Keyring(node, box), algorithm=algorithm)
    assert Keyring(node, box).find(NAME) is None
    assert "tsig.allowOld" in Keyring(node, box).problems()[0]
    assert Keyring(node, box, allow_old=True).find(NAME) is not None


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"secret": bytes(15)}, "15 octets"),
        ({"secret": bytes(129)}, "129 octets"),
        ({"algorithm": "hmac-sha3"}, "hmac-sha3"),
        ({"name": "no_key"}, "no RFC 1123 subdomain"),
        ({"name": ""}, "no RFC 1123 subdomain"),
        ({"updates": [{"zone": "a..b"}]}, r"spec\.updates\[0\]\.zone"),
        ({"updates": [{"zone": "a", "types": ["NOTYPE"]}]}, r"types\[0\]"),
    ],
)
def test_a_bad_request_is_refused_and_does_not_tell_the_secret(
    node: Node, keyring: Keyring, how: dict[str, object], said: str
) -> None:
    with pytest.raises(Invalid, match=said) as refused:
        create(node, keyring, **how)
    assert SECRET.hex() not in str(refused.value)
    assert node.log.head().seq == 0


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("example.org", UpdateRule(zone="example.org")),
        ("z:a.z,*.b.z", UpdateRule(zone="z", names=["a.z", "*.b.z"])),
        ("z:a.z:a,aaaa", UpdateRule(zone="z", names=["a.z"], types=["A", "AAAA"])),
        ("z::TXT", UpdateRule(zone="z", types=["TXT"])),
    ],
)
def test_a_rule_is_read_as_it_is_written(text: str, rule: UpdateRule) -> None:
    assert parse_rule(text) == rule


def test_a_request_does_not_show_its_secret() -> None:
    assert "000102" not in repr(request())
    assert repr(SECRET) not in repr(request())
