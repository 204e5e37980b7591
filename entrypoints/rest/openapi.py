"""OpenAPI 3.1 of the routes, and a page that shows it: both from the same table, no other source.
The page has no script, and nothing that is not in it."""

from collections.abc import Iterable, Sequence
from html import escape
from http import HTTPStatus
from typing import Any

import msgspec

from kudurru import __version__
from kudurru.domain.access import RIGHTS
from kudurru.domain.kinds.meta import API_VERSION, ObjectMeta
from kudurru.domain.kinds.registry import KINDS, Kind
from kudurru.entrypoints.rest.calls import JSON
from kudurru.entrypoints.rest.routes import PREFIX, Route
from kudurru.entrypoints.rest.status import Status

_REFERENCE = "#/components/schemas/{name}"
_REFUSALS = (400, 401, 403, 404, 405, 409, 410, 412, 413, 415, 421, 422, 429, 431, 502, 503)
_TYPES = {
    "text": {"type": "string"},
    "count": {"type": "integer", "minimum": 0},
    "switch": {"type": "boolean"},
}

PAGE_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


def document(routes: Sequence[Route]) -> dict[str, Any]:
    schemas, of = _schemas(routes)
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(PREFIX + route.path, {})[route.method.lower()] = _operation(route, of)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "kudurru",
            "version": __version__,
            "description": "Zones, filters and the log of a kudurru node. Every refusal is a "
            "Status. A token goes into Authorization or X-API-Key, never into a URL.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "security": [{"bearer": []}, {"key": []}],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "responses": {
                "Refused": {
                    "description": "Why not.",
                    "content": {JSON: {"schema": {"$ref": "#/components/schemas/Status"}}},
                }
            },
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
            },
        },
    }


def _operation(route: Route, of: dict[int, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "operationId": _operation_id(route),
        "summary": route.about,
        "tags": [route.tag],
        "x-right": route.right,
        "x-roles": [role for role, rights in RIGHTS.items() if route.right in rights],
        "responses": _responses(route, of),
    }
    if parameters := list(_parameters(route)):
        found["parameters"] = parameters
    if route.body is not None:
        schema = _schema(route.body, of)
        content = {kind: {"schema": schema} for kind in route.body_types}
        found["requestBody"] = {"required": True, "content": content}
    return found


def _operation_id(route: Route) -> str:
    words = route.path.replace("{", "").replace("}", "").replace(":", "/").split("/")
    return "-".join([route.method.lower(), *filter(None, words)])


def _parameters(route: Route) -> Iterable[dict[str, Any]]:
    for segment in route.path.split("/"):
        if segment.startswith("{"):
            name = segment.partition("}")[0][1:]
            schema = {"type": "string", "minLength": 1, "maxLength": 253}
            yield {"name": name, "in": "path", "required": True, "schema": schema}
    for param in route.params:
        yield {
            "name": param.name,
            "in": "query",
            "required": param.is_needed,
            "description": param.about,
            "schema": _TYPES[param.type],
        }
    if route.is_conditional:
        about = "resourceVersion that the object must have, as ETag shows it."
        yield {
            "name": "If-Match", "in": "header", "description": about, "schema": {"type": "string"},
        }  # fmt: skip


def _responses(route: Route, of: dict[int, Any]) -> dict[str, Any]:
    schema = _schema(route.reply, of)
    content = {kind: {"schema": schema} for kind in route.reply_types}
    found: dict[str, Any] = {
        str(code): {"description": HTTPStatus(code).phrase, "content": content}
        for code in (route.code, *route.more_codes)
    }
    if any(param.name == "watch" for param in route.params):
        line = {"schema": {"type": "string"}}
        found["200"]["content"] = {
            **content, "application/x-ndjson": line, "text/event-stream": line,
        }  # fmt: skip
    for code in _REFUSALS:
        found[str(code)] = {"$ref": "#/components/responses/Refused"}
    return found


def _schema(type_: Any, of: dict[int, Any]) -> Any:
    return type_ if _is_schema(type_) else of[id(type_)]


def _is_schema(type_: Any) -> bool:
    return isinstance(type_, dict)


def _schemas(routes: Sequence[Route]) -> tuple[dict[str, Any], dict[int, Any]]:
    """Components, and the schema of each type that a route names, by its id."""
    kinds = [kind for kind in KINDS.values() if not kind.is_internal]
    named = [t for route in routes for t in (route.body, route.reply) if not _is_schema(t)]
    types = list({id(t): t for t in named if t is not None}.values())
    own: list[Any] = [Status, ObjectMeta]
    for kind in kinds:
        own += [kind.spec, kind.status]
    all_types = [*own, *types]
    found, components = msgspec.json.schema_components(all_types, ref_template=_REFERENCE)
    of = {id(t): schema for t, schema in zip(all_types, found, strict=True)}
    for kind in kinds:
        components[kind.name] = _object_schema(kind, of)
        components[f"{kind.name}List"] = _list_schema(kind)
    return dict(sorted(components.items())), of


def _object_schema(kind: Kind, of: dict[int, Any]) -> dict[str, Any]:
    return {
        "title": kind.name,
        "description": kind.about,
        "type": "object",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"const": API_VERSION},
            "kind": {"const": kind.name},
            "metadata": {**of[id(ObjectMeta)]},
            "spec": of[id(kind.spec)],
            "status": of[id(kind.status)],
        },
    }


