import json
import re
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck
from hypothesis import given as hypothesis_given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from kudurru.domain.documents import read_documents
from kudurru.domain.errors import Cause, Invalid
from kudurru.domain.notation import SocketAddress, parse_network
from kudurru.domain.settings import KEYS, Listener, Settings
from kudurru.domain.settings_docs import key_schema, settings_reference, settings_schema
from kudurru.domain.settings_layers import (
    Resolved,
    dns_listeners,
    given_by_document,
    given_by_environment,
    given_by_flags,
    resolve,
)

KEYS_BY_MARKS = {
    ("cluster", "hot"): """
        acl.recursion
        ratelimit.enabled ratelimit.ipv4 ratelimit.ipv6 ratelimit.slip ratelimit.exempt
        ratelimit.maxBuckets
        upstreams.groups upstreams.strategy upstreams.timeout upstreams.bootstrap
        upstreams.fallback upstreams.conditional upstreams.ca
        resolver.specialNames resolver.browserCanary resolver.designation
        resolver.rebindProtection resolver.privateDomains
        cache.maxEntries cache.maxBytes cache.minTTL cache.maxTTL cache.negativeTTL cache.prefetch
        cache.serveStale.enabled cache.serveStale.maxAge cache.serveStale.answerTTL
        cache.serveStale.clientTimeout cache.persistInterval
        blocking.mode blocking.ttl
        lists.maxBytes lists.concurrency lists.allowPrivate
        querylog.privacyLevel querylog.truncate.ipv4 querylog.truncate.ipv6 querylog.ignore
        querylog.sample querylog.retention querylog.maxBytes
        audit.retention audit.trustedKeys audit.checkpoint.events audit.checkpoint.interval
        audit.checkpoint.publish
        health.lameduck log.level zones.coalesce
    """,
    ("cluster", "restart"): """
        cache.persistMaxAge lists.startup
        blocking.allowDegraded blocking.refreshInterval querylog.enabled querylog.sink
        auth.tokens.maxLifetime log.format tsig.allowOld tsig.allowTruncated
    """,
    ("node", "hot"): "tls.cert tls.key tls.internal.ca tls.internal.cert tls.internal.key",
    ("node", "restart"): """
        settingsFile store node.name node.dataDir node.secretsKey
        listeners listeners.sockets listeners.freebind listeners.internal
        api.address api.names api.page api.tls api.maxBodyBytes ops.address metrics.address
        dns.engine dns.engineZones dns.joinAnswers
        kubernetes.enabled kubernetes.owner kubernetes.namespaces kubernetes.server
        kubernetes.kubeconfig kubernetes.context kubernetes.clusterID kubernetes.startupTimeout
        kubernetes.dnsEndpoints kubernetes.reach kubernetes.allowMassChange
        kubernetes.lease.duration kubernetes.lease.renew kubernetes.lease.retry snapshots.interval
        externalDNS.listen externalDNS.clients externalDNS.domains externalDNS.namespace
        externalDNS.policy externalDNS.dryRun follow.url follow.token follow.ca follow.peers
        follow.forwardWrites
        externalDNS.allowMassChange
    """,
}

