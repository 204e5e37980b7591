"""The suites of unbound and NLnet Labs' domain that are about forwarding and caching, replayed on
scripted upstreams. Each file holds, or is named here with the reason why it does not."""

from collections.abc import Sequence

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
    "serve_expired_reply_ttl": AS_STUB,
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

DIFFERS: dict[str, tuple[str, Sequence[int] | None]] = {
    # What a cache of answers is asked.
    "cache_ad_rev": (
        "asked without AD first; a trusted upstream is always asked with AD, once",
        (11,),
    ),
    "cache_do_nsec": (DO_APART, (11, 21)),
    "cache_do_nsec3": (DO_APART, (11, 21)),
    "cache_do_q_nsec": (DO_APART, (21,)),
    "cache_do_q_rrsig": (DO_APART, (11, 21)),
    "ttl_max": (PARTS, (26,)),
    "ttl_msg": (PARTS, (36, 41, 56)),
    # What is never forwarded.
    "cache_chaos": ("class CH is about this server (RFC 4892)", (2, 11)),
    "cache_notify": ("NOTIFY is for secondaries (RFC 1996 section 3.1)", (2, 11)),
    "cache_rd_rev": ("without RD nobody is asked (RFC 1034 section 4.3.1)", (2,)),
    "cache_delegation": ("without RD nobody is asked, so a referral is not seen", (2, 11)),
    # What codes mean.
    "cache_refused": ("FORMERR is between us and an upstream: clients get SERVFAIL", (21,)),
    "cache_transport_error": ("FORMERR is between us and an upstream: clients get SERVFAIL", (11,)),
    "ttl_zero_cacherep": (
        "REFUSED of all upstreams is told; a server that iterates has SERVFAIL",
        (140,),
    ),
    # Validation.
    "serve_expired_client_timeout_val_bogus": (VALIDATES, None),
    "serve_expired_client_timeout_val_insecure_delegation": (VALIDATES, (40,)),
    "serve_expired_val_bogus": (VALIDATES, None),
    "serve_expired_wildcard_swap_ad": (VALIDATES, (40, 60)),
    "fwd_scrub_rrsig": (
        "eight signatures at most are for a validator's sake; we give on all",
        (4,),
    ),
    # Settings.
    "fwd_minimal": (
        IS_SETTING + "minimal-responses; the authority section is given on",
        (4, 14, 24, 34),
    ),
    "fwd_no_cache": (IS_SETTING + "forward-no-cache", (4, 24)),
    "serve_expired_ttl_reset": (IS_SETTING + "serve-expired-ttl-reset", (11, 13)),
    "ttl_min_negative": (
        IS_SETTING + "cache-min-negative-ttl; cache.minTTL is for all answers",
        (10, 26),
    ),
    "serve_expired_reply_ttl": (
        "RFC 8767 section 4: the stale TTL is one for all; there it is no longer than each had",
        (60,),
    ),
    # Other parts.
    "ede_localzone_dname_expansion": (OWN_TESTS + "tests/domain/test_lookup.py", (10,)),
    "edns_downstream_cookies": (
        OWN_TESTS + "tests/domain/test_cookies.py",
        (1, 11, 21, 31, 41, 51, 61, 71, 81),
    ),
    "edns_nsid_repeat": (OWN_TESTS + "tests/projections/test_pipeline_edns.py", None),
    "serve_expired_respip_cname": (
        "addresses are replaced by network, see test_policy_replays.py",
        (11, 40),
    ),
    "serve_expired_rpz_nx": (
        "a policy zone triggers on an address, see test_policy_replays.py",
        (11, 40),
    ),
}
"""Why a scenario does not hold whole, and the checks that are otherwise; None: it has what is not
read here."""

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


def test_the_other_checks_of_replays_that_differ_hold() -> None:
    vectors("unbound/rpl")
    root = vectors("nlnetlabs-domain").parent
    paths = {path.stem: path for pattern in SUITES for path in root.glob(pattern)}
    held = total = 0
    for name, (_, otherwise) in DIFFERS.items():
        if otherwise is not None:
            player = Player(read_replay(paths[name]), **PLAYED.get(name, {}))
            checks = player.play_but_for(otherwise)
            total += checks
            held += checks - len(otherwise)
    print(f"suite replay-steps: {held} of {total}, {total - held} differ on purpose")


@pytest.mark.parametrize("name", ["fwd_cached", "serve_expired_ttl_client_timeout", "ttl_min"])
def test_a_replay_is_read_with_all_its_steps(name: str) -> None:
    replay = read_replay(vectors(f"unbound/rpl/{name}.rpl"))
    assert replay.steps
    assert all(step.entry for step in replay.steps if step.kind in ("QUERY", "CHECK_ANSWER"))
