"""The suites of unbound and NLnet Labs' domain that are about forwarding and caching, replayed on
scripted upstreams. Each file holds, or is named here with the reason why it does not."""

import pytest

from tests.replays import Player, read_replay
from tests.vectors import vectors

# How a scenario is played that is about something else than the mix of flags in its queries.
AS_STUB = {"as_stub": True}
TRUSTED = {"is_trusted": True}
PLAYED = {
    "cache_ad": TRUSTED,
    "serve_expired": AS_STUB,
    "serve_expired_0ttl_nodata": AS_STUB,
    "serve_expired_client_timeout": AS_STUB,
    "serve_expired_client_timeout_servfail": AS_STUB,
    "serve_expired_zerottl": AS_STUB,
    "ttl_max_negative": AS_STUB,
    "ttl_min": AS_STUB,
}

# RFC 4035 section 3.2.1: DO is part of what was asked.
DO_APART = "what was fetched with DO is not taken apart for who asks without, nor AD without trust"
PARTS = "it asks for NS or SOA that came in another answer; answers are kept and given whole"
VALIDATES = "the server there validates what it fetches; we believe AD of trusted upstreams only"
IS_SETTING = "about a setting that we do not have: "
OWN_TESTS = "no question goes to an upstream; ours is shown by "

DIFFERS = {
    # What a cache of answers is asked.
    "cache_ad_rev": "asked without AD first; a trusted upstream is always asked with AD, once",
    "cache_do_nsec": DO_APART,
    "cache_do_nsec3": DO_APART,
    "cache_do_q_nsec": DO_APART,
    "cache_do_q_rrsig": DO_APART,
    "ttl_max": PARTS,
    "ttl_msg": PARTS,
    # What is never forwarded.
    "cache_chaos": "class CH is about this server (RFC 4892)",
    "cache_notify": "NOTIFY is for secondaries (RFC 1996 section 3.1)",
    "cache_rd_rev": "without RD nobody is asked (RFC 1034 section 4.3.1)",
    "cache_delegation": "without RD nobody is asked, so a referral is not seen",
    # What codes mean.
    "cache_refused": "FORMERR is between us and an upstream: clients get SERVFAIL",
    "cache_transport_error": "FORMERR is between us and an upstream: clients get SERVFAIL",
    "ttl_zero_cacherep": "REFUSED of all upstreams is told; a server that iterates has SERVFAIL",
    # Validation.
    "serve_expired_client_timeout_val_bogus": VALIDATES,
    "serve_expired_client_timeout_val_insecure_delegation": VALIDATES,
    "serve_expired_val_bogus": VALIDATES,
    "serve_expired_wildcard_swap_ad": VALIDATES,
    "fwd_scrub_rrsig": "eight signatures at most are for a validator's sake; we give on all",
    # Settings.
    "fwd_minimal": IS_SETTING + "minimal-responses; the authority section is given on",
    "fwd_no_cache": IS_SETTING + "forward-no-cache",
    "serve_expired_ttl_reset": IS_SETTING + "serve-expired-ttl-reset",
    "ttl_min_negative": IS_SETTING + "cache-min-negative-ttl; cache.minTTL is for all answers",
    "serve_expired_reply_ttl": "RFC 8767 section 4: the stale TTL is one for all records; there "
    "it is no longer than each had",
    # Other parts.
    "ede_localzone_dname_expansion": OWN_TESTS + "tests/domain/test_lookup.py",
    "edns_downstream_cookies": OWN_TESTS + "tests/domain/test_cookies.py",
    "edns_nsid_repeat": OWN_TESTS + "tests/projections/test_pipeline_edns.py",
    "serve_expired_respip_cname": "addresses are replaced by network, see test_policy_replays.py",
    "serve_expired_rpz_nx": "a policy zone triggers on an address, see test_policy_replays.py",
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
            Player(read_replay(path), **PLAYED.get(path.stem, {})).play()
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