DEFAULTS = {
    "settingsFile": "",
    "node.dataDir": "./kudurru-data",
    "node.secretsKey": "",
    "listeners": [
        {"proto": "udp", "address": "127.0.0.1:5300"},
        {"proto": "tcp", "address": "127.0.0.1:5300"},
    ],
    "listeners.sockets": 0,
    "listeners.freebind": False,
    "listeners.internal": "off",
    "tls.cert": "",
    "api.address": "127.0.0.1:8080",
    "api.tls": False,
    "api.page": True,
    "api.maxBodyBytes": "8 MiB",
    "ops.address": "127.0.0.1:8081",
    "metrics.address": "127.0.0.1:9153",
    "acl.recursion": "private",
    "ratelimit.enabled": True,
    "ratelimit.ipv4": {"32": 600, "24": 6000},
    "ratelimit.ipv6": {"128": 600, "64": 6000, "56": 12000},
    "ratelimit.slip": 50,
    "ratelimit.exempt": ["127.0.0.0/8", "::1/128"],
    "ratelimit.maxBuckets": 65536,
    "upstreams.groups": {},
    "upstreams.strategy": "parallel",
    "upstreams.timeout": "2s",
    "cache.maxEntries": 100000,
    "cache.maxBytes": "64 MiB",
    "cache.minTTL": "0s",
    "cache.maxTTL": "1d",
    "cache.negativeTTL": "30m",
    "cache.prefetch": True,
    "cache.serveStale.maxAge": "12h",
    "cache.serveStale.answerTTL": "30s",
    "cache.serveStale.clientTimeout": "1800ms",
    "cache.persistInterval": "10m",
    "cache.persistMaxAge": "1d",
    "blocking.mode": "zeroip",
    "blocking.ttl": "30s",
    "blocking.refreshInterval": "1d",
    "lists.maxBytes": "64 MiB",
    "lists.concurrency": 4,
    "lists.startup": "fast",
    "querylog.enabled": True,
    "querylog.sink": "sqlite",
    "querylog.privacyLevel": 0,
    "querylog.sample": 1,
    "querylog.truncate.ipv4": 24,
    "querylog.truncate.ipv6": 56,
    "querylog.retention": "30d",
    "querylog.maxBytes": "1 GiB",
    "audit.retention": "400d",
    "audit.checkpoint.events": 1000,
    "audit.checkpoint.interval": "10s",
    "auth.tokens.maxLifetime": "365d",
    "health.lameduck": "5s",
    "log.level": "info",
    "log.format": "text",
    "tsig.allowOld": False,
    "tsig.allowTruncated": False,
    "kubernetes.enabled": False,
    "kubernetes.startupTimeout": "15s",
    "kubernetes.lease.duration": "15s",
    "kubernetes.lease.renew": "10s",
    "kubernetes.lease.retry": "2s",
    "zones.coalesce": "250ms",
}


def resolved(*texts: str, what: str = "node.yaml") -> Resolved:
    faults: list[Cause] = []
    given = []
    for text in texts:
        for document in read_documents(text.encode(), what=what):
            given += given_by_document(document, "node file", faults)
    return resolve(given, faults)


def faults_of(text: str) -> list[str]:
    with pytest.raises(Invalid) as caught:
        resolved(text)
    return [str(cause) for cause in caught.value.causes]


def test_scope_and_restart_of_every_key_are_as_promised() -> None:
    """A key that becomes hot needs a subscriber that applies it: change both together."""
    found: dict[tuple[str, str], set[str]] = {}
    for path, key in KEYS.items():
        marks = (key.marks.scope, "restart" if key.marks.restart else "hot")
        found.setdefault(marks, set()).add(path)
    assert found == {marks: set(paths.split()) for marks, paths in KEYS_BY_MARKS.items()}
    assert [path for path, key in KEYS.items() if key.marks.host_only] == [
        "settingsFile",
        "store",
        "follow.url",
        "kubernetes.kubeconfig",
    ]


def test_the_defaults_are_as_promised() -> None:
    found = resolved()
    assert {path: found.shown(path) for path in DEFAULTS} == DEFAULTS
    assert {path: str(origins[0]) for path, origins in found.origins.items()} == dict.fromkeys(
        KEYS, "default"
    )


def test_without_any_layer_the_settings_are_those_of_the_structs() -> None:
    assert resolved().settings == Settings()


def test_values_become_types_that_carry_their_units() -> None:
    settings = resolved(
        """
        node: {name: alpha, dataDir: /var/lib/kudurru}
        listeners:
          - {proto: udp, address: "[::]:53", proxyProtocol: [10.0.0.0/8]}
        listeners.sockets: 2
        listeners.internal: off
        tls: {cert: file:/etc/tls/c.pem, key: /etc/tls/k.pem}
        api: {address: 0.0.0.0:80, maxBodyBytes: 1 MiB}
        cache: {maxTTL: 1h30m, maxBytes: 4096}
        acl: {recursion: [192.0.2.0/24]}
        upstreams:
          groups: {default: [tls://dns.example, 192.0.2.1]}
          conditional: {lan.example: [192.168.1.1]}
        """
    ).settings
    assert settings.node.name == "alpha"
    assert settings.listeners.all == (
        Listener(
            proto="udp",
            address=SocketAddress("::", 53),
            proxy_protocol=(parse_network("10.0.0.0/8"),),
        ),
    )
    assert (settings.listeners.sockets, settings.listeners.internal) == (2, None)
    assert (settings.tls.cert, settings.tls.key) == ("/etc/tls/c.pem", "/etc/tls/k.pem")
    assert settings.api.address == SocketAddress("0.0.0.0", 80)
    assert settings.api.max_body_bytes == 1 << 20
    assert settings.cache.max_ttl == timedelta(minutes=90)
    assert settings.cache.max_bytes == 4096
    assert settings.acl.recursion == (parse_network("192.0.2.0/24"),)
    assert settings.upstreams.groups == {"default": ("tls://dns.example", "192.0.2.1")}
    assert settings.upstreams.conditional == {"lan.example": ("192.168.1.1",)}


