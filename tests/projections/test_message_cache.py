"""The cache by itself: bounds, order, flushing, and a model that it is held against."""

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from kudurru.domain.dns import names
from kudurru.domain.dns.responses import Message
from kudurru.domain.settings import Bytes, CacheSettings, ServeStaleSettings
from kudurru.projections.message_cache import ENTRY_BYTES, MessageCache

SECOND = 1_000_000


def key(text: str) -> bytes:
    return names.key(names.from_text(text)) + b"\0\1\0\1\0"


def filled(*texts: str, **settings: object) -> MessageCache:
    cache = MessageCache(CacheSettings(**settings))  # type: ignore[arg-type]
    for text in texts:
        cache.store(key(text), message(), 0, "u")
    return cache


def message(ttl_s: int | None = 60, size: int = 16) -> Message:
    return Message(0, (1, 0, 0), bytes(size), (0,), ttl_s)


def kept(cache: MessageCache) -> set[bytes]:
    return {name for name, _ in cache.entries()}


def test_the_least_recently_used_answer_goes_first() -> None:
    cache = filled("a", "b", "c", max_entries=3)
    assert cache.find(key("a"), 1)[0]
    cache.store(key("d"), message(), 1, "u")
    assert kept(cache) == {key("a"), key("c"), key("d")}
    assert cache.statistics().evictions == 1


def test_it_holds_no_more_octets_than_it_may() -> None:
    size = ENTRY_BYTES + 16 + len(key("a"))
    cache = filled(*"abcdefgh", max_entries=100, max_bytes=Bytes(3 * size))
    assert len(cache) == 3
    assert cache.statistics().bytes == 3 * size
    cache.store(key("x"), message(size=4 * size), 0, "u")
    assert len(cache) == 3  # what could never fit throws nobody out


def test_a_large_cache_is_in_parts_and_one_all_the_same() -> None:
    cache = filled(*(f"h{i}.example" for i in range(9000)), max_entries=8192)
    assert 7500 < len(cache) <= 8192
    assert cache.statistics().evictions == 9000 - len(cache)
    assert len(list(cache.kept(0, 0))) == len(kept(cache)) == len(cache)
    cache.configure(CacheSettings(max_entries=100))
    assert len(cache) == 100
    cache.configure(CacheSettings(max_entries=8192))
    assert len(cache) == 100
    assert cache.flush(names.from_text("example"), subtree=True) == 100


def test_no_room_is_no_cache() -> None:
    assert len(filled("a", max_entries=0)) == 0


def test_other_settings_keep_what_there_is_room_for() -> None:
    cache = filled("a", "b", "c", max_entries=100)
    cache.configure(CacheSettings(max_entries=2, prefetch=False))
    assert kept(cache) == {key("b"), key("c")}


def test_flushing_forgets_all_a_name_or_a_subtree() -> None:
    texts = ("example", "www.example", "a.www.example", "xwww.example", "other")
    cases: dict[tuple[str | None, bool], set[str]] = {
        (None, False): set(),
        ("www.example", False): {"example", "a.www.example", "xwww.example", "other"},
        ("WWW.Example", True): {"example", "xwww.example", "other"},
        ("example", True): {"other"},
        (".", True): set(),
        ("nothing", True): set(texts),
    }
    for (name, subtree), left in cases.items():
        cache = filled(*texts)
        wire = None if name is None else names.from_text(name)
        assert cache.flush(wire, subtree=subtree) == len(texts) - len(left)
        assert kept(cache) == {key(text) for text in left}
        assert cache.statistics().bytes == sum(entry.size for _, entry in cache.entries())


def test_what_must_not_be_kept_is_not() -> None:
    cache = filled()
    cache.store(key("a"), message(None), 0, "u")
    cache.store(key("a"), message(0), 0, "u")
    assert len(cache) == 0


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["store", "find", "pass"]),
        st.sampled_from("abcde"),
        st.integers(0, 40),
    ),
    max_size=60,
)


@given(STEPS)
def test_it_never_gives_what_is_expired_and_keeps_what_a_plain_model_keeps(
    steps: list[tuple[str, str, int]],
) -> None:
    stale = ServeStaleSettings(max_age=timedelta(seconds=20))
    cache = MessageCache(CacheSettings(max_entries=3, serve_stale=stale))
    model: dict[bytes, tuple[int, int]] = {}  # when, TTL; least recently used first
    now = 0
    for what, text, number in steps:
        name = key(text)
        if what == "pass":
            now += number * SECOND
        elif what == "store" and number:
            cache.store(name, message(number), now, "u")
            model.pop(name, None)
            model[name] = now, number
            if len(model) > 3:
                del model[next(iter(model))]
        elif what == "find":
            entry, left_us = cache.find(name, now)
            expected = model.get(name)
            if expected is not None:
                left = expected[0] + expected[1] * SECOND - now
                if left > 0:
                    model[name] = model.pop(name)
                elif -left >= 20 * SECOND:
                    expected = None
                    del model[name]
            assert (entry is None) == (expected is None)
            if entry is not None and expected is not None:
                assert (entry.stored_us, entry.ttl_us) == (expected[0], expected[1] * SECOND)
                assert left_us == expected[0] + expected[1] * SECOND - now
