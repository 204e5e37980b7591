"""What `serve` needs of the settings."""

from datetime import timedelta
from pathlib import Path
from typing import Literal

import msgspec

from kudurru.domain.settings import (
    AclSettings,
    BlockingSettings,
    CacheSettings,
    ExternalDnsSettings,
    FollowSettings,
    KubernetesSettings,
    QuerylogSettings,
    RatelimitSettings,
    ResolverSettings,
    TlsSettings,
    TsigSettings,
    UpstreamSettings,
)
from kudurru.domain.settings import Listener as Configured
from kudurru.entrypoints.checkpoints import CheckpointPolicy
from kudurru.entrypoints.list_options import ListOptions


class ServeOptions(msgspec.Struct, frozen=True, kw_only=True):
    data: Path
    node_name: str = ""  # what hostname.bind answers; empty: nothing
    listeners: tuple[Configured, ...]
    tls: TlsSettings = TlsSettings()
    store: str = ""  # as the setting: where the log is
    http: str = "127.0.0.1:8080"
    api_tls: bool = False
    api_names: tuple[str, ...] = ()
    api_body_bytes: int = 8 << 20
    api_page: bool = True
    external_dns: ExternalDnsSettings = ExternalDnsSettings()
    follow: FollowSettings = FollowSettings()
    adopt: bool = False  # take the log of the leader in place of the one here
    token_lifetime: timedelta = timedelta(days=365)  # the longest
    internal: str = ""  # for other nodes; empty: none
    ops: str = "127.0.0.1:8081"
    metrics: str = "127.0.0.1:9153"
    sockets: int = 1  # 0: as many as the engine makes use of
    freebind: bool = False  # listen at addresses that no interface has too
    engine: Literal["auto", "native", "python"] = "python"
    engine_zones: bool = True
    join_answers: bool = True
    coalesce_s: float = 0.25
    ratelimit: RatelimitSettings = RatelimitSettings()
    blocking: BlockingSettings = BlockingSettings()
    querylog: QuerylogSettings = QuerylogSettings()
    acl: AclSettings = AclSettings()
    upstreams: UpstreamSettings = UpstreamSettings()
    resolver: ResolverSettings = ResolverSettings()
    cache: CacheSettings = CacheSettings()
    lists: ListOptions = ListOptions()
    with_demo: bool = False
    pid_file: Path | None = None
    strict: bool = False
    checkpoints: CheckpointPolicy = CheckpointPolicy()
    trusted_keys: tuple[str, ...] = ()
    snapshot_interval_s: float = 0.0  # 0: only when it stops
    secrets_key: str = ""
    tsig: TsigSettings = TsigSettings()
    kubernetes: KubernetesSettings = KubernetesSettings()