def test_maps_are_merged_entry_by_entry_and_0_switches_a_level_off() -> None:
    found = resolved("ratelimit: {ipv4: {32: 0, 28: 900}}", "ratelimit.ipv4.28: 1000")
    assert found.values["ratelimit.ipv4"] == {32: 0, 28: 1000, 24: 6000}
    assert [str(origin) for origin in found.origins["ratelimit.ipv4"]] == [
        "default",
        "node file node.yaml:1",
        "node file node.yaml:1",
    ]


def test_lists_are_replaced() -> None:
    found = resolved("ratelimit: {exempt: [10.0.0.0/8]}", "ratelimit: {exempt: []}")
    assert found.settings.ratelimit.exempt == ()


def test_nested_and_flat_keys_are_the_same() -> None:
    nested = resolved("cache: {serveStale: {maxAge: 1h}, maxEntries: 5}")
    flat = resolved("cache.serveStale.maxAge: 1h\ncache.maxEntries: 5")
    mixed = resolved("cache: {serveStale.maxAge: 1h}\ncache.maxEntries: 5")
    assert nested.settings == flat.settings == mixed.settings


def test_a_section_whose_keys_are_commented_out_is_empty() -> None:
    assert resolved("cache:\nlog:\n").settings == Settings()


PAIR = "tls: {cert: file:/c, key: file:/k}"

