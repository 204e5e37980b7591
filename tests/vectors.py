"""Where the test vectors are that the project does not hold itself."""

import os
from pathlib import Path

from tests.absent import absent

_BESIDE = Path(__file__).resolve().parents[2] / "shared" / "vectors"


def vectors(path: str) -> Path:
    """A file or folder of `../shared/vectors` (or of $KUDURRU_VECTORS). Skips the test where it is
    absent, but fails it in CI: a suite that nobody runs proves nothing."""
    found = Path(os.environ.get("KUDURRU_VECTORS", _BESIDE)) / path
    if not found.exists():
        absent(f"{found} is missing: set KUDURRU_VECTORS to the folder of vectors")
    return found
