"""Settings: the table of every key.

The structs below are the table. A field is a key; its annotation holds the type and what the
operator must know (scope, restart, bounds, one line of text); its default is the default. Reading
(`settings_values`), merging (`settings_layers`), JSON Schema and the reference page
(`settings_docs`) are made from it, so a key is added in one place. `KEYS` has them as rows.

Keys are dotted paths: `cache.maxEntries`.

Scope: a *node* key belongs to one node, a *cluster* key means the same on all of them, and only
those may stand in the settings file. A *restart* key is read when the process starts; the others
change while it runs.
"""

from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Annotated, Any, Literal, NewType, get_args, get_origin, get_type_hints

import msgspec

from kudurru.domain.notation import Network, SocketAddress, parse_network

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30

Bytes = NewType("Bytes", int)
"""A number of bytes, written `64 MiB`."""
SecretFile = NewType("SecretFile", str)
"""Path of a file that holds a key or certificate, written `file:/path`; "" for none. The content
never stands in settings."""
Domain = NewType("Domain", str)
"""A domain name, as written."""
Upstream = NewType("Upstream", str)
"""A resolver to forward to: `tls://dns.example`, `192.0.2.1`, `https://dns.example/dns-query`."""

Scope = Literal["node", "cluster"]


class Marks(msgspec.Struct, frozen=True, kw_only=True):
    """What the table says of a key beside its type and default."""

    doc: str
    scope: Scope
    restart: bool
    host_only: bool = False  # never changed through the API
    low: int | None = (
        None  # bounds of a number, of a duration in ms, of the names in a map of numbers
    )
    high: int | None = None


def node(doc: str, *, hot: bool = False, **more: Any) -> Marks:
    return Marks(doc=doc, scope="node", restart=not hot, **more)


def cluster(doc: str, *, restart: bool = False, **more: Any) -> Marks:
    return Marks(doc=doc, scope="cluster", restart=restart, **more)


_ACRONYMS = {"ttl": "TTL", "id": "ID", "dns": "DNS"}


def camel(name: str) -> str:
    """Key of a field: `max_ttl` is `maxTTL`."""
    first, *rest = name.split("_")
    return first + "".join(_ACRONYMS.get(part, part.capitalize()) for part in rest)


class Section(msgspec.Struct, frozen=True, kw_only=True, rename=camel):
    """A group of keys."""


# The table.


class NodeSettings(Section, frozen=True):
    name: Annotated[str, node("Name of this node in logs and events; empty: the host name")] = ""
    data_dir: Annotated[str, node("Directory of the log and everything derived from it")] = (
        "./kudurru-data"
    )
    secrets_key: Annotated[
        SecretFile,
        node(
            "Key that seals secrets beside the log, 64 hexadecimal digits, the same on all nodes "
            "that share it; empty: keys/node.key in the data directory, made when first needed"
        ),
    ] = SecretFile("")


class TsigSettings(Section, frozen=True):
    allow_old: Annotated[
        bool, cluster("Let keys of HMAC-MD5 and HMAC-SHA1 work, for old peers", restart=True)
    ] = False
    allow_truncated: Annotated[
        bool, cluster("Accept MACs that are cut short (RFC 8945 section 5.2.2.1)", restart=True)
    ] = False


ENCRYPTED = frozenset({"tls", "https", "h3", "quic"})
"""Protocols of listeners that want a certificate."""


class Listener(msgspec.Struct, frozen=True, kw_only=True, rename=camel):
    """A socket that answers DNS."""

    proto: Literal["udp", "tcp", "tls", "https", "h3", "quic"]
    address: SocketAddress
    proxy_protocol: tuple[Network, ...] = ()  # peers whose PROXY v2 header is believed
    trusted_proxies: tuple[Network, ...] = ()  # peers whose X-Forwarded-For is believed


LOOPBACK = "127.0.0.1"


class ListenerSettings(Section, frozen=True):
    all: Annotated[tuple[Listener, ...], node("What answers DNS, and where")] = (
        Listener(proto="udp", address=SocketAddress(LOOPBACK, 5300)),
        Listener(proto="tcp", address=SocketAddress(LOOPBACK, 5300)),
    )
    """The key `listeners` itself."""
    sockets: Annotated[
        int, node("UDP sockets per address; 0: as many as CPUs may be used", low=0, high=1024)
    ] = 0
    freebind: Annotated[
        bool,
        node("Listen also at addresses that this machine does not have, or not yet (Linux)"),
    ] = False
    internal: Annotated[
        SocketAddress | None, node("Listener for other nodes, mutual TLS; off: none")
    ] = None


