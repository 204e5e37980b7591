"""Tokens: the object in the log, a hash beside it, the text nowhere."""

from typing import Any

import pytest

from kudurru.adapters.memory.clock import ManualClock, SeededEntropy
from kudurru.domain.errors import Conflict, Invalid, NotFound
from kudurru.domain.kinds.apitoken import hash_of, name_in, token_text
from kudurru.domain.objects import key_of
from kudurru.domain.restore import Scope
from kudurru.entrypoints import restoring
from kudurru.entrypoints.restoring import RestoreRequest, UndoRequest
from kudurru.entrypoints.tokens import NewToken, NotLetIn, TokenRequest, Tokens
from kudurru.entrypoints.wiring import Node
from tests.nodes import TESTER, memory_node, rebuilt

HOUR_S = 3600


class Desk:
    """A node whose tokens are made in a word."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.node = memory_node(self.clock)
        self.tokens = Tokens(self.node)
        self._entropy = SeededEntropy(5)

    def make(self, name: str = "ci", role: Any = "operator", **limits: Any) -> NewToken:
        request = TokenRequest(name=name, role=role, **limits)
        change, new = self.tokens.creation(request, TESTER, self._entropy)
        self.node.commit(change)
        return new

    def why(self, text: str, address: str = "192.0.2.1", node: Node | None = None) -> str:
        tokens = Tokens(node) if node is not None else self.tokens
        try:
            tokens.find(text, address)
        except NotLetIn as error:
            return error.why
        return ""


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_a_token_says_whose_it_is_and_lets_in(desk: Desk) -> None:
    new = desk.make("grafana", "viewer", namespaces=["team"], zones=["example.org"])
    assert new.token.startswith("kudurru_grafana_")
    found = desk.tokens.find(new.token, "192.0.2.1")
    assert (found.actor, found.rights.role) == ("token:grafana", "viewer")
    assert (found.rights.namespaces, found.rights.zones) == (("team",), ("example.org",))


def test_neither_log_nor_repr_has_the_token_or_its_hash(desk: Desk) -> None:
    new = desk.make()
    secret = new.token.rpartition("_")[2]
    recorded = b"".join((e.body or b"") + (e.who or b"") for e in desk.node.log.read())
    assert secret.encode() not in recorded
    assert hash_of(new.token).hex().encode() not in recorded
    assert secret not in repr(new) + repr(desk.tokens.states())


@pytest.mark.parametrize(
    "text",
    ["", "x", "kudurru_", "kudurru_ci_", "kudurru_ci_" + "0" * 64, "kudurru_other_" + "0" * 64,
     "kudurru_CI_" + "a" * 64, "kudurru_ci_" + "é" * 64, "Bearer kudurru_ci_" + "0" * 64],
)  # fmt: skip
def test_what_is_no_token_of_ours_is_not_let_in(desk: Desk, text: str) -> None:
    desk.make()
    assert desk.why(text) == "unknown"


def test_a_token_of_another_letter_is_not_let_in(desk: Desk) -> None:
    text = desk.make().token
    other = "0" if text[-1] != "0" else "1"
    assert desk.why(text[:-1] + other) == "unknown"
    assert desk.why(text.upper()) == "unknown"


def test_the_name_is_read_out_of_a_text_and_nothing_else_is_one() -> None:
    assert name_in(token_text("a-b.c", bytes(32))) == "a-b.c"
    assert name_in("kudurru_a_b_" + "0" * 64) is None
    assert name_in(token_text("a", bytes(31))) is None


def test_a_token_expires_to_the_second(desk: Desk) -> None:
    text = desk.make(lifetime_s=HOUR_S).token
    principal = desk.tokens.find(text, "192.0.2.1")
    desk.clock.advance((HOUR_S - 1) * 1_000_000)
    assert desk.why(text) == ""
    assert desk.tokens.still_counts(principal)
    desk.clock.advance(1_000_000)
    assert desk.why(text) == "expired"
    assert not desk.tokens.still_counts(principal)
    assert desk.tokens.states()[0].problem == "expired"


@pytest.mark.parametrize(
    ("address", "why"),
    [("192.0.2.7", ""), ("::ffff:192.0.2.7", ""), ("198.51.100.1", "address"), ("fe80::1%eth0", ""),
     ("2001:db8::1", "address")],
)  # fmt: skip
def test_a_token_counts_from_its_networks_only(desk: Desk, address: str, why: str) -> None:
    text = desk.make(cidrs=["192.0.2.0/24", "fe80::/10"]).token
    assert desk.why(text, address) == why


@pytest.mark.parametrize(
    ("limits", "field"),
    [
        ({"name": "Upper"}, "metadata.name"),
        ({"name": "bootstrap"}, "name"),
        ({"namespaces": ["Not A Label"]}, "spec.namespaces[0]"),
        ({"zones": ["a", "-"]}, "spec.zones[1]"),
        ({"cidrs": ["300.0.0.0/8"]}, "spec.cidrs[0]"),
        ({"lifetime_s": 0}, "lifetimeSeconds"),
        ({"lifetime_s": 366 * 86400}, "lifetimeSeconds"),
        ({"cidrs": ["10.0.0.0/8"] * 65}, "spec.cidrs"),
    ],
)
def test_a_request_that_makes_no_sense_is_refused(
    desk: Desk, limits: dict[str, Any], field: str
) -> None:
    with pytest.raises(Invalid) as refused:
        desk.make(**limits)
    assert field in [cause.field for cause in refused.value.causes]
    assert not list(desk.node.log.read())


def test_a_name_that_is_taken_is_not_given_another_token(desk: Desk) -> None:
    first = desk.make()
    with pytest.raises(Conflict, match="exists"):
        desk.make()
    assert desk.why(first.token) == ""


def test_a_revoked_token_does_not_come_back(desk: Desk) -> None:
    """Not by a new one of its name, not by undo, not by a restore of everything."""
    text = desk.make().token
    made_at = desk.node.position
    revoked = desk.node.commit(desk.tokens.revocation("ci", TESTER))
    assert desk.why(text) == "unknown"
    with pytest.raises(NotFound):
        desk.tokens.revocation("ci", TESTER)
    with pytest.raises(Conflict, match="given and taken, not undone"):
        restoring.prepare_undo(desk.node.log, UndoRequest(what=str(revoked.seq)), "id", TESTER)
    request = RestoreRequest(target=made_at, scope=Scope(everything=True))
    assert restoring.plan_restore(desk.node.log, request).steps == ()
    desk.make()
    assert desk.why(text) == "unknown"


def test_who_counted_in_this_second_is_asked_again_once_something_changed(desk: Desk) -> None:
    ci, other = (desk.tokens.find(desk.make(name).token, "192.0.2.1") for name in ("ci", "other"))
    assert [desk.tokens.still_counts(who) for who in (ci, ci, other, ci)] == [True] * 4
    desk.node.commit(desk.tokens.revocation("ci", TESTER))
    assert [desk.tokens.still_counts(who) for who in (ci, other, ci, other)] == [
        False, True, False, True,
    ]  # fmt: skip
    again = desk.tokens.find(desk.make("ci").token, "192.0.2.1")
    assert desk.tokens.still_counts(again)
    assert not desk.tokens.still_counts(ci)


def test_a_token_made_again_does_not_keep_its_predecessor_in(desk: Desk) -> None:
    old = desk.tokens.find(desk.make().token, "192.0.2.1")
    desk.node.commit(desk.tokens.revocation("ci", TESTER))
    assert not desk.tokens.still_counts(old)
    new = desk.tokens.find(desk.make().token, "192.0.2.1")
    assert not desk.tokens.still_counts(old)
    assert desk.tokens.still_counts(new)


def test_a_hash_of_another_version_lets_nobody_in(desk: Desk) -> None:
    """As an old table of secrets beside a newer log would have it."""
    old, key = desk.make().token, key_of("APIToken", "", "ci")
    desk.node.commit(desk.tokens.revocation("ci", TESTER))
    new = desk.make().token
    assert desk.node.log.secret(key) == hash_of(new)
    _write_secret(desk, key, hash_of(old))
    other = rebuilt(desk.node)
    assert desk.why(old, node=other) == "unknown"
    assert "another version" in Tokens(other).states()[0].problem


def test_a_log_that_came_without_hashes_says_so(desk: Desk) -> None:
    text, key = desk.make().token, key_of("APIToken", "", "ci")
    _write_secret(desk, key, None)
    other = rebuilt(desk.node)
    assert desk.why(text, node=other) == "unknown"
    assert "make another" in Tokens(other).states()[0].problem


def _write_secret(desk: Desk, key: Any, secret: bytes | None) -> None:
    """Change the table beside the log, as no command does."""
    table: dict[Any, bytes] = desk.node.log._secrets  # type: ignore[attr-defined]  # of the memory log
    table.pop(key)
    if secret is not None:
        table[key] = secret


def test_the_first_token_only_makes_others_until_there_is_an_admin(desk: Desk) -> None:
    change, first = desk.tokens.bootstrap(TESTER, SeededEntropy(9))
    assert not desk.tokens.is_bootstrapped()
    desk.node.commit(change)
    assert desk.tokens.is_bootstrapped()
    found = desk.tokens.find(first.token, "127.0.0.1")
    assert found.rights.may("tokens.create")
    assert desk.tokens.still_counts(found)
    assert not found.rights.may("tokens")
    desk.make("ops", "operator")
    desk.make("part", "admin", namespaces=["team"])
    assert desk.why(first.token) == ""  # neither of them makes tokens
    assert not desk.tokens.is_bootstrap_over()
    desk.make("root", "admin")
    assert desk.why(first.token) == "expired"
    assert not desk.tokens.still_counts(found)
    assert desk.tokens.is_bootstrap_over()


def test_the_first_token_works_for_a_day(desk: Desk) -> None:
    change, first = desk.tokens.bootstrap(TESTER, SeededEntropy(9))
    desk.node.commit(change)
    desk.clock.advance(24 * HOUR_S * 1_000_000)
    assert desk.why(first.token) == "expired"
    assert desk.tokens.is_bootstrap_over()
    desk.node.commit(desk.tokens.revocation("bootstrap", TESTER))
    assert desk.tokens.is_bootstrapped()  # once is enough
