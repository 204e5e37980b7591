"""Label selectors as Kubernetes writes them."""

from collections.abc import Callable

from kudurru.domain.errors import Cause, Invalid


def parse_selector(text: str) -> Callable[[dict[str, str]], bool]:
    """A label selector as Kubernetes writes them: `a=b,c!=d,e,!f`. Raises Invalid."""
    tests: list[tuple[str, str, str]] = []
    for part in filter(None, (p.strip() for p in text.split(","))):
        for operator in ("!=", "==", "="):
            name, found, value = part.partition(operator)
            if found:
                tests.append(("!=" if operator == "!=" else "=", name.strip(), value.strip()))
                break
        else:
            tests.append(("!", part[1:].strip(), "") if part[0] == "!" else ("?", part, ""))
        if not tests[-1][1] or not set(tests[-1][1]) <= _SELECTOR_NAME:
            raise Invalid(
                "label selector",
                [Cause("", f"{part!r} is not NAME=VALUE, NAME!=VALUE, NAME, !NAME")],
            )

    def matches(labels: dict[str, str]) -> bool:
        return all(_holds(labels, test) for test in tests)

    return matches


_SELECTOR_NAME = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./")


def _holds(labels: dict[str, str], test: tuple[str, str, str]) -> bool:
    operator, name, value = test
    match operator:
        case "=":
            return labels.get(name) == value
        case "!=":
            return labels.get(name) != value
        case "?":
            return name in labels
        case _:
            return name not in labels