class DnsSettings(Section, frozen=True):
    engine: Annotated[
        Literal["auto", "native", "python"],
        node(
            "What answers repeated queries over UDP: threads in C (native, where it was built) or "
            "the event loop (python); auto is native where that is there"
        ),
    ] = "auto"
    engine_zones: Annotated[
        bool,
        node("Whether the native engine answers from the zones by itself, not repeats only"),
    ] = True
    join_answers: Annotated[
        bool,
        node(
            "Whether the native engine hands answers of one length to one client to the system as "
            "one, which cuts them again (UDP_SEGMENT); off where a network card spoils them"
        ),
    ] = True


class InternalTlsSettings(Section, frozen=True):
    ca: Annotated[SecretFile, node("CA that signs the nodes' certificates", hot=True)] = SecretFile(
        ""
    )
    cert: Annotated[SecretFile, node("This node's certificate", hot=True)] = SecretFile("")
    key: Annotated[SecretFile, node("Its private key", hot=True)] = SecretFile("")


class TlsSettings(Section, frozen=True):
    cert: Annotated[
        SecretFile, node("Certificate chain of the encrypted listeners; reread on change", hot=True)
    ] = SecretFile("")
    key: Annotated[SecretFile, node("Its private key; reread on change", hot=True)] = SecretFile("")
    internal: InternalTlsSettings = InternalTlsSettings()


class ApiSettings(Section, frozen=True):
    address: Annotated[SocketAddress, node("Where the API listens")] = SocketAddress(LOOPBACK, 8080)
    tls: Annotated[
        bool, node("Serve the API over HTTPS only, with the certificate of tls.cert and tls.key")
    ] = False
    max_body_bytes: Annotated[Bytes, node("Largest request body", low=KIB)] = Bytes(8 * MIB)
    names: Annotated[
        tuple[Domain, ...],
        node("Host names by which the API may be asked, beside its addresses and node.name"),
    ] = ()
    page: Annotated[bool, node("Serve the web page, at /ui/ of the API's address")] = True


class ExternalDnsSettings(Section, frozen=True):
    listen: Annotated[
        SocketAddress | None,
        node("Where external-dns' webhook provider listens, such as 127.0.0.1:8888; off: none"),
    ] = None
    clients: Annotated[
        tuple[Network, ...],
        node("Who may ask it: it has no passwords, and whoever asks may change records"),
    ] = (parse_network("127.0.0.0/8"), parse_network("::1/128"))
    domains: Annotated[
        tuple[Domain, ...], node("Domains that external-dns may manage; none: all primary zones")
    ] = ()
    namespace: Annotated[str, node("Namespace of the record sets that it makes")] = "default"
    policy: Annotated[
        Literal["upsert-only", "sync"],
        node("sync: deletions are carried out; upsert-only: they are ignored"),
    ] = "sync"
    dry_run: Annotated[bool, node("Check and log what external-dns wants, and change nothing")] = (
        False
    )
    allow_mass_change: Annotated[
        bool, node("Let it change or remove a large part of a zone at once")
    ] = False


class FollowSettings(Section, frozen=True):
    url: Annotated[
        str,
        node(
            "API of the node whose log is copied here, such as https://ns1.example:8080; empty: "
            "none, or the one that the data directory follows already",
            host_only=True,
        ),
    ] = ""
    token: Annotated[
        SecretFile, node("File with a token of role follower, for it and for the peers")
    ] = SecretFile("")
    ca: Annotated[
        SecretFile, node("CAs that their certificates may be from; none: the system's")
    ] = SecretFile("")
    peers: Annotated[
        tuple[str, ...],
        node("APIs of the nodes of this log that may be promoted: where one was, this one refuses"),
    ] = ()
    forward_writes: Annotated[
        bool,
        node("Whether the API of a node that follows passes changes on to the leader, or refuses"),
    ] = True


class OpsSettings(Section, frozen=True):
    address: Annotated[SocketAddress, node("Where health checks and lameduck listen")] = (
        SocketAddress(LOOPBACK, 8081)
    )


class MetricsSettings(Section, frozen=True):
    address: Annotated[SocketAddress, node("Where /metrics listens")] = SocketAddress(
        LOOPBACK, 9153
    )


class AclSettings(Section, frozen=True):
    recursion: Annotated[
        Literal["private", "all"] | tuple[Network, ...],
        cluster(
            "Who may resolve names that are not ours: private networks, all, or these networks"
        ),
    ] = "private"


