"""unbound's scenarios of policy zones and response addresses, played through the whole pipeline: a
policy for each zone. Each holds, or is named here with the reason why it does not; what policy
zones say of names alone is compared in `test_rpz_vectors.py` too."""

from tests.replays import Player, read_replay
from tests.vectors import vectors

TRIGGERS = "it triggers on addresses or servers; of policy zones only names trigger (docs/lists.md)"
AT_THE_NAME = (
    "a target that is blocked or rewritten is answered at the name that was asked for, without the "
    "aliases before it"
)
OVERRIDES = "an action for a whole zone whatever its rules say; here the rule or the policy says it"
TAGS = "tags choose zones by client there; here client groups do"
RESPIP = "response-ip replaces addresses by network; here a rule names one address, and blocks"
DNS64 = "we make no addresses up (RFC 6147)"

DIFFERS = {
    "dns64_respip_bypass": DNS64,
    "respip_bogus_rewrite": "signatures of rewritten answers are validated there",
    "respip_cname_loop_tagged": TAGS,
    "respip_dns64_lookup": DNS64,
    "rpz_axfr": TRIGGERS,
    "rpz_cached_cname": AT_THE_NAME,
    "rpz_clientip": TRIGGERS,
    "rpz_clientip_override": TRIGGERS,
    "rpz_clientip_passthru_cache": TRIGGERS,
    "rpz_clientip_passthru_dns64": TRIGGERS,
    "rpz_cname_handle": AT_THE_NAME,
    "rpz_cname_tag": TAGS,
    "rpz_cname_wild": "an alias out of a list is given as it is; the client follows it",
    "rpz_ixfr": TRIGGERS,
    "rpz_nsdname": TRIGGERS,
    "rpz_nsdname_override": TRIGGERS,
    "rpz_nsip": TRIGGERS,
    "rpz_nsip_override": TRIGGERS,
    "rpz_passthru": OVERRIDES,
    "rpz_passthru_clientip": TRIGGERS,
    "rpz_qname": AT_THE_NAME,
    "rpz_qname_override": OVERRIDES,
    "rpz_qtype_cname": AT_THE_NAME,
    "rpz_respip": TRIGGERS,
    "rpz_respip_override": TRIGGERS,
    "rpz_respip_tcponly": TRIGGERS,
    "rpz_signal_nxdomain_ra": AT_THE_NAME,
    "rpz_val_block": "the server there validates what it fetches",
    "serve_expired_respip_cname": RESPIP,
    "serve_expired_rpz_nx": TRIGGERS,
}
COUNT = 34


def test_every_policy_scenario_holds_or_is_known_not_to() -> None:
    root = vectors("unbound/rpl")
    paths = {path.stem: path for kind in ("rpz", "respip") for path in root.glob(f"*{kind}*.rpl")}
    assert len(paths) == COUNT
    failed = {}
    for name, path in sorted(paths.items()):
        try:
            Player(read_replay(path)).play()
        except Exception as fault:  # what it was decides nothing
            failed[name] = fault
    unknown = {name: fault for name, fault in failed.items() if name not in DIFFERS}
    assert not unknown
    assert failed.keys() == DIFFERS.keys(), "these hold now: take them from the list"
    print(
        f"suite policy-replays: {COUNT - len(failed)} of {COUNT}, {len(failed)} differ on purpose"
    )
