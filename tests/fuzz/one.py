"""Fuzzes one target in this process: `python -m tests.fuzz.one NAME [options of libFuzzer]`."""

import sys

import atheris

with atheris.instrument_imports(include=["kudurru", "h11", "h2"]):
    from tests.fuzz.targets import TARGETS

name = sys.argv.pop(1)
atheris.Setup(sys.argv, TARGETS[name].make())
atheris.Fuzz()
