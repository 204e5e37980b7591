"""BlockList objects: which lists there are, and the rules that stand in the objects themselves.

Inline sources are matched from here, from the moment that their Apply is acknowledged; what has to
be fetched is only named (`lists`), and somebody else brings it.
"""

from collections.abc import Callable, Iterable, Iterator
from hashlib import sha256

import msgspec

from kudurru.domain.events import OBJECT_APPLIED, OBJECT_DELETED, OBJECT_STATUS, Position, Recorded
from kudurru.domain.kinds.blocklist import BlockListSpec
from kudurru.domain.kinds.meta import is_enabled
from kudurru.domain.kinds.registry import BLOCK_LIST
from kudurru.domain.lists.body import Facts
from kudurru.domain.lists.memory import MemoryMatcher
from kudurru.domain.object_store import decode_body
from kudurru.domain.objects import Key
from kudurru.domain.ports import FILTERS, Origins
from kudurru.domain.reconcile.blocklists import INLINE, context_of
from kudurru.domain.set_digest import SetDigest, number_of

_PREFIX = f"{BLOCK_LIST.name}/"
_decode_spec = msgspec.json.Decoder(BlockListSpec)


class ListState(msgspec.Struct, frozen=True):
    """An enabled BlockList. The lines of its inline sources are in `ListsView.inline`."""

    spec: BlockListSpec
    inline: dict[int, Facts]  # by index of the source


class ListsView:
    """Implements `projections.follow.Projection`. `on_change` is told after what filters
    changed, and before the change is acknowledged."""

    name = "lists"

    def __init__(self, on_change: Callable[[Origins], None] = lambda _changed: None) -> None:
        self._on_change = on_change
        self.on_lists: Callable[[], None] = lambda: None
        """Called when `lists` may say something else."""
        self.on_status: Callable[[], None] = lambda: None
        """Called when the status of a list says something else."""
        self.inline = MemoryMatcher()
        self.reset()

    def reset(self) -> None:
        self.position = Position(0)
        for key in getattr(self, "lists", ()):
            self.inline.drop(key)
        self.lists: dict[Key, ListState] = {}
        self.disabled: set[Key] = set()
        self._facts: dict[Key, int] = {}  # what each object counts for in the digest
        self._digest = SetDigest()

    def apply(self, event: Recorded) -> None:
        self.position = event.seq
        if not event.key.startswith(_PREFIX) or event.body is None:
            return
        if event.type == OBJECT_APPLIED:
            self._forget(event.key)
            self._put(event.key, event.body)
        elif event.type == OBJECT_DELETED:
            self._forget(event.key)
        else:
            if event.type == OBJECT_STATUS:
                self.on_status()
            return
        self._on_change((FILTERS,))
        self.on_lists()

    def _put(self, key: Key, octets: bytes) -> None:
        self._count(key, number_of(key.encode() + b"\0" + sha256(octets).digest()))
        body = decode_body(octets)
        if is_enabled(body.annotations):
            self._enable(key, _decode_spec.decode(body.spec))
        else:
            self.disabled.add(key)

    def _count(self, key: Key, number: int) -> None:
        self._facts[key] = number
        self._digest.shift(number)

    def _enable(self, key: Key, spec: BlockListSpec) -> None:
        inline = [
            (index, (INLINE, source.inline))
            for index, source in enumerate(spec.sources)
            if source.inline is not None
        ]
        facts = self.inline.put_at(key, inline, context_of(spec))
        by_index = {index: fact for (index, _), fact in zip(inline, facts, strict=True)}
        self.lists[key] = ListState(spec, by_index)

    def _forget(self, key: Key) -> None:
        self._digest.shift(-self._facts.pop(key, 0))
        self.disabled.discard(key)
        if self.lists.pop(key, None) is not None:
            self.inline.drop(key)

    def advance(self, now_s: int) -> None:
        """Lists do not expire."""

    def digest(self) -> str:
        return self._digest.hexdigest()

    def dump(self) -> Iterator[bytes]:
        """The view at its position, in parts: one per list, as large as an object may be."""
        yield msgspec.msgpack.encode((self.position, len(self._facts)))
        for key, number in self._facts.items():
            state = self.lists.get(key)
            spec = msgspec.json.encode(state.spec) if state is not None else b""
            yield msgspec.msgpack.encode((key, f"{number:x}", spec))

    def load(self, parts: Iterator[bytes]) -> None:
        """Become what `dump` told, from the empty state. Raises msgspec.MsgspecError, or what
        Python does, for parts that are not from `dump`."""
        position, count = msgspec.msgpack.decode(next(parts), type=tuple[Position, int])
        for _ in range(count):
            key, number, spec = msgspec.msgpack.decode(next(parts), type=tuple[Key, str, bytes])
            self._count(key, int(number, 16))
            if spec:
                self._enable(key, _decode_spec.decode(spec))
            else:
                self.disabled.add(key)
        self.position = position
        self._on_change((FILTERS,))
        self.on_lists()

    def __contains__(self, key: Key) -> bool:
        return key in self._facts

    def all_keys(self) -> Iterable[Key]:
        """Of all lists, in order."""
        return sorted(self._facts)
