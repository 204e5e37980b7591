"""Where objects have this node send, what they have it read, and what catalogs do to other zones:
not for everybody to say."""

from contextlib import suppress

from kudurru.domain.access import catalog_fault
from kudurru.domain.errors import Invalid
from kudurru.domain.kinds.meta import Spec
from kudurru.domain.kinds.reach import reach_faults
from kudurru.domain.kinds.recordset import DNSRecordSetSpec
from kudurru.domain.object_store import StoredObject, manifest_of
from kudurru.domain.objects import Key, ref_of
from kudurru.entrypoints.rest.calls import Call
from kudurru.entrypoints.rest.status import Forbidden


def check_reach(call: Call, key: Key, spec: Spec, stored: StoredObject | None) -> None:
    """Who is no admin has this node send to no places that the admin may not want to be asked, and
    who has limits changes no catalog. `stored` is the object as it is: what it asks for may stay.
    Raises: Forbidden, which names every fault."""
    rights = call.principal.rights
    if isinstance(spec, DNSRecordSetSpec) or rights.may("objects.reach"):
        return  # records reach nothing; and no token with limits may reach more
    before = spec_of(stored) if stored is not None else None
    if why := catalog_fault(rights, before, spec):
        raise Forbidden(f"{ref_of(key)}: {why}")
    settings = call.context.settings()
    faults = reach_faults(
        spec,
        before,
        allow_private=settings.lists.allow_private,
        groups=settings.upstreams.groups,
    )
    if told := "; ".join(f"{fault.field}: {fault.message}" for fault in faults):
        raise Forbidden(f"{ref_of(key)}: {told}")


def spec_of(stored: StoredObject) -> Spec | None:
    """None where it was recorded by a version that allowed more."""
    with suppress(Invalid):
        return manifest_of(stored.key, stored.body.spec, {}, {}).spec
    return None
