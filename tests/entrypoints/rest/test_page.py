"""The web page: what is served, how, and to whom."""

import asyncio
import re
from pathlib import Path

import pytest

from kudurru.adapters.http_api import Reply, Request
from kudurru.adapters.http_ops import Response, health_routes
from kudurru.entrypoints.dashboard import PREFIX, page_files
from kudurru.entrypoints.rest.app import RestApp
from tests.api import LOCAL, refused, serving

FOLDER = Path(__file__).parents[3] / "entrypoints" / "dashboard"


def got(app: RestApp, path: str, method: str = "GET", **headers: str) -> Response:
    sent = {"host": "localhost:8080"} | {k.replace("_", "-"): v for k, v in headers.items()}
    request = Request(
        method=method, path=path, query="", headers=sent, peer=LOCAL, local=LOCAL, kept={}
    )
    answer = app.admit(request) or asyncio.run(app.answer(request))
    assert isinstance(answer, Response)
    return answer


def app(*, has_page: bool = True) -> RestApp:
    """Of a node that replays its log still."""
    return RestApp(health_routes(list), page=page_files() if has_page else None)


def test_every_file_of_the_folder_is_in_the_table_and_nothing_else() -> None:
    here = {
        str(path.relative_to(FOLDER))
        for path in FOLDER.rglob("*")
        if path.is_file() and path.suffix not in (".py", ".pyc")
    }
    served = {path.removeprefix(PREFIX) or "index.html" for path in page_files()}
    assert served == here


def test_files_are_served_without_a_token_before_the_log_is_replayed() -> None:
    for path, file in page_files().items():
        answer = got(app(), path)
        assert (answer.code, answer.body) == (200, file.content), path
        assert got(app(), path, "HEAD").code == 200
    types = {path.rpartition(".")[2]: file.content_type for path, file in page_files().items()}
    assert types == {
        "/ui/": "text/html; charset=utf-8",
        "js": "text/javascript; charset=utf-8",
        "css": "text/css; charset=utf-8",
        "svg": "image/svg+xml",
    }


def test_the_policy_lets_nothing_in_but_the_files_themselves() -> None:
    answer = got(app(), PREFIX)
    assert isinstance(answer, Reply)
    headers = dict(answer.headers)
    assert headers["Content-Security-Policy"] == (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    )
    assert headers["Cross-Origin-Opener-Policy"] == "same-origin"
    assert answer.caching == "no-cache"


def test_a_browser_that_has_a_file_is_not_sent_it_again() -> None:
    first = got(app(), "/ui/app.js")
    tag = dict(first.headers)["ETag"]
    for sent in (tag, f"W/{tag}", f'"other", {tag}', "*"):
        again = got(app(), "/ui/app.js", if_none_match=sent)
        assert again.code == 304, sent
        assert dict(again.headers)["ETag"] == tag
        assert again.caching == "no-cache"
    assert got(app(), "/ui/app.js", if_none_match='"other"').code == 200
    assert tag != dict(got(app(), "/ui/style.css").headers)["ETag"]


def test_the_address_alone_leads_to_the_page() -> None:
    for path in ("/", "/ui"):
        answer = got(app(), path)
        assert (answer.code, dict(answer.headers)["Location"]) == (307, "/ui/")


@pytest.mark.parametrize(
    "path",
    ["/ui/none.js", "/ui/views/", "/ui/../api/v1/info", "/ui/%2e%2e/app.py", "/ui/__init__.py",
     "/ui/views/..%2fapp.js", "/ui//app.js", "/UI/"],
)  # fmt: skip
def test_what_is_not_in_the_table_is_a_path_like_any_other(path: str) -> None:
    async def ask() -> None:
        async with serving("viewer") as api:
            api.app = app()
            api.app.open(api.context)
            refused(await api.ask("GET", path, prefix="", token=""), 401, "Unauthorized")
            refused(await api.ask("GET", path, prefix="", token="viewer"), 404, "NotFound")

    asyncio.run(ask())


def test_without_the_page_its_paths_are_not_there() -> None:
    async def ask() -> None:
        async with serving("viewer") as api:
            api.app = app(has_page=False)
            api.app.open(api.context)
            for path in ("/", "/ui", "/ui/", "/ui/app.js"):
                refused(await api.ask("GET", path, prefix="", token=""), 401, "Unauthorized")
                refused(await api.ask("GET", path, prefix="", token="viewer"), 404, "NotFound")

    asyncio.run(ask())


