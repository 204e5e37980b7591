"""What an answer costs in the pipeline, and what a name costs in a zone. Prints, asserts nothing.

python -m tests.bench.answers
"""

import gc
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import dns.edns
import dns.message

from kudurru.adapters.clock import SystemClock
from kudurru.domain.dns import names
from kudurru.domain.dns.cookies import Cookies
from kudurru.domain.dns.images import RRset
from kudurru.domain.dns.messages import COOKIE
from kudurru.domain.dns.record_types import MX, NS, A
from kudurru.domain.dns.soa import Soa
from kudurru.domain.dns.zone_set import ZoneSet
from kudurru.domain.dns.zone_tree import Zone
from kudurru.projections.pipeline.ingress import Identity
from kudurru.projections.pipeline.pipeline import Pipeline

NAMES = 100_000
CLIENT = "192.0.2.1"
APEX = names.from_text("home.example.")
ROUNDS = 5
COOKIES = Cookies(bytes(32))


def main() -> None:
    if sys.argv[1:] == ["memory"]:
        return print_memory()
    started = time.process_time()
    zone = build_zone(NAMES)
    zone.stamp(1)
    build_s = time.process_time() - started
    print(f"zone of {NAMES:,} names with one A each: {build_s / NAMES * 1e6:.1f} µs per name")
    pipeline = pipeline_of(zone)
    for title, packets in question_sets().items():
        print(f"{title:28} {cost_us(pipeline, packets):6.2f} µs per answer")
    print("dnspython, parse and render  ", end="")
    print(f"{dnspython_us(next(iter(question_sets().values()))):6.0f} µs per answer")
    command = [sys.executable, "-m", "tests.bench.answers", "memory"]
    subprocess.run(command, check=True, cwd=Path(__file__).parents[2])
    return None


def build_zone(count: int) -> Zone:
    soa = Soa(
        mname=names.from_text("ns1.home.example."),
        rname=names.from_text("admin.home.example."),
        refresh=3600,
        retry=600,
        expire=86400,
        minimum=300,
        ttl=300,
    )
    zone = Zone(APEX, soa)
    zone.replace(APEX, [RRset(NS, 300, (names.from_text("ns1.home.example."),))])
    for i in range(count):
        zone.replace(under(f"host{i}"), [RRset(A, 300, (i.to_bytes(4, "big"),))])
    return zone


def under(relative: str) -> names.Name:
    return names.from_text(relative, APEX)


def pipeline_of(zone: Zone) -> Pipeline:
    zone.replace(under("mail"), [RRset(MX, 300, (b"\0\1" + under("host1"),))])
    zone.replace(under("alias"), [RRset(5, 300, (under("host2"),))])
    zone.replace(under("*.wild"), [RRset(A, 300, (bytes(4),))])

    def raise_again(error: Exception) -> None:
        raise error

    return Pipeline(
        ZoneSet([zone]),
        lambda: True,
        clock=SystemClock(),
        identity=Identity(),
        is_lameduck=lambda: False,
        on_exception=raise_again,
        cookies=COOKIES,
    )


def question_sets() -> dict[str, list[bytes]]:
    rng = random.Random(1)
    hosts = [f"host{rng.randrange(NAMES)}" for _ in range(5_000)]

    def asked(relatives: list[str], rtype: str, **options) -> list[bytes]:
        return [
            dns.message.make_query(f"{relative}.home.example.", rtype, **options).to_wire()
            for relative in relatives
        ]

    now_s = SystemClock().now_us() // 1_000_000
    verdict = COOKIES.judge(b"12345678", CLIENT, now_s)
    ours = verdict.cookie if verdict is not None else b""
    sets = {
        "plain A": asked(hosts, "A", use_edns=False),
        "A with EDNS": asked(hosts, "A", use_edns=0),
        "A with a first cookie": asked(hosts[:500], "A", use_edns=0, options=[cookie(b"12345678")]),
        "A with a cookie of ours": asked(hosts, "A", use_edns=0, options=[cookie(ours)]),
        "no data": asked(hosts, "AAAA", use_edns=0),
        "no such name": asked([f"no{host}" for host in hosts], "A", use_edns=0),
        "wildcard": asked([f"{host}.wild" for host in hosts], "A", use_edns=0),
        "CNAME": asked(["alias"] * 1000, "A", use_edns=0),
        "MX with address": asked(["mail"] * 1000, "MX", use_edns=0),
    }
    mixed = [packet for packets in sets.values() for packet in packets[:700]]
    rng.shuffle(mixed)
    return sets | {"mixed": mixed}


def cookie(data: bytes) -> dns.edns.Option:
    return dns.edns.GenericOption(COOKIE, data)


def cost_us(pipeline: Pipeline, packets: list[bytes]) -> float:
    def answer_all() -> None:
        for packet in packets:
            pipeline.handle(packet, CLIENT, "udp")

    return best_of_us(answer_all) / len(packets)


def dnspython_us(packets: list[bytes]) -> float:
    def parse_and_render() -> None:
        for packet in packets[:200]:
            query = dns.message.from_wire(packet)
            response = dns.message.make_response(query)
            response.answer.append(
                dns.rrset.from_text(query.question[0].name, 300, 1, 1, "1.2.3.4")
            )
            response.to_wire()

    return best_of_us(parse_and_render) / 200


def best_of_us(work: Callable[[], None]) -> float:
    times = []
    for _ in range(ROUNDS):
        started = time.process_time_ns()
        work()
        times.append((time.process_time_ns() - started) / 1000)
    return statistics.median(times)


def print_memory() -> None:
    gc.collect()
    before = resident()
    zone = build_zone(NAMES)
    zone.stamp(1)
    gc.collect()
    started = time.process_time()
    gc.collect()
    collection_ms = (time.process_time() - started) * 1000
    used = (resident() - before) / NAMES
    print(f"{used:.0f} bytes resident per name, full collection {collection_ms:.0f} ms")


def resident() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("no VmRSS in /proc/self/status")


if __name__ == "__main__":
    main()
