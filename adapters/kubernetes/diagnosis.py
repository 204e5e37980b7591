"""What keeps this node from working with its cluster, said once in the log and for as long as it
lasts in its warnings: missing rights, definitions that are missing or of another version, objects
that cannot be read.

It learns of refusals from the outcome of every request, and of what is missing before it is needed
by asking, at the start and again after something was refused. While nothing is wrong it asks
nothing.
"""

import asyncio
import logging
from collections.abc import Iterable, Sequence

from kudurru.adapters.kubernetes.answers import Absent, Forbidden, cut
from kudurru.adapters.kubernetes.client import Client, Outcome
from kudurru.adapters.kubernetes.definitions import lacking
from kudurru.adapters.kubernetes.rbac import FEATURES, Feature
from kudurru.adapters.kubernetes.rights import (
    Right,
    feature_of,
    missing_rights,
    right_missing,
    right_of,
)
from kudurru.domain.errors import KudurruError
from kudurru.domain.kinds.meta import GROUP

AGAIN_S = 300.0
"""Between two looks while something is wrong."""
SOON_S = 5.0
"""After a refusal: several come together."""
NOTES_MAX = 256
"""Of each sort. What is beyond is counted."""
TEXT_MAX = 256
WATCHED_MAX = 32
"""Namespaces that are asked about. What is missing in others shows when it is refused."""

log = logging.getLogger(__name__)


class Diagnosis:
    """`run` it in a task. Give `observe` to the clients of this node."""

    def __init__(
        self,
        client: Client,
        namespace: str,
        features: Iterable[Feature] = FEATURES,
        *,
        watched: Sequence[str] = (),
    ) -> None:
        """`namespace` is the release's; `features` are those that are used. `watched`: where the
        objects are, if not anywhere."""
        self._client = client
        features = tuple(features)
        self._features: dict[str, list[Feature]] = {}
        """By the namespace in which the rights are asked."""
        for feature in features:
            places = (watched[:WATCHED_MAX] if not feature.is_of_namespace else ()) or (namespace,)
            for place in places:
                self._features.setdefault(place, []).append(feature)
        self._missing: dict[Right, str] = {}
        self._refused_s: dict[Right, float] = {}
        """When a request last was refused for the lack of it."""
        self._is_asked = False
        self._definitions: list[str] = []
        self._unreadable: dict[str, str] = {}
        self._beyond = 0
        self._credentials = ""
        self._doubt = asyncio.Event()

    def warnings(self) -> list[str]:
        """One sentence for each thing that is wrong, with what to do."""
        found = [self._credentials] if self._credentials else []
        found += [text for _, text in sorted(self._missing.items())]
        found += self._definitions
        found += [text for _, text in sorted(self._unreadable.items())]
        return found + ([f"Unreadable: {self._beyond} more objects"] if self._beyond else [])

    # --- what others tell -----------------------------------------------------------------

    def observe(self, outcome: Outcome) -> None:
        """Of every request of this node."""
        if isinstance(outcome.error, Forbidden):
            self._refused(outcome.error)
        elif isinstance(outcome.error, Absent):
            if outcome.path.startswith(f"/apis/{GROUP}/"):
                self._look_at_definitions(outcome)
        elif outcome.error is None:
            self._allowed(outcome)

    def unreadable(self, what: str, why: str) -> None:
        """An object is there and kept out; its last copy stays in use."""
        if what not in self._unreadable and len(self._unreadable) >= NOTES_MAX:
            self._beyond += 1
            return
        text = f"Unreadable: {what} is kept out, and what is held of it stays: {cut(why, TEXT_MAX)}"
        if self._unreadable.get(what) != text:
            log.warning("%s", text)
        self._unreadable[what] = text

    def readable(self, what: str) -> None:
        """It can be read now, or is gone."""
        self._unreadable.pop(what, None)

    def _refused(self, error: Forbidden) -> None:
        if error.code == 401:
            if not self._credentials:
                log.warning("%s", error)
            self._credentials = f"Unauthorized: {cut(str(error), 2 * TEXT_MAX)}"
            return
        right = right_missing(error)
        if right is None or (right not in self._missing and len(self._missing) >= NOTES_MAX):
            return
        self._refused_s[right] = _now_s()
        if right not in self._missing:
            self._note(right, feature_of(right))
            self._doubt.set()

    def _allowed(self, outcome: Outcome) -> None:
        self._credentials = ""
        right = right_of(outcome.method, outcome.path)
        if right is None:
            return
        rights = {right}
        if outcome.code == 201:
            rights.add(Right(right.group, right.resource, "create"))  # also by an apply
        for one in rights & self._missing.keys():
            self._forget(one)
            log.info("Kubernetes allows it now: %s", one)

    def _look_at_definitions(self, outcome: Outcome) -> None:
        right = right_of(outcome.method, outcome.path)
        if right is not None and right.verb in ("list", "watch") and not self._definitions:
            self._doubt.set()

    # --- what is asked --------------------------------------------------------------------

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            await self.look()
            await self._until_next()

    async def look(self) -> None:
        """Ask what is missing. What cannot be asked is as it was."""
        self._doubt.clear()
        self._is_asked = False
        try:
            found = await self._missing_rights()
            definitions = await lacking(self._client)
        except (KudurruError, OSError) as error:
            log.info("what is missing in Kubernetes could not be asked: %s", error)
            return
        self._is_asked = True
        if found is not None:
            self._compare(found)
        texts = [f"{one.reason}: {one.message}" for one in definitions]
        for text in texts:
            if text not in self._definitions:
                log.warning("%s", text)
        self._definitions = texts

    async def _missing_rights(self) -> dict[Right, Feature] | None:
        """In any of the namespaces; None where it cannot be told."""
        found: dict[Right, Feature] = {}
        for namespace, features in self._features.items():
            missing = await missing_rights(self._client, namespace, features)
            if missing is None:
                return None
            found |= dict(missing)
        return found

    def _compare(self, lacking_now: dict[Right, Feature]) -> None:
        for right, feature in lacking_now.items():
            if right not in self._missing:
                self._note(right, feature)
        # What is allowed in the namespace may be refused outside of it: then it is so again.
        for right in [one for one in self._missing if one not in lacking_now]:
            if _now_s() - self._refused_s.get(right, -AGAIN_S) >= AGAIN_S:
                self._forget(right)

    def _forget(self, right: Right) -> None:
        del self._missing[right]
        self._refused_s.pop(right, None)

    async def _until_next(self) -> None:
        is_over = self._is_asked and not self._missing and not self._definitions
        wait_s = None if is_over else AGAIN_S
        try:
            async with asyncio.timeout(wait_s):
                await self._doubt.wait()
        except TimeoutError:
            return
        await asyncio.sleep(SOON_S)

    def _note(self, right: Right, feature: Feature | None) -> None:
        if feature is None:
            text = f"Forbidden: Kubernetes refuses {right}, which no feature is known to need"
        else:
            text = (
                f"Forbidden: the feature {feature.name} lacks the verb {right.verb} on "
                f"{right.resource}{f'.{right.group}' if right.group else ''}: "
                f"bind schemas/rbac/{feature.name}.yaml, or leave the feature out"
            )
        self._missing[right] = text
        log.warning("%s", text)


def _now_s() -> float:
    return asyncio.get_running_loop().time()
