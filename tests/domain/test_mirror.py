"""What a log says of the cluster that it follows."""

import msgspec

from kudurru.domain import mirror
from kudurru.domain.events import MIRROR_KEY, Position, Recorded


def stream(*bodies: mirror.Body) -> list[Recorded]:
    """Newest first."""
    facts = []
    for seq, body in enumerate(bodies, 1):
        fact = mirror.fact(body, seq - 1)
        at = Position(seq)
        facts.append(
            Recorded(at, at, 1, seq, fact.type, MIRROR_KEY, seq, "/", "kudurru", fact.body, None)
        )
    return facts[::-1]


def synced(**versions: str) -> mirror.Synced:
    return mirror.Synced(cluster="c", versions=versions)


def restored(kind: str, seen: str, now: str) -> mirror.Restored:
    return mirror.Restored(cluster="c", kind=kind, seen=seen, now=now)


def test_a_log_has_followed_a_cluster_as_far_as_was_noted_last_and_set_back_since() -> None:
    assert mirror.followed(stream()) == {}
    assert mirror.followed(stream(synced(DNSZone="1"), synced(DNSZone="9"))) == {"DNSZone": "9"}
    before = restored("DNSZone", "20", "8"), synced(DNSZone="9", Policy="7")
    assert mirror.followed(stream(*before)) == {"DNSZone": "9", "Policy": "7"}
    after = restored("DNSZone", "9", "5"), restored("DNSZone", "6", "4")
    assert mirror.followed(stream(*before, *after)) == {"DNSZone": "4", "Policy": "7"}


def test_what_was_erased_says_nothing_of_how_far_a_cluster_was_followed() -> None:
    facts = stream(synced(DNSZone="9"), restored("DNSZone", "9", "5"))
    facts[0] = msgspec.structs.replace(facts[0], body=None)
    assert mirror.followed(facts) == {"DNSZone": "9"}