FAULTS = {
    "unknown key": (
        "cache: {maxEntrys: 5}",
        "no key cache.maxEntrys; did you mean cache.maxEntries?",
    ),
    "other case": ("cache: {maxentries: 5}", "did you mean cache.maxEntries?"),
    "other style": ("cache: {max_entries: 5}", "did you mean cache.maxEntries?"),
    "without section": ("maxEntries: 5", "did you mean cache.maxEntries?"),
    "unknown section": ("cahce: {maxEntries: 5}", "there is no key cahce; did you mean cache?"),
    "entry of a map": (
        "upstreams: {default: 192.0.2.1}",
        "no key upstreams.default; did you mean upstreams.groups.default?",
    ),
    "like a key beside a map": ("upstreams: {fallbak: []}", "did you mean upstreams.fallback?"),
    "address with a slip": (
        "upstreams: {fallback: ['192.0.2.256']}",
        "192.0.2.256 is neither an IP address nor a host name",
    ),
    "address with a slip and a port": (
        "upstreams: {fallback: ['tls://192.0.2:853']}",
        "192.0.2 is neither an IP address nor a host name",
    ),
    "far away": ("qqqqqqq: 5", "there is no key qqqqqqq; `kudurru config show` lists all"),
    "no section": (
        "cache: 5",
        "cache: keys are wanted here, as in `maxEntries: 5`, not the number 5",
    ),
    "no document": ("[a]", "node.yaml:1: keys are wanted here"),
    "twice": (
        "cache: {maxEntries: 5}\ncache.maxEntries: 6",
        "node.yaml:2: cache.maxEntries: given twice",
    ),
    "nothing": (
        "log: {level: }",
        "log.level: one of debug, info, warning, error is wanted, not nothing",
    ),
    "boolean for text": (
        "node: {name: no}",
        'text is wanted, not false; without quotes no is a boolean: write "no"',
    ),
    "number for text": (
        "node: {name: 5}",
        'text is wanted, not the number 5; without quotes 5 is a number: write "5"',
    ),
    "text for number": ('cache: {maxEntries: "5"}', "a number is wanted, not the text '5'"),
    "boolean for number": ("cache: {maxEntries: yes}", "a number is wanted, not true"),
    "text for boolean": ('cache: {prefetch: "yes"}', "true or false is wanted, not the text 'yes'"),
    "number for duration": (
        "cache: {maxTTL: 30}",
        "a duration such as 30s is wanted, not the number 30",
    ),
    "bad duration": ("cache: {maxTTL: 30 s}", "'30 s' is no duration; write it as 30s"),
    "bad size": ("cache: {maxBytes: 64 MB}", "'64 MB' is no size; write it as 64 MiB"),
    "list for size": ("cache: {maxBytes: []}", "a size such as 64 MiB is wanted, not a list"),
    "below": ("lists: {concurrency: 0}", "0 is below 1, the least"),
    "above": ("ratelimit: {slip: 101}", "101 is above 100, the most"),
    "duration below": ("blocking: {refreshInterval: 1s}", "1s is below 1m, the least"),
    "size below": ("lists: {maxBytes: 1 B}", "1 B is below 1 KiB, the least"),
    "map for list": ("ratelimit: {exempt: {}}", "a list is wanted, not a map"),
    "list for map": ("upstreams: {groups: []}", "a map is wanted, not a list"),
    "item": (
        "ratelimit:\n  exempt:\n  - ::1\n  - 10.0.0.1/8",
        "node.yaml:4: ratelimit.exempt[1]: '10.0.0.1/8' has bits beyond its prefix",
    ),
    "level": ("ratelimit: {ipv4: {33: 1}}", "ratelimit.ipv4.33: 33 is above 32"),
    "level name": ("ratelimit: {ipv4: {a: 1}}", "the name of this entry is a prefix length"),
    "level value": ("ratelimit: {ipv4: {32: -1}}", "a number from 0 is wanted"),
    "choice": ("log: {level: loud}", "one of debug, info, warning, error is wanted, not 'loud'"),
    "word or list": (
        "acl: {recursion: some}",
        "private, all or a list is wanted, not the text 'some'",
    ),
    "address": ("api: {address: 8080}", "an address such as 127.0.0.1:5300 is wanted"),
    "off": ("api: {address: off}", "an address such as 127.0.0.1:5300 is wanted, not false"),
    "on": ("listeners.internal: on", "an address such as 127.0.0.1:5300 is wanted, not true"),
    "listener": ("listeners: [udp]", "listeners[0]: a map is wanted, not the text 'udp'"),
    "listener field": (
        "listeners: [{proto: udp, address: 1.1.1.1:53, x: 1}]",
        "listeners[0].x: no such field; there are proto, address",
    ),
    "listener lacks": ("listeners: [{proto: udp}]", "listeners[0]: address is missing"),
    "domain": ("querylog: {ignore: [a..b]}", "querylog.ignore[0]: 'a..b' has an empty label"),
    "upstream": ("upstreams: {fallback: ['tls:// x']}", "is no upstream"),
    "secret": ('tls: {key: "-----BEGIN PRIVATE KEY-----"}', "write file:/path"),
    "ttl order": (
        "cache: {minTTL: 2d}",
        "node.yaml:1: cache.minTTL: cache.minTTL is above cache.maxTTL",
    ),
    "lease order": (
        "kubernetes: {lease: {retry: 20s}}",
        "kubernetes.lease.retry: renew must be above retry",
    ),
    "lease slack": (
        "kubernetes: {lease: {duration: 13s}}",
        "kubernetes.lease.duration: renew must be above retry, and duration 2s above both",
    ),
    "half a pair": ("tls: {key: /k}", "tls.key: tls.cert and tls.key come together"),
    "proxy header over quic": (
        f"{PAIR}\nlisteners: [{{proto: quic, address: 0.0.0.0:853, proxyProtocol: [10.0.0.0/8]}}]",
        "listeners[0].proxyProtocol: quic takes no PROXY header: leave it out",
    ),
    "forwarded over tls": (
        f"{PAIR}\nlisteners: [{{proto: tls, address: 0.0.0.0:853, trustedProxies: [10.0.0.0/8]}}]",
        "listeners[0].trustedProxies: tls has no X-Forwarded-For: ",
    ),
    "no certificate": ("listeners: [{proto: tls, address: 0.0.0.0:853}]", "tls wants tls.cert"),
    "taken": (
        "listeners:\n" + "- {proto: tcp, address: 0.0.0.0:1}\n" * 2,
        "listeners[1].address: another listener has 0.0.0.0:1 over tcp: ",
    ),
    "internal": (
        "listeners.internal: 0.0.0.0:7000",
        "tls.internal.ca, .cert and .key come together",
    ),
}


@pytest.mark.parametrize("case", FAULTS)
def test_a_fault_says_what_is_wrong_and_what_to_do(case: str) -> None:
    text, message = FAULTS[case]
    (fault,) = faults_of(text)
    assert message in fault
    assert fault.startswith("node.yaml:")


def test_every_fault_is_reported_at_once() -> None:
    assert len(faults_of("a: 1\ncache: {maxEntries: x, maxTTL: 5}\nlog: {level: loud}")) == 4


