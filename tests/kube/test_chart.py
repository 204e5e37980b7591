"""The chart: Helm renders it, a real API server accepts what it renders, kudurru the settings."""

import asyncio
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml

from kudurru.adapters.kubernetes.diagnosis import Diagnosis
from kudurru.adapters.kubernetes.rbac import FEATURES, Feature, in_namespaces
from kudurru.adapters.kubernetes.rights import missing_rights, needed
from kudurru.entrypoints.cluster.cluster import HEADLESS_SERVICE
from tests.absent import absent
from tests.blackbox.program import command, kudurru, records, serving, write_json, zone
from tests.kube import helm, manifests
from tests.kube.assets import VERSION, NoAssets
from tests.kube.connections import connected
from tests.kube.server import ApiServer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

CHART = Path(__file__).parents[2] / "deploy/chart/kudurru"
MINIMAL: dict[str, Any] = {
    "replicas": 1,
    "persistence": {"enabled": False},
    "networkPolicy": {"enabled": False},
    "podDisruptionBudget": {"enabled": False},
    "serviceAccount": {"create": False, "name": "default"},
    "rbac": {"create": False},
    "service": {"dns": {"enabled": False}, "http": {"enabled": False}},
    "resources": {},
}
EVERYTHING: dict[str, Any] = {
    "replicas": 3,
    "commonLabels": {"team": "network"},
    "config": {
        "externalDNS": {"namespace": "apps", "policy": "upsert-only"},
        "kubernetes": {"dnsEndpoints": True},
        "upstreams": {"groups": {"default": ["192.0.2.1", "tls://dns.example#ip=192.0.2.2"]}},
        "log": {"format": "json"},
    },
    "zones": {"home": {"zoneName": "home.example"}},
    "blocklists": {"ads": {"sources": [{"url": "https://lists.example/ads.txt"}]}},
    "tls": {"secretName": "dns-tls"},
    "store": {"existingSecret": "database"},
    "kubernetes": {"owner": "log", "namespaces": ["dns", "apps"]},
    "listen": ["[::]:53"],
    "service": {
        "dns": {
            "type": "LoadBalancer",
            "loadBalancerIP": "192.0.2.53",
            "loadBalancerClass": "example.com/lb",
            "annotations": {"example.com/pool": "dns"},
        },
        "http": {"type": "NodePort", "annotations": {"example.com/a": "b"}},
    },
    "externalDNS": {
        "enabled": True,
        "from": [{"podSelector": {"matchLabels": {"app.kubernetes.io/name": "external-dns"}}}],
        "clients": ["192.0.2.0/24", "2001:db8::/64"],
    },
    "persistence": {"storageClassName": "fast", "annotations": {"example.com/a": "b"}},
    "serviceAccount": {"name": "dns", "annotations": {"example.com/a": "b"}},
    "rbac": {
        "features": [
            *("objects", "cluster-id", "events", "leader", "leader-address"),
            *("internal", "reviews", "external-dns"),
        ]
    },
    "networkPolicy": {
        "dnsFrom": [{"ipBlock": {"cidr": "192.0.2.0/24"}}],
        "httpFrom": [{"podSelector": {}}],
        "metricsFrom": [{"namespaceSelector": {}}],
    },
    "serviceMonitor": {"enabled": True, "additionalLabels": {"release": "prometheus"}},
    "prometheusRule": {"enabled": True, "additionalLabels": {"release": "prometheus"}},
    "imagePullSecrets": [{"name": "registry"}],
    "image": {"digest": "sha256:" + "0" * 64},
    "extraArgs": ["--strict"],
    "env": [{"name": "TZ", "value": "Europe/Berlin"}],
    "extraVolumes": [{"name": "more", "emptyDir": {}}],
    "extraVolumeMounts": [{"name": "more", "mountPath": "/more"}],
    "podAnnotations": {"example.com/a": "b"},
    "podLabels": {"example.com/a": "b"},
    "nodeSelector": {"kubernetes.io/os": "linux"},
    "tolerations": [{"key": "dns", "operator": "Exists"}],
    "affinity": {"podAntiAffinity": {}},
    "topologySpreadConstraints": [
        {
            "maxSkew": 1,
            "topologyKey": "topology.kubernetes.io/zone",
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": {"app.kubernetes.io/name": "kudurru"}},
        }
    ],
    "priorityClassName": "system-cluster-critical",
}
FOLLOWERS: dict[str, Any] = {
    "follow": {
        "url": "https://dns-kudurru-0.dns-kudurru-nodes.dns:8080",
        "existingSecret": "follower",
        "tokenKey": "secret",
        "caSecret": "leader-ca",
        "peers": ["https://ns1.example:8080", "https://ns2.example:8080"],
        "forwardWrites": False,
    },
    "tls": {"secretName": "dns-tls"},
}
LEADER: dict[str, Any] = {
    "networkPolicy": {
        "httpFrom": [{"ipBlock": {"cidr": "192.0.2.0/24"}}],
        "followersFrom": [{"podSelector": {"matchLabels": {"example.com/role": "follower"}}}],
    },
    "follow": {"existingSecret": "follower", "peers": ["https://ns2.example:8080"]},
}
VALUES = {
    "default": {}, "minimal": MINIMAL, "everything": EVERYTHING, "followers": FOLLOWERS,
    "leader": LEADER,
}  # fmt: skip
OF_THE_CLUSTER = {"ClusterRole", "ClusterRoleBinding", "DNSZone"}


