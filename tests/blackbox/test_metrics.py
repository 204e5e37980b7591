"""The metrics of a running server: what their labels may be."""

import urllib.request
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from kudurru.adapters.dns import engine_native
from kudurru.domain.dns import record_types
from tests.absent import needs_engine
from tests.blackbox.program import Serving, kudurru, serving, wait_until

Labels = tuple[tuple[str, str], ...]


def scraped(server: Serving) -> dict[tuple[str, Labels], float]:
    with urllib.request.urlopen(f"http://{server.addresses['metrics']}/metrics") as answer:
        families = list(text_string_to_metric_families(answer.read().decode()))
    return {
        (sample.name.removeprefix("kudurru_"), tuple(sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


def test_questions_and_answers_are_shown_by_listener_type_and_source(tmp_path: Path) -> None:
    python = {"KUDURRU__DNS__ENGINE": "python"}  # the native one answers at once, or repeats
    with serving(tmp_path / "data", "--demo", env=python) as server:
        listener = server.addresses["dns"]
        for name, rtype in (("www", "TXT"), ("www", "TXT"), ("www", "AAAA"), ("none", "TXT")):
            server.ask(f"{name}.demo.example", rtype)
        server.ask("www.demo.example", "TYPE4711")
        server.ask("www.elsewhere.example", "MX", tcp=True)
        seen = scraped(server)
        requests = {
            (dict(labels)["proto"], dict(labels)["qtype"]): value
            for (name, labels), value in seen.items()
            if name == "dns_requests_total" and value and dict(labels)["qtype"] != "A"
        }  # the node asks itself for addresses of the health name
        assert requests == {
            ("udp", "TXT"): 3, ("udp", "AAAA"): 1, ("udp", "other"): 1, ("tcp", "MX"): 1,
        }  # fmt: skip
        responses = {
            (dict(labels)["rcode"], dict(labels)["source"]): value
            for (name, labels), value in seen.items()
            if name == "dns_responses_total"
            and value
            and dict(labels)["listener"] == listener
            and dict(labels)["source"] != "server"
        }
        assert responses == {
            ("NOERROR", "authoritative"): 3,
            ("NOERROR", "memo"): 1,
            ("NXDOMAIN", "authoritative"): 1,
            ("REFUSED", "refused"): 1,
        }
        key = ("dns_request_duration_seconds_count", (("source", "authoritative"),))
        assert seen[key] == 4
        wait_until(lambda: scraped(server)[("log_append_duration_seconds_count", ())] > 0)


@needs_engine
def test_without_engine_zones_the_threads_repeat_and_answer_nothing_else(tmp_path: Path) -> None:
    env = {"KUDURRU__DNS__ENGINE": "native", "KUDURRU__DNS__ENGINEZONES": "false"}
    with serving(tmp_path / "data", "--demo", env=env) as server:
        for _ in range(3):
            server.ask("www.demo.example", "TXT")
        seen = scraped(server)
        assert ("dns_engine_names", ()) not in seen
        repeated = sum(
            value
            for (name, labels), value in seen.items()
            if name == "dns_responses_total" and dict(labels)["source"] == "memo"
        )
        assert repeated == 2


@needs_engine
def test_what_the_threads_answer_from_zones_is_counted_as_the_rest_is(tmp_path: Path) -> None:
    with serving(tmp_path / "data", "--demo", env={"KUDURRU__DNS__ENGINE": "native"}) as server:
        wait_until(lambda: scraped(server)["dns_engine_zones", (("state", "answered"),)] == 1)
        for i in range(20):
            server.ask(f"none{i}.demo.example", "TXT")
            server.ask("www.demo.example", "TXT")
        seen = scraped(server)
        answers = {
            (dict(labels)["rcode"], dict(labels)["source"]): value
            for (name, labels), value in seen.items()
            if name == "dns_responses_total" and value and dict(labels)["source"] != "server"
        }
        assert answers == {("NOERROR", "authoritative"): 20, ("NXDOMAIN", "authoritative"): 20}
        asked = sum(
            value
            for (name, labels), value in seen.items()
            if name == "dns_requests_total" and dict(labels)["qtype"] == "TXT"
        )
        assert asked == 40
        assert ("dns_request_duration_seconds_count", (("source", "authoritative"),)) not in seen


BOUNDED = {
    "family": {"ipv4", "ipv6"},
    "proto": {"udp", "tcp"},
    "qtype": {record_types.type_to_text(n) for n in range(512)} | {"other", "none"},
    "source": {
        *("server", "authoritative", "refused", "memo", "cache", "blocked", "rewritten"),
        *("local", "ratelimit", "early", "control", "transfer", "stale", "forwarded"),
    },
    "zone": {"demo.example."},
    "upstream": set(),
    "policy": set(),
    "list": set(),
}  # fmt: skip
"""Values that labels may have on the server below; others are words of our own."""


def test_what_clients_ask_for_is_in_no_label(tmp_path: Path) -> None:
    with serving(tmp_path / "data", "--demo") as server:
        for i in range(300):
            server.ask(f"secret{i}.example", f"TYPE{60_000 + i}")
        seen = scraped(server)
        for name, labels in seen:
            for label, value in labels:
                assert "secret" not in value
                assert "TYPE6" not in value
                if label in BOUNDED:
                    assert value in BOUNDED[label], (name, label)
        assert len(seen) < 500


def test_the_engine_that_is_named_on_the_command_line_answers(tmp_path: Path) -> None:
    def held(server: Serving) -> float:
        """Zones that threads in C answer from."""
        shown = scraped(server).items()
        return sum(value for (name, _), value in shown if name == "dns_engine_zones")

    with serving(tmp_path / "python", "--demo", "--engine", "python") as server:
        assert held(server) == 0
    if engine_native.is_available():
        with serving(tmp_path / "native", "--demo", "--engine", "native") as server:
            wait_until(lambda: held(server))
    else:
        done = kudurru("serve", "--data", tmp_path / "native", "--engine", "native")
        assert done.code == 1
        assert "was not built" in done.err
