"""Where the API server is, what proves that it is the one, and what proves us.

In a cluster that is five values: two of the environment, and the mounted CA, token and namespace.
Elsewhere a kubeconfig says it, in all its forms, and the official package reads those: it is
imported for that only, since it takes 24 MB and half a second.
"""

import asyncio
import os
import ssl
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from kudurru.domain.errors import Cause, Invalid

MOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")

Credentials = Callable[[], Awaitable[str]]
"""The Authorization header of the next request, "" for none. Raises OSError, ValueError."""


class Access(msgspec.Struct, frozen=True):
    server: str  # scheme, host and port
    tls: ssl.SSLContext | None
    credentials: Credentials
    namespace: str = "default"  # of this pod, or of the kubeconfig's context
    server_name: str = ""  # that the certificate must be for, where it is not the host


def in_cluster(
    *,
    server: str = "",
    mount: Path = MOUNT,
    environment: Mapping[str, str] = os.environ,
) -> Access:
    """Access of a pod. `server` replaces the address that the environment names, for a pod that
    has a better one on its own host. Trusts the mounted CA and no other.

    Raises: Invalid when this is no pod, or one without a service account.
    """
    if not server:
        host = environment.get("KUBERNETES_SERVICE_HOST", "")
        port = environment.get("KUBERNETES_SERVICE_PORT", "")
        if not host or not port:
            raise _invalid("KUBERNETES_SERVICE_HOST and _PORT are not set: this is no pod")
        server = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    token = mount / "token"
    try:
        tls = ssl.create_default_context(cafile=mount / "ca.crt")
        _token(token)
        named = mount / "namespace"
        namespace = named.read_text().strip() if named.exists() else "default"
    except (OSError, ValueError) as error:  # SSLError is an OSError
        raise _invalid(f"the service account in {mount}: {error}") from error

    async def credentials() -> str:
        # Read for every request: tokens live an hour, and the kubelet writes the next one there.
        return f"Bearer {_token(token)}"

    return Access(server, tls, credentials, namespace)


def kubeconfig(path: Path | None = None, *, context: str | None = None) -> Access:
    """Access as kubectl has it. Blocks: plugins that give credentials are programs.

    Raises: Invalid.
    """
    from kubernetes.client import Configuration
    from kubernetes.config import ConfigException, list_kube_config_contexts, load_kube_config

    configuration = Configuration()
    name = None if path is None else str(path)
    try:
        load_kube_config(name, context, configuration)  # type: ignore[no-untyped-call]  # no types
        contexts, active = list_kube_config_contexts(name)  # type: ignore[no-untyped-call]
        tls = _tls_of(configuration)
    except (ConfigException, OSError, ValueError) as error:
        hint = "" if name else "; name its file with KUBECONFIG or kubernetes.kubeconfig"
        raise _invalid(f"kubeconfig {name or '(default)'}: {error}{hint}") from error
    active = next((one for one in contexts if one["name"] == context), active)
    namespace = (active.get("context") or {}).get("namespace") or "default"

    def header() -> str:
        return str(configuration.get_api_key_with_prefix("BearerToken", "authorization") or "")

    async def credentials() -> str:
        return await asyncio.to_thread(header)  # runs the plugin again when its token has expired

    server_name = getattr(configuration, "tls_server_name", None) or ""
    return Access(configuration.host.rstrip("/"), tls, credentials, namespace, server_name)


def _tls_of(configuration: Any) -> ssl.SSLContext | None:
    if configuration.host.startswith("http://"):
        return None
    tls = ssl.create_default_context(cafile=configuration.ssl_ca_cert)
    if not configuration.verify_ssl:
        tls.check_hostname = False
        tls.verify_mode = ssl.CERT_NONE
    if configuration.cert_file:
        tls.load_cert_chain(configuration.cert_file, configuration.key_file)
    return tls


def _token(path: Path) -> str:
    """Raises: OSError; ValueError, also for what would be a second header."""
    token = path.read_text("ascii").strip()
    if not token or not token.isprintable() or " " in token:
        raise ValueError(f"{path} holds no token")
    return token


def _invalid(why: str) -> Invalid:
    return Invalid("access to Kubernetes", [Cause("", why)])
