"""The native packet engine, an extension that is built where there is a compiler for it; everything
else is in pyproject.toml."""

import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

CORE = Path("src/kudurru/adapters/dns/native")


class BuildIfPossible(build_ext):
    """Leaves out an extension that does not compile: the engine in Python then serves.

    `Extension(optional=True)` is not enough, since later steps look for what was not built.
    """

    def build_extension(self, ext: Extension) -> None:
        try:
            super().build_extension(ext)
        except Exception as fault:  # a compiler that is not there, or lacks headers, or …
            self.warn(f"kudurru: without the native engine: {fault}")
            self.extensions = [one for one in self.extensions if one is not ext]
            self.distribution.ext_modules = list(self.extensions)

    def build_extensions(self) -> None:
        for extension in list(self.extensions):  # `build_extension` takes out what it cannot build
            self.build_extension(extension)


ENGINE = Extension(
    "kudurru.adapters.dns._engine",
    sources=sorted(str(path) for path in CORE.glob("*.c")),
    depends=[str(path) for path in CORE.glob("*.h")],
    py_limited_api=True,
    extra_compile_args=["-std=c11", "-O2", "-g0", "-Wall", "-Wextra", "-pthread"],
    extra_link_args=["-pthread"],
)

setup(
    ext_modules=[ENGINE] if sys.platform == "linux" else [],
    cmdclass={"build_ext": BuildIfPossible},
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