class RatelimitSettings(Section, frozen=True):
    """Levels are queries per minute and prefix length; 0 switches a level off."""

    enabled: Annotated[bool, cluster("Limit queries over UDP")] = True
    ipv4: Annotated[
        Mapping[int, int],
        cluster("Queries a minute per IPv4 prefix length; 0: off", low=0, high=32),
    ] = msgspec.field(default_factory=lambda: {32: 600, 24: 6000})
    ipv6: Annotated[
        Mapping[int, int],
        cluster("Queries a minute per IPv6 prefix length; 0: off", low=0, high=128),
    ] = msgspec.field(default_factory=lambda: {128: 600, 64: 6000, 56: 12000})
    slip: Annotated[
        int, cluster("Percent of limited queries that get TC=1 instead of nothing", low=0, high=100)
    ] = 50
    exempt: Annotated[tuple[Network, ...], cluster("Networks that are never limited")] = (
        parse_network("127.0.0.0/8"),
        parse_network("::1/128"),
    )
    max_buckets: Annotated[int, cluster("Prefixes remembered at once", low=64)] = 65536


class UpstreamSettings(Section, frozen=True):
    groups: Annotated[
        Mapping[str, tuple[Upstream, ...]],
        cluster("Upstreams by group; the group default answers what nothing else does"),
    ] = msgspec.field(default_factory=dict)
    strategy: Annotated[
        Literal["parallel", "fastest", "random", "strict"], cluster("How one of a group is chosen")
    ] = "parallel"
    timeout: Annotated[timedelta, cluster("Longest wait for one upstream", low=1)] = timedelta(
        seconds=2
    )
    bootstrap: Annotated[
        tuple[Upstream, ...], cluster("Resolvers for the names of upstreams, as addresses")
    ] = ()
    fallback: Annotated[tuple[Upstream, ...], cluster("Asked when a whole group fails")] = ()
    conditional: Annotated[
        Mapping[Domain, tuple[Upstream, ...]], cluster("Upstreams by domain, closest one first")
    ] = msgspec.field(default_factory=dict)
    ca: Annotated[
        SecretFile, cluster("CAs beside the system's that certificates of upstreams may be from")
    ] = SecretFile("")


class ResolverSettings(Section, frozen=True):
    special_names: Annotated[
        bool, cluster("Answer names that no upstream should see (RFC 6303, 6761) here")
    ] = True
    browser_canary: Annotated[
        bool, cluster("Tell browsers, by use-application-dns.net, not to bypass this resolver")
    ] = True
    designation: Annotated[bool, cluster("Answer resolver.arpa (RFC 9462) here, with nothing")] = (
        True
    )
    rebind_protection: Annotated[
        bool, cluster("Refuse answers of upstreams that lead to private addresses")
    ] = True
    private_domains: Annotated[
        tuple[Domain, ...], cluster("Domains whose names may have private addresses all the same")
    ] = ()


class ServeStaleSettings(Section, frozen=True):
    enabled: Annotated[bool, cluster("Answer from expired entries when upstreams fail")] = True
    max_age: Annotated[timedelta, cluster("How long after expiry")] = timedelta(hours=12)
    answer_ttl: Annotated[timedelta, cluster("TTL of such answers")] = timedelta(seconds=30)
    client_timeout: Annotated[timedelta, cluster("Wait for upstreams before one is given")] = (
        timedelta(milliseconds=1800)
    )


class CacheSettings(Section, frozen=True):
    max_entries: Annotated[int, cluster("Answers kept; 0: no cache", low=0)] = 100_000
    max_bytes: Annotated[Bytes, cluster("Memory for answers", low=0)] = Bytes(64 * MIB)
    min_ttl: Annotated[timedelta, cluster("Shorter TTLs are raised to it")] = timedelta(0)
    max_ttl: Annotated[timedelta, cluster("Longer TTLs are cut to it")] = timedelta(hours=24)
    negative_ttl: Annotated[timedelta, cluster("Longest life of a negative answer")] = timedelta(
        minutes=30
    )
    prefetch: Annotated[bool, cluster("Refresh popular answers before they expire")] = True
    serve_stale: ServeStaleSettings = ServeStaleSettings()
    persist_interval: Annotated[timedelta, cluster("Time between dumps to disk; 0s: never")] = (
        timedelta(minutes=10)
    )
    persist_max_age: Annotated[timedelta, cluster("Oldest dump that is loaded", restart=True)] = (
        timedelta(hours=24)
    )


