"""Values of other products' documents, by path, each with its place.

What is missing is nothing; what is of another type than the product writes is a fault.
"""

from collections.abc import Iterator
from typing import Any, Literal

from kudurru.domain.documents import Document, read_documents
from kudurru.domain.errors import Invalid
from kudurru.domain.imports.model import Importing, Source


class Fields:
    """A mapping of a document."""

    def __init__(self, importing: Importing, document: Document, path: str, value: Any) -> None:
        self._importing, self._document, self._path = importing, document, path
        if value is not None and not isinstance(value, dict):
            self._fault(path, "a mapping")
        self._value: dict[str, Any] = value if isinstance(value, dict) else {}

    def at(self, key: str = "") -> str:
        """`file:line: path` of a key."""
        path = self._inner(key) if key else self._path
        return ": ".join(part for part in (self._document.place(path), path) if part)

    def has(self, key: str) -> bool:
        """Whether something is given, be it false."""
        return self._value.get(key) not in (None, "", [], {})

    def names(self) -> list[str]:
        return list(self._value)

    def under(self, key: str) -> "Fields":
        return Fields(self._importing, self._document, self._inner(key), self._value.get(key))

    def value(self, key: str) -> Any:
        return self._value.get(key)

    def text(self, key: str, default: str = "") -> str:
        """A scalar as it was written."""
        value = self._value.get(key)
        if value is None:
            return default
        return self._scalar(self._inner(key), value, default)

    def number(self, key: str, default: int = 0) -> int:
        value = self._value.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            if value is not None:
                self._fault(self._inner(key), "a number")
            return default
        return value

    def flag(self, key: str, default: bool = False) -> bool:
        value = self._value.get(key)
        if value in (0, 1, True, False):
            return bool(value)
        if value is not None:
            self._fault(self._inner(key), "true or false")
        return default

    def texts(self, key: str) -> Iterator[tuple[str, str]]:
        """(place, text) of a list of texts; of one text as of a list of one."""
        value, path = self._value.get(key), self._inner(key)
        if isinstance(value, (str, int)) and not isinstance(value, bool):
            value = [value]
        for i, item in enumerate(self._list(path, value)):
            inner = f"{path}[{i}]"
            if text := self._scalar(inner, item, ""):
                yield f"{self._document.place(inner)}: {inner}", text

    def items(self, key: str) -> Iterator["Fields"]:
        """Mappings of a list."""
        path = self._inner(key)
        for i, item in enumerate(self._list(path, self._value.get(key))):
            yield Fields(self._importing, self._document, f"{path}[{i}]", item)

    def _list(self, path: str, value: Any) -> list[Any]:
        if value is not None and not isinstance(value, list):
            self._fault(path, "a list")
        return value if isinstance(value, list) else []

    def _scalar(self, path: str, value: Any, default: str) -> str:
        if isinstance(value, str):
            return value
        if value is None or isinstance(value, (dict, list)):
            self._fault(path, "text")
            return default
        return self._document.text_of(path) or str(value)

    def _inner(self, key: str) -> str:
        return f"{self._path}.{key}" if self._path else key

    def _fault(self, path: str, wanted: str) -> None:
        self._importing.fault(self._document.place(path), f"{path}: {wanted} is expected here")


def read_fields(
    importing: Importing, source: Source, notation: Literal["json", "toml", "yaml"]
) -> Fields | None:
    """Of the only document of a file; None for an empty one, and for one with faults, which are
    noted."""
    try:
        documents = read_documents(source.data, what=source.name, format=notation, is_foreign=True)
    except Invalid as error:
        importing.faults += error.causes
        return None
    if len(documents) > 1:
        importing.fault(documents[1].place(""), "a second document; the product reads one")
    return Fields(importing, documents[0], "", documents[0].value) if documents else None
