"""What caches of HTTP that clients share may keep of answers over HTTPS: only what is the same for
everybody (RFC 9111 section 5.2.2.7)."""

import pytest

from kudurru.adapters.dns.answering import Answering
from kudurru.adapters.dns.doh import Doh, Request, Response
from kudurru.adapters.networks import Networks
from kudurru.domain.filtering.decision import Filters
from kudurru.entrypoints.listeners import AtListener
from kudurru.projections.pipeline.resolver import Rules
from tests.dns_clients import post
from tests.filtering import groups, policy
from tests.packets import query
from tests.upstreams import CLIENT, Rig, always
from tests.zone_files import zone_from_text

ONE = "192.0.2.11"
ZONE = """
@ 600 SOA ns.home.example. h.home.example. 1 7200 900 1209600 300
@ 600 NS ns.home.example.
www 60 A 192.0.2.80
"""
EVERYBODY, HOME = Rules(clients="all"), Rules(clients="private")
NONE = Filters()
FOR_ALL = Filters([policy("all", deny=["ads.example"])], groups())
FOR_KIDS = Filters(
    [policy("kids", clientGroupRefs=["kids"], deny=["ads.example"])], groups(kids=[{"ip": CLIENT}])
)
LISTED = Filters([policy("all", blockListRefs=["some"])], groups())  # whose rules may name clients


@pytest.mark.parametrize(
    ("rules", "filters", "name", "control"),
    [
        (HOME, FOR_KIDS, "www.home.example", b"max-age=60"),
        (HOME, FOR_KIDS, "none.home.example", b"max-age=300"),
        (EVERYBODY, NONE, "www.example", b"max-age=100"),
        (EVERYBODY, FOR_ALL, "www.example", b"max-age=100"),
        (EVERYBODY, FOR_ALL, "ads.example", b"max-age=30"),
        (HOME, NONE, "www.example", b"private, max-age=100"),
        (HOME, FOR_ALL, "ads.example", b"private, max-age=30"),
        (EVERYBODY, FOR_KIDS, "www.example", b"private, max-age=100"),
        (EVERYBODY, FOR_KIDS, "ads.example", b"private, max-age=30"),
        (EVERYBODY, LISTED, "www.example", b"private, max-age=100"),
    ],
)
def test_what_may_be_for_one_client_is_for_no_shared_cache(
    rules: Rules, filters: Filters, name: str, control: bytes
) -> None:
    rig = Rig(ONE, rules=rules, zones=[zone_from_text(ZONE, "home.example.")], filters=filters)
    rig.scripts[ONE] = always("www.example. 100 IN A 192.0.2.1")
    doh = Doh(Answering(AtListener(rig.pipeline, "127.0.0.1:443"), "https", 65_535), Networks())
    method, path, headers, body = post(query(name))
    for _ in range(2):  # the first one may have to be asked for
        found = doh.respond(Request(method, path, headers, body), CLIENT)
        rig.pass_time(0)
    assert isinstance(found, Response)
    assert dict(found.headers)[b"cache-control"] == control


def test_what_nobody_may_keep_is_not_for_one_client_either() -> None:
    rig = Rig(ONE, filters=FOR_KIDS)
    doh = Doh(Answering(AtListener(rig.pipeline, "127.0.0.1:443"), "https", 65_535), Networks())
    method, path, headers, body = post(query("www.example"))
    refused = doh.respond(Request(method, path, headers, body), "198.51.100.1")
    assert isinstance(refused, Response)
    assert dict(refused.headers)[b"cache-control"] == b"no-store"