class BlockingSettings(Section, frozen=True):
    mode: Annotated[
        Literal["zeroip", "nxdomain", "nodata", "refused"],
        cluster("Answer for a blocked name where its policy says nothing"),
    ] = "zeroip"
    ttl: Annotated[timedelta, cluster("TTL of such an answer")] = timedelta(seconds=30)
    allow_degraded: Annotated[
        bool, cluster("Serve while lists could not be loaded yet", restart=True)
    ] = True
    refresh_interval: Annotated[
        timedelta,
        cluster("Time between fetches of a list that names none", restart=True, low=60_000),
    ] = timedelta(hours=24)


class ListSettings(Section, frozen=True):
    max_bytes: Annotated[Bytes, cluster("Largest list, decompressed", low=KIB)] = Bytes(64 * MIB)
    concurrency: Annotated[int, cluster("Lists fetched at once", low=1, high=64)] = 4
    startup: Annotated[
        Literal["fast", "blocking", "failOnError"],
        cluster("Serve at once, wait for lists, or stop when one fails", restart=True),
    ] = "fast"
    allow_private: Annotated[bool, cluster("Fetch lists from private addresses too")] = False


class TruncateSettings(Section, frozen=True):
    ipv4: Annotated[int, cluster("Bits of an IPv4 client address kept", low=0, high=32)] = 24
    ipv6: Annotated[int, cluster("Bits of an IPv6 client address kept", low=0, high=128)] = 56


class QuerylogSettings(Section, frozen=True):
    enabled: Annotated[bool, cluster("Log queries", restart=True)] = True
    sink: Annotated[Literal["sqlite"], cluster("Where to", restart=True)] = "sqlite"
    privacy_level: Annotated[
        int,
        cluster("0 keeps all, 1 cuts addresses, 2 has pseudonyms, 3 counts", low=0, high=3),
    ] = 0
    sample: Annotated[
        int, cluster("One query in so many is logged and stands for all", low=1, high=1_000_000)
    ] = 1
    truncate: TruncateSettings = TruncateSettings()
    ignore: Annotated[tuple[Domain, ...], cluster("Domains that are not logged")] = ()
    retention: Annotated[timedelta, cluster("Age at which entries are deleted")] = timedelta(
        days=30
    )
    max_bytes: Annotated[Bytes, cluster("Size at which the oldest are deleted", low=MIB)] = Bytes(
        GIB
    )


class CheckpointSettings(Section, frozen=True):
    events: Annotated[int, cluster("Events between checkpoints", low=1)] = 1000
    interval: Annotated[timedelta, cluster("Longest time between them", low=1)] = timedelta(
        seconds=10
    )
    publish: Annotated[tuple[str, ...], cluster("Files or folders that get each checkpoint")] = ()


class AuditSettings(Section, frozen=True):
    retention: Annotated[timedelta, cluster("Age at which events go, daily; 0: never")] = timedelta(
        days=400
    )
    trusted_keys: Annotated[tuple[str, ...], cluster("Keys that may have signed the log")] = ()
    checkpoint: CheckpointSettings = CheckpointSettings()


class TokenSettings(Section, frozen=True):
    max_lifetime: Annotated[timedelta, cluster("Longest life of a token", restart=True, low=1)] = (
        timedelta(days=365)
    )


class AuthSettings(Section, frozen=True):
    tokens: TokenSettings = TokenSettings()


class HealthSettings(Section, frozen=True):
    lameduck: Annotated[timedelta, cluster("Time of unready answering before a stop")] = timedelta(
        seconds=5
    )


class LogSettings(Section, frozen=True):
    level: Annotated[Literal["debug", "info", "warning", "error"], cluster("Least level shown")] = (
        "info"
    )
    format: Annotated[Literal["text", "json"], cluster("Form of log lines", restart=True)] = "text"


class LeaseSettings(Section, frozen=True):
    duration: Annotated[timedelta, node("Age at which a Lease may be taken over")] = timedelta(
        seconds=15
    )
    renew: Annotated[timedelta, node("Time after which a leader that cannot renew gives up")] = (
        timedelta(seconds=10)
    )
    retry: Annotated[timedelta, node("Time between attempts", low=1)] = timedelta(seconds=2)


