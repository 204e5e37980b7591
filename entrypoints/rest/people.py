"""People whom a Kubernetes cluster knows, in the API.

They come with a token that the cluster made for us. Who that is, and what he may write, the cluster
says (`domain.ports.ClusterReviews`); the write itself is this server's. What he may read he reads
in the cluster.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from hashlib import sha256
from typing import TYPE_CHECKING

from kudurru.adapters.http_api import Request
from kudurru.domain.access import Rights
from kudurru.domain.objects import Key, key_of, ref_of
from kudurru.domain.ports import Clock, ClusterReviews
from kudurru.entrypoints.rest.status import Forbidden, Unauthorized, reply_to
from kudurru.entrypoints.tokens import NotLetIn, Principal

if TYPE_CHECKING:
    from kudurru.entrypoints.rest.calls import Call

KNOWN_US = 10_000_000
KNOWN_MAX = 4096
STRANGER_BODY_MAX = 64 * 1024
"""Octets of a body that is held while the cluster is asked whose it is: one object."""

TOO_MUCH = (
    f"a token that was not seen for some seconds comes with {STRANGER_BODY_MAX} octets at "
    "most: ask for /api/v1/info first, then send this again"
)


def is_of_cluster(token: str) -> bool:
    """Whether a token could be one of a cluster's: a JWT (RFC 7519) has three parts."""
    return token.count(".") == 2 and not token.startswith("kudurru_")


def check_stranger(request: Request) -> None:
    """Whoever is not known yet fills no memory, however long he says that his body is, or if he
    does not. Raises: Unauthorized."""
    length = request.headers.get("content-length", "0")
    if not length.isdecimal() or int(length) > STRANGER_BODY_MAX:
        raise Unauthorized(TOO_MUCH)
    request.body_max, request.too_large = STRANGER_BODY_MAX, reply_to(Unauthorized(TOO_MUCH))


class People:
    """Of one node, on one event loop."""

    def __init__(self, reviews: ClusterReviews, clock: Clock) -> None:
        self.reviews = reviews
        self._clock = clock
        self._known: OrderedDict[bytes, tuple[int, Principal]] = OrderedDict()

    def known(self, token: str) -> Principal | None:
        """Who came with it some seconds ago."""
        found = self._known.get(_digest(token))
        return found[1] if found and self._clock.monotonic_us() < found[0] else None

    async def find(self, token: str) -> Principal:
        """Raises: NotLetIn; StorageFailed when the cluster cannot be asked."""
        user = await self.reviews.user(token)
        if user is None:
            raise NotLetIn(
                "unknown",
                "the cluster knows no such token for us: `kubectl create token NAME "
                "--audience kudurru` makes one",
            )
        name = f"kubernetes-user:{user.name}"
        principal = Principal(name, Rights(role="cluster-user"), 0, user)
        digest = _digest(token)
        self._known[digest] = self._clock.monotonic_us() + KNOWN_US, principal
        self._known.move_to_end(digest)
        while len(self._known) > KNOWN_MAX:
            self._known.popitem(last=False)
        return principal


async def review(
    call: "Call",
    *,
    applied: Iterable[Key] = (),
    changed: Iterable[Key] = (),
    deleted: Iterable[Key] = (),
) -> "MayNotMake":
    """Ask the cluster, before anything is told of the objects, whether one of its users may do
    that; of others nothing is asked. An apply that makes an object needs both verbs, as there.
    Raises: Forbidden with the first refusal; StorageFailed when the cluster cannot be asked."""
    may_not_make: MayNotMake = {}
    user, people = call.principal.user, call.context.people
    if user is None:
        return may_not_make
    assert people is not None
    applied = list(applied)
    for verb, key in _asked(applied, changed, deleted):
        if why := await people.reviews.refusal(user, verb, key):
            raise Forbidden(why)
    for key in applied:
        ref = ref_of(key)
        is_there = call.context.node.objects.entry(key) is not None
        # Of all objects where it is there, so that a thousand are one question.
        asked = key_of(ref.kind, ref.namespace, "") if is_there else key
        if why := await people.reviews.refusal(user, "create", asked):
            if not is_there:
                raise Forbidden(why)
            may_not_make[key] = why
    return may_not_make


MayNotMake = dict[Key, str]
"""Objects that are there and that somebody may change and not make, and why. What is here may be
older than what is there: so whatever he applies has to be of the version that is here."""


def _asked(
    applied: Iterable[Key], changed: Iterable[Key], deleted: Iterable[Key]
) -> Iterator[tuple[str, Key]]:
    yield from (("patch", key) for key in (*applied, *changed))
    yield from (("delete", key) for key in deleted)


def _digest(token: str) -> bytes:
    return sha256(token.encode("utf-8", "surrogatepass")).digest()
