import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
from packaging.licenses import InvalidLicenseExpression


@pytest.fixture(scope="module")
def licences() -> ModuleType:
    path = Path(__file__).parents[2] / ".ci" / "licences.py"
    spec = importlib.util.spec_from_file_location("licences", path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


EXPRESSIONS = {
    "MIT": True,
    "mit": True,
    "Apache-2.0 AND BSD-2-Clause": True,
    "MIT OR GPL-3.0-only": True,
    "GPL-3.0-only OR MIT": True,
    "MIT AND GPL-3.0-only": False,
    "GPL-3.0-or-later": False,
    "AGPL-3.0-only OR GPL-2.0-only": False,
    "MIT AND (BSD-3-Clause OR GPL-2.0-only)": True,
    "(MIT AND GPL-2.0-only) OR ISC": True,
    "MIT OR Apache-2.0 AND GPL-2.0-only": True,
    "GPL-2.0-only OR MIT AND GPL-3.0-only": False,
    "Apache-2.0 WITH LLVM-exception": True,
    "GPL-2.0-only WITH Classpath-exception-2.0": False,
    "GPL-2.0-only WITH Classpath-exception-2.0 OR MPL-2.0": True,
    "((ISC))": True,
    "LGPL-2.1-only": False,
    "LicenseRef-Ours": False,
    "BSD-3-Clause AND Unlicense AND MIT": False,
}


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_an_expression_is_judged_by_what_it_obliges_us_to(
    licences: ModuleType, expression: str
) -> None:
    assert licences.is_allowed(expression, licences.ALLOWED) is EXPRESSIONS[expression]


@pytest.mark.parametrize(
    "expression", ["", "MIT OR", "Apache 2.0", "MIT AND AND ISC", "(MIT", "NoSuch-1.0"]
)
def test_what_is_no_expression_is_not_judged(licences: ModuleType, expression: str) -> None:
    with pytest.raises(InvalidLicenseExpression):
        licences.is_allowed(expression, licences.ALLOWED)


def test_optional_extras_may_bring_the_lgpl(licences: ModuleType) -> None:
    metadata = {"name": "psycopg", "version": "3.3", "license_expression": "LGPL-3.0-only"}
    assert "LGPL-3.0-only is not among" in licences.problem_of(metadata, licences.ALLOWED)
    assert licences.problem_of(metadata, licences.ALLOWED_IN_EXTRAS) is None


METADATA = {
    "expression": ({"license_expression": "ISC", "classifier": ["License :: Other"]}, "ISC"),
    "classifier": ({"classifier": ["License :: OSI Approved :: MIT License"]}, "MIT"),
    "before the field": (
        {"license": "GPL", "classifier": ["License :: OSI Approved :: MIT License"]},
        "MIT",
    ),
    "two classifiers": (
        {
            "classifier": [
                "License :: OSI Approved :: BSD License",
                "License :: OSI Approved :: Apache Software License",
            ]
        },
        "BSD-3-Clause AND Apache-2.0",
    ),
    "a classifier that is not known is not overruled by the field": (
        {"license": "MIT", "classifier": ["License :: OSI Approved :: GNU GPL v3 (GPLv3)"]},
        None,
    ),
    "field": ({"license": "apache-2.0"}, "Apache-2.0"),
    "free text": ({"license": "Apache License, Version 2.0"}, None),
    "nothing": ({}, None),
}


@pytest.mark.parametrize("case", METADATA)
def test_the_licence_is_taken_from_the_surest_place(licences: ModuleType, case: str) -> None:
    metadata, expression = METADATA[case]
    assert licences.licence_of({"name": "x", "version": "1", **metadata}) == expression


def test_a_review_holds_for_the_version_that_was_read(licences: ModuleType) -> None:
    metadata = {"name": "sqlite-fts4", "version": "1.0.3", "license": "Apache License"}
    assert licences.problem_of(metadata, licences.ALLOWED) is None
    later = metadata | {"version": "1.0.4"}
    assert "read its licence file" in licences.problem_of(later, licences.ALLOWED)


def test_every_reviewed_licence_is_allowed(licences: ModuleType) -> None:
    for expression in licences.REVIEWED.values():
        assert licences.is_allowed(expression, licences.ALLOWED_IN_EXTRAS)


@pytest.mark.slow
def test_everything_that_is_installed_has_a_licence_that_we_use(
    licences: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])
    assert licences.main() == 0
