"""Generated files: schemas and reference pages. `python -m kudurru.entrypoints.schemas` writes them
into the tree, and a test compares what is committed with what the code means."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import msgspec
import yaml

from kudurru.adapters.kubernetes.crds import crds
from kudurru.adapters.kubernetes.rbac import FEATURES, Feature, in_namespaces, manifests, of_cluster
from kudurru.domain.kinds.meta import API_VERSION, ObjectMeta
from kudurru.domain.kinds.registry import KINDS, Kind
from kudurru.domain.settings_docs import settings_object, settings_reference, settings_schema
from kudurru.entrypoints import dashboards
from kudurru.entrypoints.cli.main import COMMANDS, command_of
from kudurru.entrypoints.rest import openapi
from kudurru.entrypoints.rest.app import all_routes

_DRAFT = "https://json-schema.org/draft/2020-12/schema"
_COMMANDS_HEAD = """# Commands

Generated from the code (`just schemas`). `kudurru COMMAND --help` says the same. Exit codes: 0
done, 1 refused or failed, 2 usage; `audit verify` has more.
"""
_CHART = "deploy/chart/kudurru"
"""A chart reads no file outside of itself, so that what it shares is written there too."""
_REFERENCE = "#/$defs/{name}"


def generated(root: Path) -> dict[str, str]:
    """Path of each generated file in the tree to its text."""
    files = {
        f"schemas/{kind.name.lower()}.json": _text(kind_schema(kind))
        for kind in KINDS.values()
        if not kind.is_internal  # nobody writes those by hand
    }
    files["schemas/settings.json"] = _text(settings_schema())
    for definition in crds():
        text = _manifests(definition)
        files[f"schemas/crds/{definition['metadata']['name']}.yaml"] = text
        files[f"{_CHART}/crds/{definition['metadata']['name']}.yaml"] = text
    for feature in FEATURES:
        text = _manifests(*manifests(feature))
        files[f"schemas/rbac/{feature.name}.yaml"] = f"# {feature.about}\n{text}"
    files["schemas/openapi.json"] = _text(openapi.document(all_routes()))
    files["docs/reference/settings.md"] = settings_reference()
    files["docs/reference/commands.md"] = commands_reference()
    files["docs/reference/metrics.md"] = dashboards.metrics_reference()
    files["deploy/grafana/kudurru.json"] = dashboards.dashboard()
    files["deploy/alerts/kudurru.yaml"] = dashboards.alert_rules()
    files[f"{_CHART}/files/alerts.yaml"] = dashboards.alert_rules()
    files[f"{_CHART}/files/rights.yaml"] = _manifests({one.name: _rights(one) for one in FEATURES})
    values = msgspec.json.decode((root / "deploy/chart/values.schema.json").read_bytes())
    files[f"{_CHART}/values.schema.json"] = _text(values_schema(values))
    return files


def values_schema(own: dict[str, Any]) -> dict[str, Any]:
    """JSON Schema of the chart's values: what it says of its own, and the settings and objects that
    it passes on. Draft 7, as a Helm of before 3.18 knows no later one."""
    specs = {
        found["spec"]["names"]["kind"]: _closed(
            found["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
        )
        for found in crds()
    }
    wanted = {"DNSZone", "BlockList"}
    definitions = own["definitions"] | {kind: specs[kind] for kind in wanted}
    definitions["config"] = settings_object("#/definitions/config")
    return own | {"definitions": definitions}


def _closed(schema: dict[str, Any]) -> dict[str, Any]:
    """Without what only an API server reads, and fields that nobody knows are faults: that one
    drops them and says nothing where it is not asked to."""
    found = {name: part for name, part in schema.items() if name[:2] != "x-" and name != "format"}
    if "items" in found:
        found["items"] = _closed(found["items"])
    if "properties" in found:
        properties = {name: _closed(part) for name, part in found["properties"].items()}
        found |= {"properties": properties, "additionalProperties": False}
    return found


def _rights(feature: Feature) -> dict[str, Any]:
    """A feature as the chart needs it: also parted, for who watches some namespaces only."""
    rights = {"ofNamespace": feature.is_of_namespace, "rules": feature.rules}
    if not feature.is_of_namespace:
        rights |= {"ofCluster": of_cluster(feature), "inNamespaces": in_namespaces(feature)}
    return rights


def kind_schema(kind: Kind) -> dict[str, Any]:
    """JSON Schema of the objects of a kind, as an editor needs it: unknown fields are faults."""
    types = [ObjectMeta, kind.spec, kind.status]
    parts, definitions = msgspec.json.schema_components(types, ref_template=_REFERENCE)
    return {
        "$schema": _DRAFT,
        "title": kind.name,
        "description": kind.about,
        "type": "object",
        "required": ["apiVersion", "kind", "metadata", "spec"],
        "additionalProperties": False,
        "properties": {
            "apiVersion": {"const": API_VERSION},
            "kind": {"const": kind.name},
            "metadata": parts[0],
            "spec": parts[1],
            "status": parts[2],
        },
        "$defs": definitions,
    }


def _text(schema: dict[str, Any]) -> str:
    return msgspec.json.format(msgspec.json.encode(schema, order="sorted")).decode() + "\n"


def _manifests(*documents: dict[str, Any]) -> str:
    return yaml.dump_all(documents, Dumper=_Plain, sort_keys=False, width=100)


class _Plain(yaml.SafeDumper):
    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002  # whatever it is
        return True


def commands_reference() -> str:
    """A page of every command, its arguments and options."""
    parts = [_COMMANDS_HEAD]
    for name, (_, about) in COMMANDS.items():
        parts += _command_pages(f"kudurru {name}", command_of(name), about)
    return "\n".join(parts)


def _command_pages(path: str, command: Any, about: str) -> Iterator[str]:
    context = click.Context(command, info_name=path)
    subcommands = getattr(command, "commands", None)
    if subcommands:
        yield f"## {path}\n\n{about}\n"
        for name, sub in subcommands.items():
            yield from _command_pages(f"{path} {name}", sub, "")
        return
    usage = " ".join(command.collect_usage_pieces(context))
    text = " ".join((command.help or about).split())
    rows = [
        record
        for parameter in command.get_params(context)
        if (record := parameter.get_help_record(context)) is not None
    ]
    yield f"## {path}\n\n`{path} {usage}`\n\n{text}\n"
    if rows:
        yield (
            "| option | |\n|---|---|\n"
            + "\n".join(
                f"| `{_cell(name)}` | {_cell(' '.join(help_.split()))} |" for name, help_ in rows
            )
            + "\n"
        )


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def main(root: Path) -> None:
    for name, text in generated(root).items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path())
