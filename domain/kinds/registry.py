"""The kinds this program knows, looked up by name and never by suffix: `BlockList` ends in "List"
and is not a list."""

from collections.abc import Callable, Iterable
from difflib import get_close_matches
from typing import Any

import msgspec

from kudurru.domain.errors import Cause, Invalid
from kudurru.domain.kinds.apitoken import APITokenSpec, APITokenStatus, apitoken_faults
from kudurru.domain.kinds.blocklist import BlockListSpec, BlockListStatus, blocklist_faults
from kudurru.domain.kinds.clientgroup import (
    ClientGroupSpec,
    ClientGroupStatus,
    clientgroup_faults,
)
from kudurru.domain.kinds.meta import StrictSpec
from kudurru.domain.kinds.policy import PolicySpec, PolicyStatus, policy_faults
from kudurru.domain.kinds.recordset import (
    DNSRecordSetSpec,
    DNSRecordSetStatus,
    recordset_faults,
)
from kudurru.domain.kinds.tsigkey import TSIGKeySpec, TSIGKeyStatus, tsigkey_faults
from kudurru.domain.kinds.zone import DNSZoneSpec, DNSZoneStatus, zone_faults


class Kind(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of object."""

    name: str
    plural: str
    short: str
    namespaced: bool
    spec: type[StrictSpec]
    status: type[msgspec.Struct]
    faults: Callable[[Any], Iterable[Cause]]  # of a spec of the right type
    about: str
    is_internal: bool = False
    """Has a secret part: left out of what is exported, and not made by an Apply from outside."""
    made_by: str = ""  # the command that makes it then
    is_restored: bool = True
    """Whether restore and undo bring it back. Who may do what is decided for today."""


DNS_ZONE = Kind(
    name="DNSZone",
    plural="dnszones",
    short="zone",
    namespaced=False,
    spec=DNSZoneSpec,
    status=DNSZoneStatus,
    faults=zone_faults,
    about="A zone that is served, fetched from a primary, or forwarded.",
)
DNS_RECORD_SET = Kind(
    name="DNSRecordSet",
    plural="dnsrecordsets",
    short="rs",
    namespaced=True,
    spec=DNSRecordSetSpec,
    status=DNSRecordSetStatus,
    faults=recordset_faults,
    about="Records of a zone.",
)
BLOCK_LIST = Kind(
    name="BlockList",
    plural="blocklists",
    short="bl",
    namespaced=True,
    spec=BlockListSpec,
    status=BlockListStatus,
    faults=blocklist_faults,
    about="Subscribed lists of names to deny or allow.",
)
CLIENT_GROUP = Kind(
    name="ClientGroup",
    plural="clientgroups",
    short="cg",
    namespaced=True,
    spec=ClientGroupSpec,
    status=ClientGroupStatus,
    faults=clientgroup_faults,
    about="Clients that a policy is about.",
)
POLICY = Kind(
    name="Policy",
    plural="policies",
    short="pol",
    namespaced=True,
    spec=PolicySpec,
    status=PolicyStatus,
    faults=policy_faults,
    about="What is filtered, rewritten and forwarded, for whom and when.",
)

TSIG_KEY = Kind(
    name="TSIGKey",
    plural="tsigkeys",
    short="tsig",
    namespaced=False,
    spec=TSIGKeySpec,
    status=TSIGKeyStatus,
    faults=tsigkey_faults,
    about="A key shared with other name servers, for transfers and updates.",
    is_internal=True,
    made_by="kudurru tsig create",
)
API_TOKEN = Kind(
    name="APIToken",
    plural="apitokens",
    short="token",
    namespaced=False,
    spec=APITokenSpec,
    status=APITokenStatus,
    faults=apitoken_faults,
    about="Lets a program or a person use the API.",
    is_internal=True,
    made_by="kudurru token create",
    is_restored=False,
)

KINDS = {
    kind.name: kind
    for kind in (DNS_ZONE, DNS_RECORD_SET, BLOCK_LIST, CLIENT_GROUP, POLICY, TSIG_KEY, API_TOKEN)
}

_BY_WORD = {
    word: kind
    for kind in KINDS.values()
    for word in (kind.name.lower(), kind.plural, kind.short, kind.short + "s")
}


def kind_by_word(word: str) -> Kind:
    """Kind by singular, plural or short name, any case. Raises Invalid with what there is."""
    kind = _BY_WORD.get(word.lower())
    if kind is None:
        near = get_close_matches(word.lower(), _BY_WORD, n=1)
        known = ", ".join(f"{kind.name} ({kind.short})" for kind in KINDS.values())
        hint = f"did you mean {_BY_WORD[near[0]].name}? There are" if near else "there are"
        raise Invalid("kind", [Cause("", f"{word!r} is not known; {hint} {known}")])
    return kind
