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
from kudurru.domain.objects import Key
from kudurru.domain.ports import Clock, ClusterReviews
from kudurru.entrypoints.rest.status import Forbidden, Unauthorized
from kudurru.entrypoints.tokens import NotLetIn, Principal

if TYPE_CHECKING:
    from kudurru.entrypoints.rest.calls import Call

KNOWN_US = 10_000_000
KNOWN_MAX = 4096
STRANGER_BODY_MAX = 64 * 1024
"""Octets of a body that is held while the cluster is asked whose it is: one object."""


def is_of_cluster(token: str) -> bool:
    """Whether a token could be one of a cluster's: a JWT (RFC 7519) has three parts."""
    return token.count(".") == 2 and not token.startswith("kudurru_")


def check_stranger(request: Request) -> None:
    """Whoever is not known yet fills no memory. Raises: Unauthorized."""
    length = request.headers.get("content-length", "0")
    if not request.has_body or (length.isdecimal() and int(length) <= STRANGER_BODY_MAX):
        return
    raise Unauthorized(
        f"a token that was not seen for some seconds comes with {STRANGER_BODY_MAX} octets at "
        "most: ask for /api/v1/info first, then send this again"
    )


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
) -> None:
    """Ask the cluster, before anything is told of the objects, whether one of its users may do
    that; of others nothing is asked. An apply that makes an object needs both verbs, as there.
    Raises: Forbidden with the first refusal; StorageFailed when the cluster cannot be asked."""
    user, people = call.principal.user, call.context.people
    if user is None:
        return
    assert people is not None
    for verb, key in _asked(call, applied, changed, deleted):
        if why := await people.reviews.refusal(user, verb, key):
            raise Forbidden(why)


def _asked(
    call: "Call", applied: Iterable[Key], changed: Iterable[Key], deleted: Iterable[Key]
) -> Iterator[tuple[str, Key]]:
    for key in applied:
        yield "patch", key
        if call.context.node.objects.entry(key) is None:
            yield "create", key
    for key in changed:
        yield "patch", key
    for key in deleted:
        yield "delete", key


def _digest(token: str) -> bytes:
    return sha256(token.encode("utf-8", "surrogatepass")).digest()
