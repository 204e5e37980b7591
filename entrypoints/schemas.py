"""Generated files: JSON Schemas of the kinds. `python -m kudurru.entrypoints.schemas DIR` writes
them, and a test compares what is committed with what the code means."""

import sys
from pathlib import Path
from typing import Any

import msgspec

from kudurru.domain.kinds.meta import API_VERSION, ObjectMeta
from kudurru.domain.kinds.registry import KINDS, Kind

_DRAFT = "https://json-schema.org/draft/2020-12/schema"
_REFERENCE = "#/$defs/{name}"


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


def generated() -> dict[str, str]:
    """Name of each generated file to its text."""
    return {f"{kind.name.lower()}.json": _text(kind_schema(kind)) for kind in KINDS.values()}


def _text(schema: dict[str, Any]) -> str:
    return msgspec.json.format(msgspec.json.encode(schema, order="sorted")).decode() + "\n"


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in generated().items():
        (folder / name).write_text(text)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
