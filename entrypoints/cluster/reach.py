"""What objects of a cluster may not ask for, whoever wrote them there.

The API server tells no more of an author than a name that he chose. So by what an object says
alone nodes send to public addresses, unless `kubernetes.reach` says more, and read no files. What
an object asked for when it was recorded stays allowed.
"""

from collections.abc import Callable, Container
from contextlib import suppress
from typing import NamedTuple

from kudurru.domain.errors import Invalid
from kudurru.domain.kinds.meta import Spec
from kudurru.domain.kinds.reach import reach_faults_of_cluster
from kudurru.domain.object_store import StoredObject, manifest_of


class Reach(NamedTuple):
    allowed: str = "public"  # the setting kubernetes.reach
    groups: Callable[[], Container[str]] = tuple
    """Names of upstreams.groups, now."""

    def why_not(self, spec: Spec, stored: StoredObject | None, asked: Spec | None = None) -> str:
        """All that is wrong with a spec; "" when nothing is. `asked` is what somebody asked this
        node to make of the object, who may."""
        faults = self._faults(spec, None, asked)
        if faults and stored is not None:  # which is read only then
            faults = self._faults(spec, stored, asked)
        return "; ".join(faults)

    def _faults(self, spec: Spec, stored: StoredObject | None, asked: Spec | None) -> list[str]:
        before = None
        if stored is not None:
            with suppress(Invalid):  # recorded by a version that allowed more
                before = manifest_of(stored.key, stored.body.spec, {}, {}).spec
        found = reach_faults_of_cluster(
            spec, before, reach=self.allowed, groups=self.groups(), asked=asked
        )
        return [f"{fault.field}: {fault.message}" for fault in found]