def test_a_value_that_a_later_layer_covers_is_checked_too() -> None:
    with pytest.raises(Invalid, match=r"node\.yaml:1: log\.level"):
        resolved("log: {level: loud}", "log: {level: info}")


def test_port_0_may_be_asked_for_twice() -> None:
    listeners = "[{proto: udp, address: 127.0.0.1:0}, {proto: udp, address: 127.0.0.1:0}]"
    assert len(resolved(f"listeners: {listeners}").settings.listeners.all) == 2


def by_environment(environ: dict[str, str]) -> Resolved:
    faults: list[Cause] = []
    return resolve(given_by_environment(environ, faults), faults)


ENVIRONMENT = [
    ("KUDURRU__CACHE__MAXENTRIES", "5", "cache.maxEntries", 5),
    ("kudurru__cache__maxEntries", "5", "cache.maxEntries", 5),
    ("KUDURRU__CACHE__SERVESTALE__ENABLED", "no", "cache.serveStale.enabled", False),
    ("KUDURRU__NODE__NAME", "5", "node.name", "5"),
    ("KUDURRU__LOG__LEVEL", "debug", "log.level", "debug"),
    ("KUDURRU__CACHE__MAXTTL", "1h", "cache.maxTTL", "1h"),
    ("KUDURRU__CACHE__MAXBYTES", "1024", "cache.maxBytes", "1 KiB"),
    ("KUDURRU__ACL__RECURSION", "all", "acl.recursion", "all"),
    ("KUDURRU__ACL__RECURSION", "10.0.0.0/8, ::1", "acl.recursion", ["10.0.0.0/8", "::1/128"]),
    ("KUDURRU__RATELIMIT__EXEMPT", "", "ratelimit.exempt", []),
    ("KUDURRU__RATELIMIT__EXEMPT", "[10.0.0.0/8]", "ratelimit.exempt", ["10.0.0.0/8"]),
    ("KUDURRU__RATELIMIT__IPV4__32", "1", "ratelimit.ipv4", {"32": 1, "24": 6000}),
    ("KUDURRU__RATELIMIT__IPV4", "{24: 0}", "ratelimit.ipv4", {"32": 600, "24": 0}),
    ("KUDURRU__UPSTREAMS__GROUPS__A", "1.1.1.1,::1", "upstreams.groups", {"a": ["1.1.1.1", "::1"]}),
    ("KUDURRU__UPSTREAMS__FALLBACK", "tls://a", "upstreams.fallback", ["tls://a"]),
    ("KUDURRU__LISTENERS", "[]", "listeners", []),
    ("KUDURRU__LISTENERS__SOCKETS", "4", "listeners.sockets", 4),
    ("KUDURRU__LISTENERS__INTERNAL", "off", "listeners.internal", "off"),
    ("KUDURRU_DATA", "/data", "node.dataDir", "/data"),
    ("KUDURRU_SETTINGS_FILE", "/s.yaml", "settingsFile", "/s.yaml"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "path", "value"), ENVIRONMENT)
def test_the_environment_sets_keys(name: str, text: str, path: str, value: object) -> None:
    found = by_environment({name: text})
    assert found.shown(path) == value
    assert str(found.origins[path][-1]) == f"environment {name}"
    assert found.locked_by(path) == name


def test_variables_with_one_underscore_are_not_settings() -> None:
    names = ["KUDURRU_SERVER", "KUDURRU_TOKEN", "KUDURRU_HEADLESS_SERVICE", "KUDURRU_SERVICE_HOST",
             "KUDURRU_PORT_53_UDP_ADDR", "KUDURRU", "PATH"]  # fmt: skip
    found = by_environment(dict.fromkeys(names, "x"))
    assert found.settings == Settings()
    assert found.locked_by("log.level") is None
    assert by_environment({"KUDURRU_DATA": "", "KUDURRU_SETTINGS_FILE": ""}).settings == Settings()


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"KUDURRU__CACHE__MAXENTRYS": "5"},
         "MAXENTRYS: there is no key CACHE.MAXENTRYS; did you mean cache.maxEntries?"),
        ({"KUDURRU__CACHE__MAXENTRIES": "many"}, "MAXENTRIES: cache.maxEntries: a number is"),
        ({"KUDURRU__CACHE__MAXENTRIES": ""}, "a number is wanted, not nothing"),
        ({"KUDURRU__CACHE__MAXENTRIES": "&x 1"}, "anchors and aliases are not read"),
        ({"KUDURRU__LISTENERS": "[{"}, "not YAML"),
        ({"KUDURRU__LOG__LEVEL": "info", "kudurru__log__level": "debug"},
         "set by KUDURRU__LOG__LEVEL too"),
        ({"KUDURRU_DATA": "/a", "KUDURRU__NODE__DATADIR": "/b"}, "set by KUDURRU_DATA too"),
    ],
)  # fmt: skip
def test_a_fault_of_the_environment_names_the_variable(
    environ: dict[str, str], message: str
) -> None:
    with pytest.raises(Invalid) as caught:
        by_environment(environ)
    assert message in str(caught.value)


