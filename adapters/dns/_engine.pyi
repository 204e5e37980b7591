"""The native engine's core (native/core.h), where it was built."""

from collections.abc import Callable, Sequence

BATCH: int
"""Answers that `Workers.send` takes at most."""
PLACES: int
"""Places at which answers may be counted."""

class Table:
    """Answers that may be repeated. A `scope` (0 to 255) tells keys of one kind of asker from those
    of others. Messages are as `Memo` has them."""

    def __init__(self, entries_max: int, bytes_max: int, seed: bytes) -> None: ...
    def store(
        self,
        scope: int,
        generation: int,
        packet: bytes,
        wire: bytes,
        place: int,
        slots: bytes,
        /,
        is_restricted: bool = False,
        until_us: int = 0,
        stored_us: int = 0,
        aged_s: int = 0,
        ttls_at: Sequence[int] = (),
        cookie_at: int = 0,
        client_class: int = 0,
    ) -> bool:
        """Keep an answer, unless one of its slots, at most 6, was invalidated since the table had
        that generation. The rest is as `domain.ports.Keep` has it."""

    def admit(self, networks: Sequence[tuple[bytes, int]], is_everybody: bool, /) -> None:
        """From now on restricted answers are for clients in these networks (octets, bits)."""

    def sample(self, one_in: int, /) -> None:
        """From now on `Workers.repeats` has one query of so many. Raises: ValueError for 0."""

    def learn_class(self, scope: int, generation: int, client: bytes, client_class: int, /) -> None:
        """Of which class a client was in a generation. Answers with a class are for its clients.
        Classes end with the slot of what filters."""

    def set_cookie_keys(self, day: int, before: bytes, of_day: bytes, after: bytes, /) -> None:
        """Keys of a day since 1970, of the one before and the one after: `Cookies.key_of`."""

    def cookie(self, option: bytes, client: bytes, now_s: int, /) -> bytes | None:
        """What workers answer to a cookie of 8 or 16 to 40 octets; None: a key is missing."""

    def generation(self) -> int:
        """Now: one more with each `invalidate`."""

    def since(self, slot: int, /) -> int:
        """The generation that began when what comes of a slot was dropped last."""

    def invalidate(self, slots: bytes, /) -> None:
        """Drop what comes of these slots, as `kudurru.adapters.dns.slots` has them."""

    def statistics(self) -> tuple[int, int, int]:
        """Answers, their octets, answers that left and may still be read."""

class Repeats:
    """Answers of a scope of a table, for who asks from Python; as `memo.Keeper` has it."""

    def __init__(self, table: Table, scope: int, /) -> None: ...
    def find(
        self, packet: bytes, client: bytes, is_named: bool, room: int, /
    ) -> tuple[bytes, int] | None: ...
    def take(
        self,
        arrived: bytearray,
        at: int,
        client: bytes,
        is_named: bool,
        limit: int,
        is_told: bool,
        /,
    ) -> tuple[int, int, bytes, list[tuple[bytes, bytes, int, int]]]: ...
    def hits(self) -> list[int]:
        """Answers given, by place."""

class Http2:
    """Requests of one connection over HTTP/2 that the table answers. Its table of HPACK (RFC 7541)
    is the client's as long as who reads blocks elsewhere takes it before, and gives it back."""

    def __init__(self, repeats: Repeats, seeds: bytes, /) -> None:
        """`seeds`: 32 octets that nobody outside knows."""

    def table(self) -> list[tuple[bytes, bytes]]:
        """The table of HPACK, oldest first."""

    def set_table(self, size_max: int, entries: Sequence[tuple[bytes, bytes]], /) -> None:
        """What the table is now, newest first. Raises: ValueError for more than 4,096 octets."""

    def key_of(self, frame: bytes | bytearray, /) -> bytes:
        """What a HEADERS frame says but for the message in its path and the length of its body:
        empty where it is an unusual one."""

    def learn(self, key: bytes, client: bytes, name: str, is_get: bool, /) -> None:
        """Answer requests with this key from now on, as those of a client; `name`: what it calls
        itself. The last 1,024 keys are kept."""

    def take(
        self,
        arrived: bytearray,
        stream: int,
        room: int,
        window: int,
        limit: int,
        fields: bytes,
        is_private: bool,
        is_named: Callable[[str], bool],
        is_told: bool,
        /,
    ) -> tuple[int, int, int, int, bool, list[bytes], list[tuple[bytes, bytes, int, int]]]:
        """Answer at most `limit` requests at the beginning of what has arrived, on streams behind
        this one, each answer of at most `room` octets and all of `window`. `fields`: the first ones
        of each response's block; `is_private`: answers but those from zones are not for everybody;
        `is_named`: whether a group goes by what a client calls itself.

        Octets used, the last stream, octets of answers and of bodies, whether the table of HPACK
        changed, the responses, and repeats as `Repeats.take` has them."""

