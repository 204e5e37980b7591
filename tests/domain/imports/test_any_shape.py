"""Documents of any shape are imported or refused, and never more than that."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kudurru.domain.errors import Invalid
from kudurru.domain.imports import adguard, blocky, dnsmasq, hosts, pihole
from tests.imports import import_texts

KEYS = [
    "dns", "filtering", "filters", "whitelist_filters", "user_rules", "rewrites", "domain",
    "answer", "clients", "persistent", "name", "ids", "upstreams", "upstream_dns", "safe_search",
    "blocked_services", "schedule", "enabled", "url", "groups", "default", "blocking",
    "denylists", "allowlists", "clientGroupsBlock", "customDNS", "mapping", "conditional",
    "caching", "bootstrapDns", "filtering_enabled", "hosts", "cnameRecords", "revServers", "misc",
    "dnsmasq_lines", "use_global_settings", "clientLookup", "blockType", "a.lan", "192.0.2.1",
]  # fmt: skip
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-5, 5), st.text(max_size=8),
    st.sampled_from(["192.0.2.1", "a.lan", "[/a.lan/]192.0.2.1", "true,10.0.0.0/8,192.0.2.1,lan",
                     "1.5", "https://a.example/x", "/x/", "*.b.lan", "host-record=a.lan,b"]),
)  # fmt: skip
SHAPES = st.dictionaries(
    st.sampled_from(KEYS),
    st.recursive(
        SCALARS,
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4)
        ),
        max_leaves=12,
    ),
    max_size=5,
)


def tried(product: str, read: Callable[..., None], text: str, name: str, **options: Any) -> None:
    with suppress(Invalid):  # and nothing else
        import_texts(product, read, (name, text), **options)


@given(SHAPES)
def test_documents(shape: dict[str, Any]) -> None:
    import yaml

    text = yaml.safe_dump(shape)
    tried("adguard", adguard.read, text, "AdGuardHome.yaml")
    tried("blocky", blocky.read, text, "config.yml")


@given(SHAPES)
def test_settings_of_pi_hole(shape: dict[str, Any]) -> None:
    lines = []
    for table in ("dns", "misc"):
        lines.append(f"[{table}]")
        for key, value in shape.items():
            if isinstance(value, (str, bool, int, list)):
                lines.append(f"{key!r} = {toml(value)}")
    tried("pihole", pihole.read, "\n".join(lines), "pihole.toml", tables_of=lambda _: None)


def toml(value: Any) -> str:
    import json

    if isinstance(value, list):
        return f"[{', '.join(toml(part) for part in value)}]"
    if value is None or isinstance(value, dict):
        return "{}"
    return json.dumps(value)


WORDS = ["address=", "server=", "local=", "cname=", "host-record=", "srv-host=", "mx-host=",
         "txt-record=", "ptr-record=", "rev-server=", "/", "#", ",", "a.lan", "192.0.2.1", "::1",
         "10.0.0.0/9", " ", "\"", "\\", "@", "5", "*.", "0.0.0.0"]  # fmt: skip


@pytest.mark.parametrize("product", ["dnsmasq", "hosts"])
@given(words=st.lists(st.sampled_from(WORDS), max_size=9))
def test_lines(product: str, words: list[str]) -> None:
    read = {"dnsmasq": dnsmasq.read, "hosts": hosts.read}[product]
    tried(product, read, "".join(words), product)