def test_flags_set_keys() -> None:
    faults: list[Cause] = []
    flags: dict[str, tuple[str, Any]] = {
        "listeners": ("--dns", dns_listeners(["127.0.0.1:0"])),
        "api.address": ("--http", "127.0.0.1:0"),
    }
    found = resolve(given_by_flags(flags, faults), faults)
    assert found.shown("listeners") == [
        {"proto": "udp", "address": "127.0.0.1:0"},
        {"proto": "tcp", "address": "127.0.0.1:0"},
    ]
    assert str(found.origins["api.address"][-1]) == "command line --http"
    assert found.locked_by("api.address") == "--http"
    with pytest.raises(Invalid, match=r"--http: api\.address: 'x' is no address"):
        resolve(given_by_flags({"api.address": ("--http", "x")}, faults), faults)


def test_what_is_shown_can_be_read_again() -> None:
    found = resolved("listeners: [{proto: udp, address: '[::1]:0'}]\ncache: {maxTTL: 90m}")
    written = json.dumps({path: found.shown(path) for path in KEYS})
    assert resolved(written, what="x.json").settings == found.settings


json_like = st.recursive(
    st.none() | st.booleans() | st.integers(-10, 10**6) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=6,
)


def test_no_value_raises_anything_but_invalid() -> None:
    @hypothesis_settings(suppress_health_check=[HealthCheck.too_slow])  # on a busy machine
    @hypothesis_given(st.sampled_from(sorted(KEYS)), json_like)
    def check(path: str, value: object) -> None:
        try:
            found = resolved(json.dumps({path: value}), what="x.json")
        except Invalid:
            return
        assert isinstance(found.settings, Settings)

    check()


def test_no_variable_raises_anything_but_invalid() -> None:
    names = st.sampled_from([f"KUDURRU__{path.upper().replace('.', '__')}" for path in KEYS])

    @hypothesis_given(st.dictionaries(names, st.text(max_size=12), max_size=4))
    def check(environ: dict[str, str]) -> None:
        try:
            found = by_environment(environ)
        except Invalid:
            return
        assert isinstance(found.settings, Settings)

    check()


def test_the_schema_knows_every_key_nested_and_flat() -> None:
    schema = settings_schema()
    for path, key in KEYS.items():
        found = schema["properties"].get(path)
        if found and "$ref" in found:
            steps = found["$ref"].removeprefix("#/").split("/")
            found = schema
            for step in steps:
                found = found[int(step)] if isinstance(found, list) else found[step]
        elif path == "listeners":
            found = found["anyOf"][0]
        assert found == key_schema(key)
    json.dumps(schema)


def test_the_schema_agrees_with_the_defaults() -> None:
    for key in KEYS.values():
        schema = key_schema(key)
        assert _accepts(schema, schema["default"]), key.path


def _accepts(schema: dict[str, Any], value: Any) -> bool:
    """As much of JSON Schema as the settings use."""
    if "anyOf" in schema:
        return any(_accepts(option, value) for option in schema["anyOf"])
    if "enum" in schema:
        return value in schema["enum"]
    kinds = {"string": str, "boolean": bool, "integer": int, "array": list, "object": dict}
    if not isinstance(value, kinds[schema["type"]]):
        return False
    if isinstance(value, str):
        return value == "" or re.search(schema.get("pattern", ""), value) is not None
    if isinstance(value, list):
        return all(_accepts(schema["items"], item) for item in value)
    if isinstance(value, dict) and "properties" in schema:
        return all(_accepts(schema["properties"][name], item) for name, item in value.items())
    return True


def test_the_reference_page_has_every_key() -> None:
    page = settings_reference()
    assert [path for path in KEYS if f"| `{path}` |" not in page] == []
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    assert len(rows) == len(KEYS)
    assert all(len(re.findall(r"(?<!\\)\|", row)) == 7 for row in rows)
