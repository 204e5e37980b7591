from hypothesis import given
from hypothesis import strategies as st

from kudurru.domain.set_digest import SetDigest

ELEMENTS = st.lists(st.binary(max_size=20), unique=True, max_size=12)


def digest_of(elements) -> SetDigest:
    digest = SetDigest()
    for element in elements:
        digest.add(element)
    return digest


@given(ELEMENTS, st.randoms(use_true_random=False))
def test_order_does_not_matter(elements, random) -> None:
    shuffled = list(elements)
    random.shuffle(shuffled)
    assert digest_of(elements) == digest_of(shuffled)


@given(ELEMENTS, st.binary(max_size=20))
def test_what_is_added_and_removed_leaves_no_trace(elements, passing) -> None:
    digest = digest_of([passing, *elements])
    digest.remove(passing)
    assert digest.hexdigest() == digest_of(elements).hexdigest()


@given(ELEMENTS, ELEMENTS)
def test_other_sets_have_other_digests(some, others) -> None:
    assert (digest_of(some) == digest_of(others)) == (set(some) == set(others))


def test_a_copy_goes_its_own_way() -> None:
    digest = digest_of([b"a"])
    digest.copy().add(b"b")
    assert digest == digest_of([b"a"])


def test_the_form_is_pinned() -> None:
    # SHAKE-256 of each element, 256 octets, added as big-endian numbers modulo 2^2048, SHA-256.
    assert digest_of([]).hexdigest() == (
        "5341e6b2646979a70e57653007a1f310169421ec9bdd9f1a5648f75ade005af1"
    )
    assert digest_of([b"a", b"b"]).hexdigest() == (
        "370946b4901b822660b472a7f369f05836a046de02b34ce9a740104bc7d780c3"
    )
