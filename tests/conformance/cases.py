"""Case files: one JSON object per line."""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "data"  # our own suites

Row = dict[str, Any]


def rows(path: Path) -> Iterator[Row]:
    octets = path.read_bytes()
    text = gzip.decompress(octets) if path.suffix == ".gz" else octets
    return map(json.loads, text.splitlines())