@pytest.fixture(scope="module")
def program() -> Path:
    try:
        return helm.build()
    except NoAssets as error:
        absent(str(error))


def run(program: Path, *args: str, values: dict[str, Any], folder: Path) -> Any:
    file = folder / "values.yaml"
    file.write_text(yaml.safe_dump(values))
    return subprocess.run(
        [program, *args, "--values", file, "--namespace", "dns", "--kube-version", VERSION],
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def rendered(program: Path, values: dict[str, Any], folder: Path) -> list[dict[str, Any]]:
    done = run(program, "template", "k", str(CHART), values=values, folder=folder)
    assert done.returncode == 0, done.stderr
    return [found for found in yaml.safe_load_all(done.stdout) if found]


@pytest.mark.parametrize("name", VALUES)
def test_helm_finds_no_fault_in_the_chart(program: Path, tmp_path: Path, name: str) -> None:
    done = run(program, "lint", "--strict", str(CHART), values=VALUES[name], folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def prepared(installed: ApiServer) -> ApiServer:
    """With the namespaces of the release, and definitions of the kinds of Prometheus' operator."""
    server = installed
    for name in ("dns", "apps", "elsewhere"):
        assert server.call("POST", "/api/v1/namespaces", {"metadata": {"name": name}})[0] == 201
    for kind in ("ServiceMonitor", "PrometheusRule"):
        plural, group = f"{kind.lower()}s", "monitoring.coreos.com"
        whole = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
        definition = {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {
                "name": f"{plural}.{group}",
                "annotations": {"api-approved.kubernetes.io": "unapproved, of a test"},
            },
            "spec": {
                "group": group,
                "scope": "Namespaced",
                "names": {"kind": kind, "plural": plural},
                "versions": [
                    {
                        "name": "v1",
                        "served": True,
                        "storage": True,
                        "schema": {"openAPIV3Schema": whole},
                    }
                ],
            },
        }
        path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
        code, said = server.call("POST", path, definition)
        assert code == 201, said
    return server


@pytest.mark.parametrize("name", VALUES)
def test_an_api_server_accepts_what_is_rendered(
    program: Path, prepared: ApiServer, tmp_path: Path, name: str
) -> None:
    for manifest in rendered(program, VALUES[name], tmp_path):
        code, said = prepared.call("POST", f"{collection(manifest)}?{DRY}", manifest)
        if code == 404:  # a definition takes a moment until it is served
            code, said = when_served(prepared, manifest)
        assert code == 201, (manifest["kind"], said)
        assert "unknown field" not in str(said.get("message", ""))


DRY = "dryRun=All&fieldValidation=Strict"


def collection(manifest: dict[str, Any]) -> str:
    kind, version = manifest["kind"], manifest["apiVersion"]
    namespace = manifest["metadata"].get("namespace")
    plural = kind.lower()[:-1] + "ies" if kind.endswith("y") else kind.lower() + "s"
    within = "" if kind in OF_THE_CLUSTER else f"/namespaces/{namespace}"
    return f"/{'apis' if '/' in version else 'api'}/{version}{within}/{plural}"


def when_served(server: ApiServer, manifest: dict[str, Any]) -> tuple[int, Any]:
    for _ in range(300):
        code, said = server.call("POST", f"{collection(manifest)}?{DRY}", manifest)
        if code != 404:
            break
    return code, said


def test_the_manifest_for_kubectl_is_what_the_chart_renders(program: Path) -> None:
    made = manifests.rendered(program)
    assert manifests.FILE.read_text() == made, "run `python -m tests.kube.manifests`"


def test_an_api_server_accepts_the_manifest_for_kubectl(prepared: ApiServer) -> None:
    found = list(yaml.safe_load_all(manifests.FILE.read_text()))
    name = found[0]["metadata"]["name"]
    code, said = prepared.call("POST", "/api/v1/namespaces", found[0])
    assert code == 201, said
    for manifest in found[1:]:
        if manifest["kind"] == "CustomResourceDefinition":  # installed by the fixture
            continue
        assert manifest["metadata"].get("namespace", name) == name
        code, said = prepared.call("POST", f"{collection(manifest)}?{DRY}", manifest)
        assert code == 201, (manifest["kind"], said)


@pytest.mark.parametrize("name", VALUES)
def test_the_settings_that_are_rendered_are_valid(program: Path, tmp_path: Path, name: str) -> None:
    manifests = rendered(program, VALUES[name], tmp_path)
    (settings,) = (one for one in manifests if one["kind"] == "ConfigMap")
    folder = tmp_path / "settings"
    folder.mkdir()
    (folder / "kudurru.yaml").write_text(settings["data"]["kudurru.yaml"])
    done = command("config", "validate", "--config", folder)
    assert done.code == 0, done.err


def test_pods_are_as_narrow_as_promised(program: Path, tmp_path: Path) -> None:
    manifests = rendered(program, {}, tmp_path)
    (stateful,) = (one for one in manifests if one["kind"] == "StatefulSet")
    pod = stateful["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["enableServiceLinks"] is False
    assert pod["terminationGracePeriodSeconds"] >= 60  # lameduck, Events and the Lease have room
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "privileged": False,
        "capabilities": {"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]},
    }
    assert container["lifecycle"]["preStop"]["exec"]["command"][:2] == ["kudurru", "lameduck"]
    services = {one["metadata"]["name"] for one in manifests if one["kind"] == "Service"}
    variables = {one["name"]: one.get("value") for one in container["env"]}
    assert variables[HEADLESS_SERVICE].partition(".")[0] == stateful["spec"]["serviceName"]
    assert stateful["spec"]["serviceName"] in services
    assert {"PodDisruptionBudget", "NetworkPolicy"} <= {one["kind"] for one in manifests}
    assert command(*container["args"], "--help").code == 0  # options that there are


WATCHING = {
    "kubernetes": {"namespaces": ["apps"]},
    "rbac": {"features": [feature.name for feature in FEATURES]},
}


@pytest.fixture(scope="module")
def watcher(
    program: Path, prepared: ApiServer, tmp_path_factory: pytest.TempPathFactory
) -> ApiServer:
    """The server, with a token of the account of a release that watches one namespace."""
    for manifest in rendered(program, WATCHING, tmp_path_factory.mktemp("watcher")):
        if manifest["apiVersion"].startswith("rbac.") or manifest["kind"] == "ServiceAccount":
            code, said = prepared.call("POST", collection(manifest), manifest)
            assert code == 201, said
        if manifest["kind"] == "ServiceAccount":
            path = f"{collection(manifest)}/{manifest['metadata']['name']}/token"
            code, made = prepared.call("POST", path, {"spec": {}})
            assert code == 201, made
    return prepared._replace(tokens=prepared.tokens | {"account": made["status"]["token"]})


def test_who_watches_some_namespaces_has_rights_over_objects_in_no_other(
    watcher: ApiServer,
) -> None:
    async def missing(namespace: str, features: Iterable[Feature]) -> set[str]:
        async with connected(watcher) as client:
            found = await missing_rights(client, namespace, features)
            assert found is not None
            return {str(right) for right, _ in found}

    async def main() -> None:
        everywhere = [one for one in FEATURES if not one.is_of_namespace]
        async with asyncio.timeout(60):  # roles take effect some moments after they are written
            while await missing("apps", everywhere) or await missing("dns", INSIDE):
                await asyncio.sleep(0.1)
        for feature in everywhere:
            inside = feature._replace(rules=in_namespaces(feature))
            assert await missing("elsewhere", [feature]) == set(map(str, needed(inside)))
        async with connected(watcher) as client:
            diagnosis = Diagnosis(client, "dns", FEATURES, watched=["apps"])
            await diagnosis.look()
            assert diagnosis.warnings() == []
            diagnosis = Diagnosis(client, "dns", FEATURES, watched=["apps", "elsewhere"])
            await diagnosis.look()
            said = "\n".join(diagnosis.warnings())
            assert "lacks the verb watch on dnsrecordsets.kudurru.io" in said

    asyncio.run(main())


INSIDE = [feature for feature in FEATURES if feature.is_of_namespace]


def test_external_dns_and_nobody_else_reaches_its_listener(program: Path, tmp_path: Path) -> None:
    manifests = rendered(program, EVERYTHING, tmp_path)
    (service,) = (
        one["metadata"]["name"]
        for one in manifests
        if one["kind"] == "Service"
        and any(port["targetPort"] == "webhook" for port in one["spec"]["ports"])
    )
    (settings,) = (one for one in manifests if one["kind"] == "ConfigMap")
    config = yaml.safe_load(settings["data"]["kudurru.yaml"])
    assert config["externalDNS"] == {
        "listen": "0.0.0.0:8888",
        "clients": EVERYTHING["externalDNS"]["clients"],
        "namespace": "apps",
        "policy": "upsert-only",
    }
    assert {service, f"{service}.dns", f"{service}.dns.svc"} <= set(config["api"]["names"])
    (policy,) = (one for one in manifests if one["kind"] == "NetworkPolicy")
    (sources,) = (
        rule["from"]
        for rule in policy["spec"]["ingress"]
        if {"port": "webhook", "protocol": "TCP"} in rule["ports"]
    )
    assert sources == EVERYTHING["externalDNS"]["from"]
    (stateful,) = (one for one in manifests if one["kind"] == "StatefulSet")
    (container,) = stateful["spec"]["template"]["spec"]["containers"]
    ports = {one["name"]: one["containerPort"] for one in container["ports"]}
    assert ports["webhook"] == 8888


def settings_of(manifests: list[dict[str, Any]]) -> Any:
    (found,) = (one for one in manifests if one["kind"] == "ConfigMap")
    return yaml.safe_load(found["data"]["kudurru.yaml"])


def pod_of(manifests: list[dict[str, Any]]) -> Any:
    (found,) = (one for one in manifests if one["kind"] == "StatefulSet")
    return found["spec"]["template"]["spec"]


def test_followers_get_their_token_and_ask_the_cluster_for_nothing(
    program: Path, tmp_path: Path
) -> None:
    made = rendered(program, FOLLOWERS, tmp_path)
    settings, pod = settings_of(made), pod_of(made)
    assert settings["kubernetes"] == {"enabled": False}
    given = FOLLOWERS["follow"]
    assert settings["follow"] == {
        "url": given["url"], "peers": given["peers"], "forwardWrites": False,
        "token": "file:/etc/kudurru-follow/token", "ca": "file:/etc/kudurru-follow-ca/ca.crt",
    }  # fmt: skip
    secrets = {one["name"]: one["secret"] for one in pod["volumes"] if "secret" in one}
    assert secrets["follow"]["secretName"] == "follower"
    assert secrets["follow"]["items"] == [{"key": "secret", "path": "token"}]
    assert secrets["follow-ca"]["secretName"] == "leader-ca"
    mounts = {one["name"]: one["mountPath"] for one in pod["containers"][0]["volumeMounts"]}
    assert mounts["follow"] == "/etc/kudurru-follow"
    assert mounts["follow-ca"] == "/etc/kudurru-follow-ca"
    assert pod["automountServiceAccountToken"] is False
    assert not {"Role", "ClusterRole"} & {one["kind"] for one in made}


def test_followers_reach_each_node_of_a_leading_release_by_its_name(
    program: Path, tmp_path: Path
) -> None:
    made = rendered(program, LEADER, tmp_path)
    settings = settings_of(made)
    assert settings["kubernetes"]["enabled"] is True
    assert settings["follow"]["peers"] == LEADER["follow"]["peers"]
    assert "url" not in settings["follow"]
    (stateful,) = (one for one in made if one["kind"] == "StatefulSet")
    name, service = stateful["metadata"]["name"], stateful["spec"]["serviceName"]
    for number in range(stateful["spec"]["replicas"]):
        node = f"{name}-{number}.{service}.dns"
        assert {node, f"{node}.svc", f"{node}.svc.cluster.local"} <= set(settings["api"]["names"])
    (policy,) = (one for one in made if one["kind"] == "NetworkPolicy")
    http = {"port": "http", "protocol": "TCP"}
    sources = [one["from"] for one in policy["spec"]["ingress"] if http in one["ports"]]
    assert LEADER["networkPolicy"]["followersFrom"] in sources


def test_a_follower_of_the_chart_is_promoted_and_starts_again_as_the_leader(
    program: Path, tmp_path: Path
) -> None:
    token = tmp_path / "token"

    def config(name: str, **follow: Any) -> str:
        """The settings of a release, with the token where this test has it."""
        values = {"replicas": 1, "follow": {"existingSecret": "a", **follow}}
        settings = settings_of(rendered(program, values, tmp_path))
        settings["follow"]["token"] = f"file:{token}"
        folder = tmp_path / name
        folder.mkdir()
        (folder / "kudurru.yaml").write_text(yaml.safe_dump(settings))
        return str(folder)

    def changed(data: Path, address: str) -> int:
        www = records("www", "one.example", ("www.one.example", "A", address))
        objects = write_json(tmp_path / "objects.json", zone("one.example"), www)
        return kudurru("apply", "-f", objects, "--data", data).code

    with serving(tmp_path / "leader") as leader:
        assert changed(tmp_path / "leader", "192.0.2.1") == 0
        done = kudurru("token", "create", "f", "--role", "follower", "--data", tmp_path / "leader")
        token.write_text(done.out)
        follower = tmp_path / "follower"
        following = config("following", url=f"http://{leader.addresses['http']}")
        with serving(follower, "--config", following) as node:
            assert node.texts("www.one.example") == ["192.0.2.1"]
            assert changed(follower, "192.0.2.2") != 0
            leader.stop()
            done = kudurru("promote", "--data", follower, "--reason", "gone", "--force")
            assert done.code == 0, done.err
    with serving(follower, "--config", config("promoted", promoted=True)) as node:
        assert changed(follower, "192.0.2.2") == 0
        assert node.texts("www.one.example") == ["192.0.2.2"]


WEBHOOK: dict[str, Any] = {
    "enabled": True,
    "from": [{"podSelector": {}}],
    "clients": ["192.0.2.0/24"],
}
LOG: dict[str, Any] = {"kubernetes": {"owner": "log"}}
FOLLOW: dict[str, Any] = {"url": "https://ns1.example:8080", "existingSecret": "a"}
OF_THE_LEADER = "followers have objects and changes from their leader"
LISTS = {"ads": {"sources": [{"url": "https://lists.example/ads.txt"}]}}

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "replicas": ({"replicas": 0}, "'/replicas': minimum: got 0, want 1"),
    "no such value": ({"replicaCount": 2}, "additional properties 'replicaCount' not allowed"),
    "port": ({"service": {"dns": {"port": 70_000}}}, "'/service/dns/port': maximum"),
    "duration": ({"lameduck": "ten"}, "'/lameduck': 'ten' does not match pattern"),
    "owner": ({"kubernetes": {"owner": "both"}}, "'/kubernetes/owner': value must be one of"),
    "feature": ({"rbac": {"features": ["all"]}}, "'/rbac/features/0': value must be one of"),
    "listen": ({"listen": ["53"]}, "'/listen/0': '53' does not match pattern"),
    "digest": ({"image": {"digest": "latest"}}, "'/image/digest': 'latest' does not match"),
    "zones": ({"zones": [{"zoneName": "home.example"}]}, "'/zones': got array, want object"),
    "shared store": (
        {"store": {"existingSecret": "a"}},
        "'/kubernetes/owner': value must be 'log'",
    ),
    "size": ({"persistence": {"size": "big"}}, "'/persistence/size': 'big' does not match"),
    "nodes with a log each that own it": (LOG, "kubernetes.owner: with log, 2 nodes need one log"),
    "log that is kept nowhere": (
        LOG | {"replicas": 1, "persistence": {"enabled": False}},
        "persistence.enabled: kubernetes.owner is log, and the log is nowhere else",
    ),
    "keys that are kept nowhere": (
        LOG | {"store": {"existingSecret": "a"}, "persistence": {"enabled": False}},
        "and the keys that sign it and seal its secrets are nowhere else",
    ),
    "owner in settings": (
        {"config": {"kubernetes": {"owner": "log"}}},
        "config.kubernetes.owner: it would override a value of the chart",
    ),
    "owner in settings, flat": (
        {"config": {"kubernetes.owner": "log"}},
        "config.kubernetes.owner: it would override a value of the chart",
    ),
    "namespaces in settings": (
        {"config": {"kubernetes": {"namespaces": []}}},
        "config.kubernetes.namespaces: it would override a value of the chart",
    ),
    "store in settings": (
        {"config": {"store": "memory"}},
        "config.store: it would override a value of the chart: set store.existingSecret instead",
    ),
    "store in the environment": (
        {"env": [{"name": "KUDURRU__STORE", "value": "memory"}]},
        "env: KUDURRU__STORE would override a value of the chart",
    ),
    "variable twice": (
        {"env": [{"name": "POD_NAME", "value": "a"}]},
        "env: the chart sets POD_NAME: leave it out",
    ),
    "owner as an argument": (
        {"extraArgs": ["--kubernetes=log"]},
        "extraArgs: --kubernetes=log would override a value of the chart",
    ),
    "lists that nobody watches": (
        {"kubernetes": {"namespaces": ["apps"]}, "blocklists": LISTS},
        "blocklists: they would be in namespace dns, which is not watched",
    ),
    "namespace without a name": (
        {"kubernetes": {"namespaces": [""]}},
        "'/kubernetes/namespaces/0': '' does not match pattern",
    ),
    "account without a name": (
        {"serviceAccount": {"create": False}},
        "serviceAccount.name: serviceAccount.create is false: name the account that is there",
    ),
    "too little time": (
        {"lameduck": "1m30s", "config": {"health": {"lameduck": "2500ms"}}},
        "(1m30s), config.health.lameduck (2500ms) and ten seconds to end: make it 103 or more",
    ),
    "listen: octet": ({"listen": ["192.0.2.256:53"]}, "192.0.2.256 is no address"),
    "listen: octets": ({"listen": ["192.0.2:53"]}, "192.0.2 is no address"),
    "listen: groups": ({"listen": ["[1:2:3]:53"]}, "[1:2:3] is no address"),
    "listen: two gaps": ({"listen": ["[1::2::3]:53"]}, "[1::2::3] is no address"),
    "listen: long group": ({"listen": ["[::12345]:53"]}, "[::12345] is no address"),
    "listen: port": ({"listen": ["[::]:65536"]}, "listen: [::]:65536: a port is from 1 to 65535"),
    "listen: loopback": ({"listen": ["[::1]:53"]}, "nobody outside of the pod would reach it"),
    "listen: taken": ({"listen": ["0.0.0.0:8080"]}, "port 8080 is for the API: take another"),
    "listen: encrypted": (
        {"listen": ["0.0.0.0:853"], "tls": {"secretName": "a"}},
        "port 853 is for DNS over TLS: take another",
    ),
    "listen: twice encrypted": (
        {"listen": ["0.0.0.0:53", "0.0.0.0:54"], "tls": {"secretName": "a"}},
        "listen: 0.0.0.0:54: 0.0.0.0 is there twice",
    ),
    "API for everybody": (
        {"service": {"http": {"type": "LoadBalancer"}}},
        "service.http.type: with LoadBalancer, tokens would be sent unencrypted, from anywhere",
    ),
    "API for those that nobody keeps out": (
        {
            "service": {"http": {"type": "LoadBalancer"}},
            "networkPolicy": {"enabled": False, "httpFrom": [{"podSelector": {}}]},
        },
        "service.http.type: with LoadBalancer, tokens would be sent unencrypted",
    ),
    "webhook for everybody": (
        {"externalDNS": WEBHOOK | {"from": []}},
        "externalDNS.from: whoever reaches the listener may change records",
    ),
    "webhook without a policy": (
        {"externalDNS": WEBHOOK, "networkPolicy": {"enabled": False}},
        "externalDNS.from: whoever reaches the listener may change records",
    ),
    "webhook for nobody": (
        {"externalDNS": WEBHOOK | {"clients": []}},
        "externalDNS.clients: name the networks of external-dns' pods",
    ),
    "webhook in settings": (
        {"externalDNS": WEBHOOK, "config": {"externalDNS.listen": "127.0.0.1:1"}},
        "config.externalDNS.listen: it would override a value of the chart",
    ),
    "webhook where nobody watches": (
        {"externalDNS": WEBHOOK, "kubernetes": {"namespaces": ["apps"]}},
        "config.externalDNS.namespace: record sets would be in namespace default",
    ),
    "webhook at a taken port": (
        {"externalDNS": WEBHOOK | {"port": 8081}},
        "externalDNS.port: 8081 is for health checks: take another",
    ),
    "webhook at the port of DNS": (
        {"externalDNS": WEBHOOK | {"port": 53}},
        "listen: 0.0.0.0:53: port 53 is for external-dns: take another",
    ),
    "webhook for no network": (
        {"externalDNS": WEBHOOK | {"clients": ["pods"]}},
        "'/externalDNS/clients/0': 'pods' does not match pattern",
    ),
    "leader without a scheme": (
        {"follow": FOLLOW | {"url": "ns1.example:8080"}},
        "'/follow/url': 'ns1.example:8080' does not match pattern",
    ),
    "leader with a password": (
        {"follow": FOLLOW | {"url": "https://me:word@ns1.example:8080"}},
        "follow.url: an API is named as https://HOST:PORT, without user, path and query",
    ),
    "follower without a token": (
        {"follow": FOLLOW | {"existingSecret": ""}},
        "follow.existingSecret: other nodes are asked with a token of role follower",
    ),
    "token for nobody": (
        {"follow": {"existingSecret": "a"}},
        "follow.url: name the leader, or the peers",
    ),
    "follower with zones": (
        {"follow": FOLLOW, "zones": {"home": {"zoneName": "home.example"}}},
        f"zones: {OF_THE_LEADER}",
    ),
    "follower with lists": (
        {"follow": FOLLOW, "blocklists": LISTS},
        f"blocklists: {OF_THE_LEADER}",
    ),
    "follower that watches": (
        {"follow": FOLLOW, "kubernetes": {"namespaces": ["apps"]}},
        f"kubernetes.namespaces: {OF_THE_LEADER}",
    ),
    "follower that owns": (
        {"follow": FOLLOW, **LOG},
        f"kubernetes.owner: log: {OF_THE_LEADER}",
    ),
    "follower that external-dns asks": (
        {"follow": FOLLOW, "externalDNS": WEBHOOK},
        f"externalDNS.enabled: {OF_THE_LEADER}",
    ),
    "follower on a database": (
        {"follow": FOLLOW, "store": {"existingSecret": "b"}, **LOG},
        "store.existingSecret: each follower keeps a copy of its own",
    ),
    "several that were promoted": (
        {"follow": FOLLOW | {"promoted": True}},
        "follow.promoted: one node leads, and 2 would go on apart: make replicas 1",
    ),
    "promoted, and kept nowhere": (
        {
            "follow": FOLLOW | {"promoted": True},
            "replicas": 1,
            "persistence": {"enabled": False},
        },
        "persistence.enabled: the log of a node that was promoted is nowhere else",
    ),
    "leader in settings": (
        {"follow": FOLLOW, "config": {"follow": {"url": "https://ns2.example:8080"}}},
        "config.follow.url: it would override a value of the chart: set follow.url instead",
    ),
    "leader in the environment": (
        {"env": [{"name": "KUDURRU__FOLLOW__URL", "value": "https://ns2.example:8080"}]},
        "env: KUDURRU__FOLLOW__URL would override a value of the chart",
    ),
    "leader as an argument": (
        {"extraArgs": ["--follow=https://ns2.example:8080"]},
        "extraArgs: --follow=https://ns2.example:8080 would override a value of the chart",
    ),
    "password in a URL": (
        {"config": {"upstreams": {"groups": {"a": ["https://me:word@dns.example/"]}}}},
        "config.upstreams.groups.a: a secret would be readable in a ConfigMap",
    ),
    "password by its name": (
        {"config": {"follow": {"token": "kudurru_word"}}},
        "config.follow.token: a secret would be readable in a ConfigMap",
    ),
    "password that is no setting": (
        {"config": {"api": {"token": "kudurru_word"}}},
        "'/config/api': additional properties 'token' not allowed",
    ),
    "private key": (
        {"config": {"tls": {"key": "-----BEGIN PRIVATE KEY-----\nword"}}},
        "config.tls.key: a secret would be readable in a ConfigMap",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_wrong_value_is_refused_with_its_place(program: Path, tmp_path: Path, name: str) -> None:
    values, message = REFUSED[name]
    done = run(program, "template", "k", str(CHART), values=values, folder=tmp_path)
    assert done.returncode != 0
    assert message in done.stderr
    assert "word" not in done.stderr


def test_all_that_is_wrong_together_is_said_at_once(program: Path, tmp_path: Path) -> None:
    values = LOG | {"config": {"store": "memory"}, "listen": ["0.0.0.0:8081"], "lameduck": "10m"}
    done = run(program, "template", "k", str(CHART), values=values, folder=tmp_path)
    said = [line.partition(":")[0] for line in done.stderr.splitlines() if ": " in line]
    assert said[1:] == [
        "kubernetes.owner",
        "config.store",
        "terminationGracePeriodSeconds",
        "listen",
    ]


TAKEN: dict[str, dict[str, Any]] = {
    "one node with its log": LOG | {"replicas": 1},
    "nodes on one database": LOG | {"store": {"existingSecret": "123"}},
    "API over HTTPS": {
        "service": {"http": {"type": "LoadBalancer"}},
        "tls": {"secretName": "456"},
        "config": {"api.tls": True},
    },
    "API for some": {
        "service": {"http": {"type": "LoadBalancer"}},
        "networkPolicy": {"httpFrom": [{"ipBlock": {"cidr": "192.0.2.0/24"}}]},
    },
    "just enough time": {"lameduck": "45s"},
    "addresses": {
        "listen": ["[::]:53", "[2001:db8::1]:53", "[1:2:3:4:5:6:7:8]:53", "192.0.2.1:1053"]
    },
    "followers that keep their copy in memory": {
        "follow": FOLLOW,
        "persistence": {"enabled": False},
        "extraArgs": ["--adopt"],
    },
    "one that was promoted": {"follow": FOLLOW | {"promoted": True}, "replicas": 1},
    "files of secrets": {"config": {"node": {"secretsKey": "file:/run/secrets/node-key"}}},
}


@pytest.mark.parametrize("name", TAKEN)
def test_values_that_look_like_wrong_ones_are_taken(
    program: Path, prepared: ApiServer, tmp_path: Path, name: str
) -> None:
    for manifest in rendered(program, TAKEN[name], tmp_path):
        if manifest["kind"] in ("StatefulSet", "ConfigMap"):
            code, said = prepared.call("POST", f"{collection(manifest)}?{DRY}", manifest)
            assert code == 201, said
