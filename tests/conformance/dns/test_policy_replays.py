"""unbound's scenarios of policy zones and response addresses, played through the whole pipeline: a
policy for each zone, or what an operator writes here for the same. Each holds, or is named here
with the reason and the checks that are otherwise; the other checks of those hold too. What policy
zones say of names alone is compared in `test_rpz_vectors.py` as well."""

from collections.abc import Callable, Sequence

from kudurru.domain.filtering.decision import Filters
from kudurru.domain.lists.memory import MemoryMatcher
from kudurru.domain.lists.rules import Context
from kudurru.domain.objects import Key
from tests.filtering import groups, lists, policy
from tests.replays import LocalData, Player, Replay, read_replay
from tests.vectors import vectors

SERVERS = "it triggers on name servers, which only who iterates knows"
NETWORKS = "it triggers on networks of answers; here a rule names one address"
AT_THE_NAME = (
    "a target that is blocked or rewritten is answered at the name that was asked for, without the "
    "aliases before it"
)
OVERRIDES = "an action for a whole zone whatever its rules say; here the rule or the policy says it"
CLIENTS = "it triggers on clients; here client groups do, see `clients`"
TRANSFERS = "the zone is transferred; lists are fetched"
RESPIP = "response-ip replaces addresses by network; here a rule names one address, and blocks"
DNS64 = "we make no addresses up (RFC 6147)"
RA = "a missing RA does not tell that a name is blocked; the extended error does"

DIFFERS: dict[str, tuple[str, Sequence[int]]] = {
    "dns64_respip_bypass": (DNS64, (11,)),
    "respip_bogus_rewrite": ("signatures of rewritten answers are validated there", (10,)),
    "respip_cname_loop_tagged": (RESPIP, (2,)),
    "respip_dns64_lookup": (DNS64, (30, 50, 70, 90, 130, 190, 210)),
    "rpz_axfr": (TRANSFERS, (51, 53, 55, 57, 59, 61, 63)),
    "rpz_cached_cname": (AT_THE_NAME, (40, 70)),
    "rpz_clientip_override": (CLIENTS, (11, 21, 41, 71)),
    "rpz_clientip_passthru_cache": (CLIENTS, (6,)),
    "rpz_clientip_passthru_dns64": (CLIENTS, (6, 11)),
    "rpz_cname_handle": (
        AT_THE_NAME + "; " + SERVERS,
        (51, 61, 71, 81, 91, 101, 111, 121, 131, 171, 181, 191, 201, 211, 221),
    ),
    "rpz_cname_wild": (AT_THE_NAME, (20, 40)),
    "rpz_ixfr": (TRANSFERS, (17, 19, 21, 23, 51, 53, 55, 57, 59, 61, 63)),
    "rpz_nsdname": (SERVERS, (11, 21, 31, 41)),
    "rpz_nsdname_override": (SERVERS, (11, 21, 51, 61)),
    "rpz_nsip": (SERVERS, (11, 21, 31, 41)),
    "rpz_nsip_override": (SERVERS, (11, 21, 51, 61)),
    "rpz_passthru": (OVERRIDES, (11, 21)),
    "rpz_passthru_clientip": (OVERRIDES, (11,)),
    "rpz_qname": (AT_THE_NAME, (101,)),
    "rpz_qname_override": (OVERRIDES, (11, 21, 31, 41, 51)),
    "rpz_qtype_cname": (SERVERS, (21,)),
    "rpz_respip": (NETWORKS, (2, 4, 6, 8, 10, 12, 14, 16, 34)),
    "rpz_respip_override": (OVERRIDES, (2, 4, 6, 8, 10)),
    "rpz_respip_tcponly": (NETWORKS, (2, 11, 14)),
    "rpz_signal_nxdomain_ra": (RA + "; " + SERVERS, (21, 31, 41, 51)),
    "rpz_val_block": ("the server there validates what it fetches", (41, 51, 61)),
    "serve_expired_respip_cname": (RESPIP, (11, 40)),
    "serve_expired_rpz_nx": (NETWORKS, (11, 40)),
}
"""Why a scenario does not hold whole, and the checks that are otherwise."""


def tags(replay: Replay) -> LocalData:
    """The zone is for clients with a tag: a policy for a client group."""
    matcher = MemoryMatcher()
    zone = [("inline", replay.policy_zones[0])]
    matcher.put(Key("BlockList/default/zone"), zone, Context(format="rpz"))
    return LocalData(
        Filters(
            [policy("tagged", clientGroupRefs=["internal"], blockListRefs=["zone"])],
            groups(internal=[{"cidr": "192.0.0.0/8"}]),
            matcher=matcher,
        )
    )


def clients(_: Replay) -> LocalData:
    """Triggers on networks of clients: groups and their policies."""
    networks = {f"n{i}": [{"cidr": f"192.0.{i}.0/24"}] for i in (0, 1, 2, 4, 5)}
    every = ["/./"]
    given = [
        {"name": "a.a", "type": "A", "targets": ["127.0.0.1"]},
        {"name": "a.a", "type": "TXT", "targets": ["42"]},
    ]
    return LocalData(
        Filters(
            [
                policy("no-name", clientGroupRefs=["n0"], deny=every, blockMode="nxdomain"),
                policy("no-data", clientGroupRefs=["n1"], deny=every, blockMode="nodata"),
                policy("drop", clientGroupRefs=["n2"], blockListRefs=["drop"]),
                policy("tcp", clientGroupRefs=["n4"], blockListRefs=["tcp"]),
                policy("data", clientGroupRefs=["n5"], rewrites=given),
            ],
            groups(**networks),
            matcher=lists(drop=["* CNAME rpz-drop."], tcp=["* CNAME rpz-tcp-only."]),
        ),
        dropped=(90,),
        # The SOA of the policy zone tells about itself there.
        other=[(step, "ADDITIONAL") for step in (61, 63, 65)],
    )


WRITTEN: dict[str, Callable[[Replay], LocalData]] = {
    "rpz_cname_tag": tags,
    "rpz_clientip": clients,
}
"""Scenarios whose settings are written in our words."""

COUNT = 34


def test_every_policy_scenario_holds_or_is_known_not_to() -> None:
    root = vectors("unbound/rpl")
    paths = {path.stem: path for kind in ("rpz", "respip") for path in root.glob(f"*{kind}*.rpl")}
    assert len(paths) == COUNT
    failed = {}
    for name, path in sorted(paths.items()):
        replay = read_replay(path)
        local = WRITTEN[name](replay) if name in WRITTEN else None
        try:
            Player(replay, local=local).play()
        except Exception as fault:  # what it was decides nothing
            failed[name] = fault
    unknown = {name: fault for name, fault in failed.items() if name not in DIFFERS}
    assert not unknown
    assert failed.keys() == DIFFERS.keys(), "these hold now: take them from the list"
    print(
        f"suite policy-replays: {COUNT - len(failed)} of {COUNT}, {len(failed)} differ on purpose"
    )


def test_the_other_checks_of_scenarios_that_differ_hold() -> None:
    root = vectors("unbound/rpl")
    held = total = 0
    for name, (_, otherwise) in DIFFERS.items():
        checks = Player(read_replay(root / f"{name}.rpl")).play_but_for(otherwise)
        total += checks
        held += checks - len(otherwise)
    print(f"suite policy-replay-steps: {held} of {total}, {total - held} differ on purpose")
