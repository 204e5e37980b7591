"""The suites of unbound and NLnet Labs' domain that are about forwarding and caching, replayed on
scripted upstreams. Each file holds, or is named here with the reason why it does not."""

import pytest

from tests.replays import Player, read_replay
from tests.vectors import vectors

DO_APART = (
    "what was fetched without DO is no answer with it, nor is an answer taken apart (RFC 4035)"
)
ROOT = (
    "it iterates from the root, or asks for parts of other answers; a forwarder asks the question"
)
OTHER = (
    "it is about a part of that server that has its own tests here: policy, local zones, cookies"
)
CODES = "codes that speak of a server are remembered for 5 s, and FORMERR is between us and it"
VALIDATES = "we do not validate; AD is believed of upstreams that are marked as trusted only"
NO_SETTING = "a setting that we do not have"
NOT_IN_STEP = "there the stale answer goes out before any upstream was asked; here both are at once"

DIFFERS = {
    "cache_ad": VALIDATES,
    "cache_ad_rev": VALIDATES,
    "cache_chaos": "class CH is about this server and never forwarded",
    "cache_delegation": "RD is needed to have anything asked, so a referral is not seen",
    "cache_do_nsec": DO_APART,
    "cache_do_nsec3": DO_APART,
    "cache_do_q_nsec": DO_APART,
    "cache_do_q_rrsig": DO_APART,
    "cache_notify": "NOTIFY is for secondaries and never forwarded",
    "cache_rd_rev": "without RD nobody is asked (RFC 1034 section 4.3.1)",
    "cache_refused": CODES,
    "cache_transport_error": CODES,
    "ede_acl_refused": OTHER,
    "ede_cache_snoop_not_auth": OTHER,
    "ede_localzone_dname_expansion": OTHER,
    "edns_downstream_cookies": OTHER,
    "edns_nsid_repeat": OTHER,
    "fwd_minimal": NO_SETTING,
    "fwd_no_cache": NO_SETTING,
    "fwd_scrub_rrsig": "signatures are given on as they came",
    "serve_expired": DO_APART,
    "serve_expired_0ttl_nodata": "names without an origin, which the reader does not have",
    "serve_expired_0ttl_nxdomain": "names without an origin, which the reader does not have",
    "serve_expired_client_timeout": DO_APART,
    "serve_expired_client_timeout_servfail": DO_APART,
    "serve_expired_client_timeout_val_bogus": VALIDATES,
    "serve_expired_client_timeout_val_insecure_delegation": VALIDATES,
    "serve_expired_reply_ttl": NOT_IN_STEP,
    "serve_expired_respip_cname": OTHER,
    "serve_expired_respip_drop": OTHER,
    "serve_expired_rpz_drop": OTHER,
    "serve_expired_rpz_nx": OTHER,
    "serve_expired_ttl_reset": DO_APART,
    "serve_expired_val_bogus": VALIDATES,
    "serve_expired_wildcard_swap_ad": VALIDATES,
    "serve_expired_zerottl": NOT_IN_STEP,
    "ttl_max": ROOT,
    "ttl_max_negative": ROOT,
    "ttl_min": ROOT,
    "ttl_min_negative": NO_SETTING,
    "ttl_msg": ROOT,
    "ttl_zero_cacherep": CODES,
}

SUITES = (
    *(f"unbound/rpl/{kind}*.rpl" for kind in ("serve_expired", "fwd", "ttl", "edns", "ede")),
    "nlnetlabs-domain/client*/*.rpl",
)
COUNT = 76


def test_every_replay_holds_or_is_known_not_to() -> None:
    vectors("unbound/rpl")
    root = vectors("nlnetlabs-domain").parent
    paths = sorted(path for pattern in SUITES for path in root.glob(pattern))
    assert len(paths) == COUNT
    held, failed = set(), {}
    for path in paths:
        try:
            Player(read_replay(path)).play()
            held.add(path.stem)
        except Exception as fault:  # what it was decides nothing
            failed[path.stem] = fault
    unknown = {name: fault for name, fault in failed.items() if name not in DIFFERS}
    assert not unknown
    assert not held & DIFFERS.keys(), "these hold now: take them from the list"
    print(f"suite replays: {len(held)} of {COUNT}, {len(failed)} differ on purpose")


@pytest.mark.parametrize("name", ["fwd_cached", "serve_expired_ttl_client_timeout", "ttl_min"])
def test_a_replay_is_read_with_all_its_steps(name: str) -> None:
    replay = read_replay(vectors(f"unbound/rpl/{name}.rpl"))
    assert replay.steps
    assert all(step.entry for step in replay.steps if step.kind in ("QUERY", "CHECK_ANSWER"))