def test_files_are_read_and_nothing_else() -> None:
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        assert got(app(), "/ui/", method).code == 405


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"host": "evil.example"}, 421),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "http://localhost:1"}, 403),
        ({"sec_fetch_site": "cross-site"}, 403),
        ({"sec_fetch_site": "same-origin", "origin": "http://localhost:8080"}, 200),
    ],
)
def test_pages_of_others_are_refused_here_too(headers: dict[str, str], code: int) -> None:
    assert got(app(), "/ui/", **headers).code == code


LINK = {"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate", "sec_fetch_dest": "document"}


def test_a_link_on_another_site_leads_to_the_start_of_the_page_and_nowhere_else() -> None:
    for path, code in (("/", 307), ("/ui", 307), ("/ui/", 200), ("/ui/app.js", 403),
                       ("/api/docs", 403), ("/api/v1/info", 403)):  # fmt: skip
        assert got(app(), path, **LINK).code == code, path
    for other in ({"sec_fetch_dest": "iframe"}, {"sec_fetch_mode": "no-cors"},
                  {"origin": "http://evil.example"}):  # fmt: skip
        assert got(app(), "/ui/", **(LINK | other)).code == 403, other
    assert got(app(), "/ui/", "POST", **LINK).code == 403
    assert got(app(), "/ui/", **LINK, host="evil.example").code == 421
    assert got(app(has_page=False), "/ui/", **LINK).code == 403


def test_no_script_makes_markup_of_text_or_asks_another_host() -> None:
    """The policy would stop the first in the browser; here it is seen sooner."""
    banned = re.compile(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|createContextualFragment|DOMParser"
        r"|\beval\(|new Function|setHTML|https?://\w|localStorage|document\.cookie"
    )
    found = [
        f"{path}: {match[0]}"
        for path, file in page_files().items()
        if path.endswith(".js")
        for match in banned.finditer(file.content.decode())
    ]
    assert found == [], "make elements with `h` of dom.js; the token stays in sessionStorage"


def test_who_one_is_says_what_one_may_do() -> None:
    async def ask() -> dict[str, set[str]]:
        async with serving("viewer", "operator") as api:
            await api.make_token("operator", "narrow", zones=("z",))
            return {
                who: set((await api.ask("GET", "/info", token=who)).json["rights"])
                for who in ("viewer", "operator", "admin", "narrow")
            }

    rights = asyncio.run(ask())
    assert "objects.write" not in rights["viewer"]
    assert rights["viewer"] < rights["operator"] < rights["admin"]
    assert "objects.write" in rights["narrow"]
    assert "blocking" not in rights["narrow"]


def test_what_is_read_and_written_stands_out_from_what_is_behind_it() -> None:
    """WCAG 2.2: texts 4.5 to 1 (1.4.3), edges of what is written into 3 to 1 (1.4.11)."""
    style = page_files()["/ui/style.css"].content.decode()
    light, dark = re.findall(r":root \{([^}]*--ground[^}]*)\}", style)
    for scheme in (light, dark):
        colours = dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{3,6});", scheme))
        pairs = [(tone, f"{tone}-soft", 4.5) for tone in ("good", "bad", "warn")]
        pairs += [(tone, ground, 4.5) for tone in ("ink", "quiet", "brand")
                  for ground in ("ground", "paper", "soft")]  # fmt: skip
        pairs += [("brand-ink", "brand", 4.5), ("paper", "ink", 4.5), ("paper", "bad", 4.5)]
        pairs += [("edge", ground, 3.0) for ground in ("ground", "paper")]
        for front, back, least in pairs:
            assert contrast(colours[front], colours[back]) >= least, (front, back)


def contrast(one: str, other: str) -> float:
    darker, lighter = sorted((luminance(one), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


def luminance(colour: str) -> float:
    digits = colour[1:] if len(colour) == 7 else "".join(2 * digit for digit in colour[1:])
    shares = [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    linear = [s / 12.92 if s <= 0.04045 else ((s + 0.055) / 1.055) ** 2.4 for s in shares]
    return sum(weight * s for weight, s in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