def _list_schema(kind: Kind) -> dict[str, Any]:
    meta = {
        "type": "object",
        "properties": {"resourceVersion": {"type": "string"}, "continue": {"type": "string"}},
    }
    items = {"type": "array", "items": {"$ref": _REFERENCE.format(name=kind.name)}}
    return {
        "title": f"{kind.name}List",
        "type": "object",
        "required": ["apiVersion", "kind", "metadata", "items"],
        "properties": {
            "apiVersion": {"const": API_VERSION},
            "kind": {"const": f"{kind.name}List"},
            "metadata": meta,
            "items": items,
        },
    }


# --- the page -------------------------------------------------------------------------------

_STYLE = """
body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;
color:#222;background:#fff}code{background:#f3f3f3;padding:.1em .3em;border-radius:3px}
h2{margin-top:2.5rem;border-bottom:1px solid #ddd}h3{margin:1.6rem 0 .2rem;font-size:1rem}
table{border-collapse:collapse;margin:.4rem 0}td{padding:.1rem .8rem .1rem 0;vertical-align:top}
.right{color:#666}@media(prefers-color-scheme:dark){body{color:#ddd;background:#181818}
code{background:#2a2a2a}h2{border-color:#444}.right{color:#999}}
"""


def page(routes: Sequence[Route]) -> str:
    """The routes for people."""
    tags = dict.fromkeys(route.tag for route in routes)
    head = (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>kudurru API</title><style>{_STYLE}</style><h1>kudurru API</h1>"
        f'<p>Version {escape(__version__)}. <a href="{PREFIX}/openapi.json">OpenAPI</a>. A token '
        "goes into <code>Authorization: Bearer …</code>; <code>kudurru token create</code> makes "
        "one. Every refusal is a <code>Status</code> with reason, code, message and causes.</p>"
    )
    parts = [head]
    for tag in tags:
        parts.append(f"<h2>{escape(tag)}</h2>")
        parts += [_section(route) for route in routes if route.tag == tag]
    return "".join(parts) + "</html>\n"


def _section(route: Route) -> str:
    rows = "".join(
        f"<tr><td><code>{escape(str(p['name']))}</code><td>{escape(p.get('description', ''))}"
        for p in _parameters(route)
    )
    body = getattr(route.body, "__name__", "") if not _is_schema(route.body) else "an object"
    body_row = f"<tr><td>body<td>{escape(body)}, {', '.join(route.body_types)}" if body else ""
    return (
        f"<h3><code>{route.method} {escape(PREFIX + route.path)}</code></h3>"
        f'<div>{escape(route.about)} <span class="right">Right: {route.right}.</span></div>'
        f"<table>{rows}{body_row}</table>"
    )