class KubernetesSettings(Section, frozen=True):
    enabled: Annotated[bool, node("Work with a Kubernetes cluster")] = False
    owner: Annotated[
        Literal["log", "cluster"], node("Whose objects count where log and cluster differ")
    ] = "log"
    namespaces: Annotated[tuple[str, ...], node("Namespaces to watch; none named: all")] = ()
    server: Annotated[str, node("URL of the API server; empty: as kubectl or the pod finds it")] = (
        ""
    )
    kubeconfig: Annotated[
        str,
        node("File that says how to reach the cluster; empty: as kubectl finds it", host_only=True),
    ] = ""
    context: Annotated[str, node("Context of that file; empty: its current one")] = ""
    cluster_id: Annotated[
        str, node("Uid of kube-system, to know the cluster's log while its API server is away")
    ] = ""
    reach: Annotated[
        Literal["public", "private", "any"],
        node(
            "Where objects of the cluster may have nodes send: to public addresses, to private "
            "ones too, or to any, names too"
        ),
    ] = "public"
    allow_mass_change: Annotated[
        bool, node("Let go what the cluster lacks, also where it is most of what the log has")
    ] = False
    startup_timeout: Annotated[timedelta, node("Longest wait for the first sync")] = timedelta(
        seconds=15
    )
    dns_endpoints: Annotated[
        bool,
        node(
            "Serve what DNSEndpoint objects of external-dns say, within what externalDNS.domains, "
            "policy, dryRun and allowMassChange allow"
        ),
    ] = False
    lease: LeaseSettings = LeaseSettings()


class SnapshotSettings(Section, frozen=True):
    interval: Annotated[
        timedelta,
        node("Time between snapshots of the views, for quick starts; 0s: only when a server stops"),
    ] = timedelta(minutes=15)


class ZoneSettings(Section, frozen=True):
    coalesce: Annotated[timedelta, cluster("Changes within it share one serial")] = timedelta(
        milliseconds=250
    )


class Settings(Section, frozen=True):
    """Every setting of a node, checked."""

    settings_file: Annotated[
        str, node("File of cluster keys, read after this one; empty: none", host_only=True)
    ] = ""
    store: Annotated[
        str,
        node(
            "Where the log is: memory, sqlite (in the data directory), or postgresql://…, which "
            "several nodes may share; empty: where it has been, else sqlite",
            host_only=True,
        ),
    ] = ""
    node: NodeSettings = NodeSettings()
    listeners: ListenerSettings = ListenerSettings()
    dns: DnsSettings = DnsSettings()
    tls: TlsSettings = TlsSettings()
    api: ApiSettings = ApiSettings()
    external_dns: ExternalDnsSettings = ExternalDnsSettings()
    follow: FollowSettings = FollowSettings()
    ops: OpsSettings = OpsSettings()
    metrics: MetricsSettings = MetricsSettings()
    acl: AclSettings = AclSettings()
    ratelimit: RatelimitSettings = RatelimitSettings()
    upstreams: UpstreamSettings = UpstreamSettings()
    resolver: ResolverSettings = ResolverSettings()
    cache: CacheSettings = CacheSettings()
    blocking: BlockingSettings = BlockingSettings()
    lists: ListSettings = ListSettings()
    querylog: QuerylogSettings = QuerylogSettings()
    audit: AuditSettings = AuditSettings()
    auth: AuthSettings = AuthSettings()
    health: HealthSettings = HealthSettings()
    log: LogSettings = LogSettings()
    kubernetes: KubernetesSettings = KubernetesSettings()
    snapshots: SnapshotSettings = SnapshotSettings()
    zones: ZoneSettings = ZoneSettings()
    tsig: TsigSettings = TsigSettings()


# Its rows.


class Key(msgspec.Struct, frozen=True):
    """One row of the table."""

    path: str  # "cache.maxEntries"
    type: Any
    default: Any
    marks: Marks

    @property
    def is_map(self) -> bool:
        return get_origin(self.type) is Mapping


def key_path(prefix: str, field: msgspec.structs.FieldInfo) -> str:
    """Path of a field of the section at `prefix`."""
    if field.name == "all":  # ListenerSettings.all is the key `listeners`
        return prefix
    return f"{prefix}.{field.encode_name}" if prefix else field.encode_name


def _rows(section: type[Section], prefix: str = "") -> Iterator[Key]:
    hints = get_type_hints(section, include_extras=True)
    for field in msgspec.structs.fields(section):
        path = key_path(prefix, field)
        hint = hints[field.name]
        if isinstance(hint, type) and issubclass(hint, Section):
            yield from _rows(hint, path)
        else:
            kind, marks = get_args(hint)
            made = field.default_factory
            default = field.default if made is msgspec.NODEFAULT else made()
            yield Key(path, kind, default, marks)


KEYS: Mapping[str, Key] = {key.path: key for key in _rows(Settings)}
SECTIONS = frozenset(path[:end] for path in KEYS for end, mark in enumerate(path) if mark == ".")
