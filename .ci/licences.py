"""Checks the licence of everything that `pip install kudurru[all]` brings.

pip resolves the set and reports each distribution's metadata; nothing is installed. A licence is
read as an SPDX expression and must come down to Apache, BSD, MIT, ISC, PSF or MPL; what only
optional extras bring may also be LGPL. Prints each package that does not, and exits with 1.

Run from the project's root: `python .ci/licences.py`.
"""

import json
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression

ALLOWED = frozenset(
    {
        "Apache-1.1", "Apache-2.0",
        "0BSD", "BSD-1-Clause", "BSD-2-Clause", "BSD-2-Clause-Patent", "BSD-3-Clause",
        "MIT", "MIT-0", "ISC",
        "PSF-2.0", "Python-2.0", "Python-2.0.1",
        "MPL-1.1", "MPL-2.0",
    }
)  # fmt: skip
ALLOWED_IN_EXTRAS = ALLOWED | {
    f"LGPL-{version}-{suffix}"
    for version in ("2.0", "2.1", "3.0")
    for suffix in ("only", "or-later")
}

CLASSIFIERS = {
    "Apache Software License": "Apache-2.0",
    "BSD License": "BSD-3-Clause",  # which of the BSD licences, the classifier does not say
    "ISC License (ISCL)": "ISC",
    "MIT License": "MIT",
    "MIT No Attribution License (MIT-0)": "MIT-0",
    "Mozilla Public License 1.1 (MPL 1.1)": "MPL-1.1",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0",
    "GNU Lesser General Public License v2 (LGPLv2)": "LGPL-2.0-only",
    "GNU Lesser General Public License v2 or later (LGPLv2+)": "LGPL-2.0-or-later",
    "GNU Lesser General Public License v3 (LGPLv3)": "LGPL-3.0-only",
    "GNU Lesser General Public License v3 or later (LGPLv3+)": "LGPL-3.0-or-later",
}

REVIEWED = {
    # The classifier says public domain; the licence file and the README say BSD-3-Clause.
    ("click-default-group", "1.2.4"): "BSD-3-Clause",
    # `License: Apache License, Version 2.0` is no expression; the file is the Apache licence.
    ("sqlite-fts4", "1.0.3"): "Apache-2.0",
}
"""Licences that a person read in that version of a distribution whose metadata do not say."""


def licence_of(metadata: Mapping[str, Any]) -> str | None:
    """SPDX expression of a distribution (its metadata as JSON), or None where nobody can tell."""
    if expression := metadata.get("license_expression"):
        return str(expression)
    if reviewed := REVIEWED.get((metadata["name"].lower(), metadata["version"])):
        return reviewed
    claims = [
        classifier.rpartition(" :: ")[2]
        for classifier in metadata.get("classifier", [])
        if classifier.startswith("License :: ") and classifier != "License :: OSI Approved"
    ]
    if claims:
        # Several may mean "and" or "or": all of them must do.
        known = [CLASSIFIERS.get(claim) for claim in claims]
        return " AND ".join(map(str, known)) if all(known) else None
    return _expression(metadata.get("license") or "")


def _expression(text: str) -> str | None:
    try:
        return canonicalize_license_expression(text)
    except InvalidLicenseExpression:
        return None


def is_allowed(expression: str, allowed: frozenset[str]) -> bool:
    """Whether one way through the expression needs no licence but the allowed ones.

    AND binds before OR. An exception (WITH) only adds permissions: the licence before it decides.
    Raises InvalidLicenseExpression.
    """
    text = canonicalize_license_expression(expression)
    tokens = text.replace("(", " ( ").replace(")", " ) ").split()
    return _any_of(tokens, allowed)


def _any_of(tokens: list[str], allowed: frozenset[str]) -> bool:
    found = _all_of(tokens, allowed)
    while tokens and tokens[0] == "OR":
        tokens.pop(0)
        found = _all_of(tokens, allowed) or found
    return found


def _all_of(tokens: list[str], allowed: frozenset[str]) -> bool:
    found = _one(tokens, allowed)
    while tokens and tokens[0] == "AND":
        tokens.pop(0)
        found = _one(tokens, allowed) and found
    return found


def _one(tokens: list[str], allowed: frozenset[str]) -> bool:
    word = tokens.pop(0)
    if word == "(":
        found = _any_of(tokens, allowed)
        tokens.pop(0)
        return found
    if tokens and tokens[0] == "WITH":
        del tokens[:2]
    # "BSD-3-Clause+" is that version or a later one.
    return word.removesuffix("+") in allowed


def problem_of(metadata: Mapping[str, Any], allowed: frozenset[str]) -> str | None:
    """Why a distribution may not be used, or None."""
    expression = licence_of(metadata)
    if expression is None:
        return (
            "its metadata name no licence that can be read: read its licence file and add it to "
            "REVIEWED in .ci/licences.py"
        )
    try:
        if is_allowed(expression, allowed):
            return None
    except InvalidLicenseExpression:
        return f"{expression!r} is no SPDX expression: read its licence file, add it to REVIEWED"
    return f"{expression} is not among the licences that we use: find another package"


def resolved(target: str) -> dict[str, dict[str, Any]]:
    """Metadata by name of all that installing the target brings."""
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed"]
    output = subprocess.run(  # noqa: S603  # our own command on our own tree
        [*command, "--quiet", "--report", "-", target], check=True, capture_output=True
    ).stdout
    items = json.loads(output)["install"]
    return {item["metadata"]["name"]: item["metadata"] for item in items}


def main() -> int:
    always, everything = resolved("."), resolved(".[all]")
    failed = 0
    for name, metadata in sorted(everything.items()):
        problem = problem_of(metadata, ALLOWED if name in always else ALLOWED_IN_EXTRAS)
        if problem:
            failed += 1
            sys.stderr.write(f"{name} {metadata['version']}: {problem}\n")
    good = len(everything) - failed
    sys.stdout.write(f"{good} of {len(everything)} packages have a licence that we use\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