class Zones:
    """Names of zones that the workers of a table answer from, where that is plain. Closed at first;
    while they are closed everything is left to Python. What follows is for one thread. Raises
    ValueError for names and images that are none, for a zone that comes or goes while they are
    open, and for a name that does while its zone is answered from.

    Names and apexes are keys, an image is as `domain.dns.images` has it."""

    def __init__(self, table: Table, bytes_max: int, seed: bytes) -> None: ...
    def close(self) -> None: ...
    def open(self) -> None: ...
    def add(self, apex: bytes, /) -> bool:
        """Take in a zone without names, mute: what is asked of it is left to Python."""

    def drop(self, apex: bytes, /) -> bool: ...
    def speak(self, apex: bytes, soa: bytes, pointers_at: Sequence[int], /) -> bool:
        """Answer from a zone from now on, with this SOA in its negative answers, where pointers to
        the apex are put. No octets make it mute. False, and nothing changes: there is no room."""

    def put(self, name: bytes, apex_size: int, image: bytes, is_unusual: bool, /) -> bool:
        """Let a name hold this image, EMPTY for one that is there because of those below it. What
        is asked of an unusual one is left to Python. False: there is no room."""

    def remove(self, name: bytes, apex_size: int, /) -> bool: ...
    def sweep(self, limit: int, /) -> bool:
        """Free so much of what nobody reads any more. Whether there is more."""

    def find(self, packet: bytes, /) -> bytes | None:
        """The answer to a query over UDP, None where it is left to Python."""

    def statistics(self) -> tuple[int, int, int]:
        """Zones, names, octets."""

class Buckets:
    """Implements `kudurru.projections.pipeline.ratelimit.Buckets`."""

    def __init__(self, seed: bytes, /) -> None: ...
    def configure(
        self,
        *,
        is_enabled: bool,
        slip: int,
        buckets_max: int,
        levels: Sequence[tuple[int, int, int]],
        exempt: Sequence[tuple[bytes, int]],
    ) -> None: ...
    def take(self, client: bytes, count: int, now_us: int, /) -> int: ...
    def slips(self, client: bytes, /) -> bool: ...
    def counts(self) -> tuple[int, int, int]: ...

class Workers:
    """Threads that answer, one for each socket: (descriptor, is IPv6, has packet info). The sockets
    stay the caller's, who closes them after `stop`."""

    def __init__(
        self,
        table: Table,
        buckets: Buckets | None,
        zones: Zones | None,
        sockets: Sequence[tuple[int, bool, bool]],
        scope: int,
        hears_repeats: bool,
        misses_size: int,
        urgent_size: int,
        repeats_size: int,
        joins_answers: bool = True,
    ) -> None: ...
    def start(self) -> None: ...
    def stop(self) -> None:
        """Receive no more. What was received can still be taken and answered."""

    def wake_fd(self) -> int:
        """An eventfd, readable when there is something to take after there was nothing."""

    def misses(self, limit: int, /) -> list[tuple[int, bytes, bytes, bytes, int]]:
        """Queries to answer, at most so many of each worker and as many for the health name, which
        come first: worker, origin, address of the client, message, and whether it is over the limit
        and wants to hear so."""

    def repeats(
        self, limit: int, /
    ) -> tuple[list[tuple[bytes, bytes, int, int]], list[tuple[bytes, bytes, int, int]]]:
        """Queries that were answered, at most so many of each worker, as `RepeatListener` wants
        them: repeats, and answers from the zones."""

    def untold(self) -> int:
        """Queries that were answered, and lost for `repeats`."""

    def send(
        self, worker: int, answers: tuple[tuple[bytes, bytes], ...], /
    ) -> tuple[int, int, int]:
        """Send answers to origins: how many were sent, refused by the system, and without room."""

    def take_overflow(self) -> bool:
        """Whether a socket has lost datagrams since the last call. Who waits for `wake_fd` is woken
        when the first was lost."""

    def take_recent(self) -> list[tuple[int, list[int]]]:
        """Of each worker: datagrams received so far, and clients of its last batches, one of each,
        that were not taken before: an IPv4 address, or a number for the /64 of an IPv6 one."""

    def settle(self) -> bool:
        """Wait for the batches under way, for a while. Whether all are over."""

    def counters(
        self, places: int, /
    ) -> tuple[int, int, int, int, int, int, int, list[int], list[tuple[int, int, int]]]:
        """Queries received, answered, malformed; answers that the system had no room for; queries
        that found no room in the queue; answers that the system refused; how many of those that it
        did not send were from the table or the zones; answers from the table that it sent, by
        place; those from the zones: type, RCODE, and how many, where there are any. What a client
        has got is counted."""
