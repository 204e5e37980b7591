"""The web page: files for a browser, which do everything through the API (decision 0066).

`page_files` is the table of what is served: the files of this folder by their paths, read once. A
path is looked up in it and nothing else, so there are no folders to get out of. The files hold
nothing that is secret, so they need no token; what people see and do with them needs one.
"""

import hashlib
from importlib.resources import files
from importlib.resources.abc import Traversable

import msgspec

PREFIX = "/ui/"
START = "index.html"

TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
"""By the ends of names. Files of other kinds are not served."""

POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
"""Content-Security-Policy: nothing but these files, and no text is ever made into code."""


class PageFile(msgspec.Struct, frozen=True):
    content: bytes
    content_type: str
    tag: str  # ETag, in quotes

    @property
    def headers(self) -> tuple[tuple[str, str], ...]:
        return (
            ("ETag", self.tag),
            ("Content-Security-Policy", POLICY),
            ("Cross-Origin-Opener-Policy", "same-origin"),
        )

    def is_known(self, if_none_match: str) -> bool:
        """Whether a browser has this very file (RFC 9110 section 13.1.2)."""
        tags = {tag.strip().removeprefix("W/") for tag in if_none_match.split(",")}
        return self.tag in tags or "*" in tags


def page_files() -> dict[str, PageFile]:
    """Every file, by the path that it is asked by. `index.html` is at PREFIX itself."""
    folder = files(__name__)
    found = {f"{PREFIX}{file.name}": file for file in folder.iterdir() if file.is_file()}
    views = folder / "views"
    found |= {f"{PREFIX}views/{file.name}": file for file in views.iterdir() if file.is_file()}
    page = {path: _read(file) for path, file in found.items() if _type_of(file.name)}
    page[PREFIX] = page.pop(PREFIX + START)
    return page


def _type_of(name: str) -> str:
    return TYPES.get(name.rpartition(".")[2], "")


def _read(file: Traversable) -> PageFile:
    content = file.read_bytes()
    tag = hashlib.sha256(content).hexdigest()[:32]
    return PageFile(content, _type_of(file.name), f'"{tag}"')
