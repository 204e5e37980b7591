"""Who somebody is and what he may do, as the API server says: TokenReview, SubjectAccessReview.

A token has to be made for us (`kubectl create token NAME --audience kudurru`): one that opens the
API server itself is nobody's here, so that nobody is asked to hand it out. Answers are kept for
some seconds, of tokens by a digest; a right that is taken away lasts so long at most.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from functools import partial
from hashlib import sha256
from typing import Any, Generic, TypeVar

import msgspec

from kudurru.adapters.kubernetes.answers import Forbidden
from kudurru.adapters.kubernetes.client import Client
from kudurru.domain.errors import KudurruError, StorageFailed
from kudurru.domain.kinds.meta import GROUP, VERSION
from kudurru.domain.kinds.registry import KINDS
from kudurru.domain.objects import Key, key_of, ref_of
from kudurru.domain.ports import ClusterUser

AUDIENCE = "kudurru"
KEPT_S = 10.0
KEPT_MAX = 4096
"""Answers of each sort; the ones that were used least recently go."""
TOKEN_MAX = 16 * 1024
"""Octets. Those of service accounts have about one thousand."""
UNDER_WAY_MAX = 16
"""Reviews at once: whoever invents tokens does not make us ask the API server for more."""

TOKENS = "/apis/authentication.k8s.io/v1/tokenreviews"
ACCESS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"

K = TypeVar("K")
V = TypeVar("V")


class _User(msgspec.Struct, frozen=True):
    username: str = ""
    uid: str = ""
    groups: list[str] | None = None
    extra: dict[str, list[str]] | None = None


class _TokenStatus(msgspec.Struct, frozen=True):
    authenticated: bool = False
    user: _User = _User()
    audiences: list[str] | None = None


class _TokenReview(msgspec.Struct, frozen=True):
    status: _TokenStatus


class _AccessStatus(msgspec.Struct, frozen=True):
    allowed: bool = False
    denied: bool = False
    reason: str = ""


class _AccessReview(msgspec.Struct, frozen=True):
    status: _AccessStatus


class KubernetesReviews:
    """Implements `ClusterReviews`."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._users: _Kept[bytes, ClusterUser | None] = _Kept()
        self._refusals: _Kept[tuple[bytes, str, Key], str] = _Kept()
        self._room = asyncio.Semaphore(UNDER_WAY_MAX)

    async def user(self, token: str) -> ClusterUser | None:
        if len(token) > TOKEN_MAX or not token.isascii():
            return None
        digest = sha256(token.encode()).digest()
        return await self._users.get(digest, lambda: self._asked_user(token))

    async def refusal(self, user: ClusterUser, verb: str, key: Key) -> str:
        """Of all objects of the kind first, in their namespace: most roles know no names, and so a
        thousand objects are one request."""
        who = sha256(msgspec.json.encode(user)).digest()
        ref = ref_of(key)
        every = key_of(ref.kind, ref.namespace, "")
        why = ""
        for one in (every, key):
            asked = (who, verb, one)
            why = await self._refusals.get(asked, partial(self._asked_refusal, user, verb, one))
            if not why:
                break
        return why

    async def _asked_user(self, token: str) -> ClusterUser | None:
        spec = {"token": token, "audiences": [AUDIENCE]}
        review = await self._review(TOKENS, "TokenReview", spec, _TokenReview)
        status = review.status
        # An API server that knows no audiences answers none: its word is for any.
        is_ours = AUDIENCE in (status.audiences or ())
        if not status.authenticated or not is_ours or not status.user.username:
            return None
        user = status.user
        return ClusterUser(user.username, user.uid, tuple(user.groups or ()), user.extra or {})

    async def _asked_refusal(self, user: ClusterUser, verb: str, key: Key) -> str:
        ref = ref_of(key)
        kind = KINDS[ref.kind]
        wanted = {
            "group": GROUP,
            "version": VERSION,
            "resource": kind.plural,
            "verb": verb,
        }
        if ref.name:
            wanted["name"] = ref.name
        if kind.namespaced:
            wanted["namespace"] = ref.namespace
        spec = {
            "user": user.name,
            "uid": user.uid,
            "groups": list(user.groups),
            "extra": user.extra,
            "resourceAttributes": wanted,
        }
        review = await self._review(ACCESS, "SubjectAccessReview", spec, _AccessReview)
        status = review.status
        if status.allowed and not status.denied:
            return ""
        where = f" in the namespace {ref.namespace}" if kind.namespaced else ""
        why = f": {status.reason}" if status.reason else ""
        return f"{user.name} may not {verb} {kind.plural}.{GROUP}{where} in Kubernetes{why}"

    async def _review(self, path: str, kind: str, spec: dict[str, Any], type_: type[V]) -> V:
        body = {"apiVersion": path.removeprefix("/apis/").rpartition("/")[0], "kind": kind}
        async with self._room:
            try:
                return await self._client.request("POST", path, body | {"spec": spec}, type_=type_)
            except Forbidden as error:
                fault = (
                    f"Kubernetes cannot be asked: the verb create on {kind} is missing; bind "
                    "schemas/rbac/reviews.yaml"
                )
                raise StorageFailed(fault) from error
            except KudurruError as error:
                raise StorageFailed(
                    f"Kubernetes cannot be asked who may do what: {error}"
                ) from error


class _Kept(Generic[K, V]):
    """Answers for some seconds. What is asked twice at once is asked once."""

    def __init__(self) -> None:
        self._answers: OrderedDict[K, tuple[float, V]] = OrderedDict()
        self._asked: dict[K, asyncio.Task[V]] = {}

    async def get(self, key: K, ask: Callable[[], Awaitable[V]]) -> V:
        found = self._answers.get(key)
        if found is not None and _now_s() < found[0]:
            self._answers.move_to_end(key)
            return found[1]
        task = self._asked.get(key)
        if task is None:
            task = asyncio.ensure_future(self._ask(key, ask))
            self._asked[key] = task
            task.add_done_callback(lambda done: self._ended(key, done))
        # Whoever goes away takes nothing from the others who wait for it.
        return await asyncio.shield(task)

    async def _ask(self, key: K, ask: Callable[[], Awaitable[V]]) -> V:
        asked_s = _now_s()  # what comes late is as old as that
        answer = await ask()
        self._answers[key] = (asked_s + KEPT_S, answer)
        self._answers.move_to_end(key)
        while len(self._answers) > KEPT_MAX:
            self._answers.popitem(last=False)
        return answer

    def _ended(self, key: K, task: asyncio.Task[V]) -> None:
        del self._asked[key]
        if not task.cancelled():
            task.exception()  # nobody may be left who wants to hear it


def _now_s() -> float:
    return asyncio.get_running_loop().time()
