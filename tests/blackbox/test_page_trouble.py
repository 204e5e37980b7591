"""The web page where something is wrong: servers that are away, clocks, links, limited tokens."""

import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import dns.message
import dns.query
import pytest

from tests.blackbox.pages import Served, signed_in
from tests.blackbox.program import wait_until
from tests.browsers import Browser, Tab, driving

AHEAD_MS = 2 * 3_600_000
BAD_GATEWAY = """window.fetch = async () => new Response("<h1>Bad gateway</h1>", {
    status: 502, headers: {"Content-Type": "text/html"}})"""

REPLAYS = """(real => { window.fetch = async () => {
    window.fetch = real;
    const said = {reason: "NotSynced", message: "the log is being replayed"};
    return Response.json(said, {status: 503});
}; })(window.fetch)"""
"""A server that was started just now, for one request."""


def go_offline(tab: Tab, *, is_away: bool) -> None:
    tab.call("Network.enable")
    tab.call(
        "Network.emulateNetworkConditions",
        offline=is_away, latency=0, downloadThroughput=-1, uploadThroughput=-1,
    )  # fmt: skip


def ask_for(served: Served, *names: str) -> None:
    for name in names:
        query = dns.message.make_query(name, "A")
        dns.query.udp(query, served.server.host, port=served.server.port)


def limited(served: Served, name: str, **limits: list[str]) -> None:
    code, made = served.ask("POST", "/tokens", {"name": name, "role": "operator", **limits})
    assert code == 201, made
    served.tokens[name] = made["token"]


def test_a_server_that_is_away_is_said_to_be_and_what_failed_is_shown_when_it_is_back(
    served: Served, browser: Browser
) -> None:
    tab = signed_in(browser, served, view="queries")
    tab.click("Live")
    go_offline(tab, is_away=True)
    tab.sees("What is shown is from before")
    tab.click("Zones")
    tab.sees("Unreachable")
    go_offline(tab, is_away=False)
    tab.sees("demo.example")
    tab.wait("!document.body.innerText.includes('What is shown is from before')")
    assert "Unreachable" not in tab.text()


def test_the_query_log_goes_on_by_itself_after_the_server_was_away(
    served: Served, browser: Browser
) -> None:
    tab = signed_in(browser, served, view="queries")
    tab.click("Live")
    go_offline(tab, is_away=True)
    tab.sees("What is shown is from before")
    ask_for(served, "meanwhile.demo.example")
    go_offline(tab, is_away=False)
    tab.sees("meanwhile.demo.example")


def test_a_token_is_tried_again_where_the_server_said_nothing_of_it(
    served: Served, browser: Browser
) -> None:
    tab = signed_in(browser, served)
    tab.call("Page.addScriptToEvaluateOnNewDocument", source=REPLAYS)
    tab.call("Page.reload")
    tab.sees("NotSynced: the log is being replayed")
    tab.click("Try again")
    tab.wait("document.querySelector('nav')")


@pytest.mark.parametrize("token", ["kudurru_admin…", "two words", "tökən"])
def test_a_text_that_no_header_holds_is_no_token(
    served: Served, browser: Browser, token: str
) -> None:
    tab = browser.open(served.page)
    tab.write("Token", token)
    tab.click("Sign in")
    tab.sees("that is no token")
    assert tab.run("sessionStorage.length") == 0


def test_an_answer_of_a_proxy_in_front_is_told_and_not_shown(
    served: Served, browser: Browser
) -> None:
    tab = signed_in(browser, served, view="zones")
    tab.sees("demo.example")
    tab.run(BAD_GATEWAY)
    tab.click("History")
    tab.sees("(HTTP 502) is not kudurru")
    assert "Bad gateway" not in tab.text()


@pytest.mark.parametrize("ahead_ms", [AHEAD_MS, -AHEAD_MS])
def test_ages_are_of_the_servers_clock(served: Served, browser: Browser, ahead_ms: int) -> None:
    ask_for(served, "when.demo.example")
    tab = browser.open()
    tab.call(
        "Page.addScriptToEvaluateOnNewDocument",
        source=f"(now => {{ Date.now = () => now() + {ahead_ms}; }})(Date.now)",
    )
    tab.go(f"{served.page}#/history")
    tab.write("Token", served.tokens["admin"])
    tab.click("Sign in")
    tab.wait("document.querySelector('.event time')")
    assert "2 h" not in tab.run("document.querySelector('.event time').innerText")


def test_ages_grow_while_a_page_is_open(served: Served, browser: Browser) -> None:
    tab = signed_in(browser, served, view="history")
    tab.wait("document.querySelector('.event time')")
    before = tab.run("document.querySelector('.event time').innerText")
    tab.wait(f"document.querySelector('.event time').innerText !== {before!r}")


def test_a_dialog_does_not_outlive_its_view(served: Served, browser: Browser) -> None:
    tab = signed_in(browser, served, view="filtering")
    tab.click("Zones")
    tab.click("Add a zone")
    assert (
        tab.run(
            "(one => document.getElementById(one.getAttribute('aria-labelledby')).innerText)"
            "(document.querySelector('dialog'))"
        )
        == "Add a zone"
    )
    tab.run("history.back()")
    tab.sees("Client groups")
    assert tab.run("document.querySelectorAll('dialog').length") == 0


def test_a_token_of_some_zones_is_offered_nothing_of_lists_and_policies(
    served: Served, browser: Browser
) -> None:
    limited(served, "zoned", zones=["demo.example"])
    tab = signed_in(browser, served, "zoned")
    tab.sees("answers")
    tab.wait("document.querySelectorAll('.card').length > 1")
    assert "Filtering" not in tab.text()
    tab.run("location.hash = '#/filtering'")
    tab.sees("limited to zones may not see this")


def test_what_a_token_of_a_namespace_makes_is_in_it(served: Served, browser: Browser) -> None:
    limited(served, "family", namespaces=["family"])
    tab = signed_in(browser, served, "family", "filtering")
    tab.sees("No policy is in the namespaces of your token")
    assert "nothing is blocked" not in tab.text()
    tab.click("Block a name")
    tab.write("Name", "ads.example")
    tab.click("Block", "dialog")
    tab.sees("created: family/house-rules")
    tab.click("Add a list")
    tab.write("URL", "http://127.0.0.1:9/ads.txt")
    tab.write("Name", "family-ads")
    tab.click("Add", "dialog")
    tab.sees("family-ads is subscribed to")
    policy = served.ask("GET", "/namespaces/family/policies/house-rules")[1]
    assert policy["spec"]["deny"] == ["ads.example"]
    assert policy["spec"]["blockListRefs"] == ["family-ads"]
    assert served.ask("DELETE", "/namespaces/family/policies/house-rules")[0] == 200
    assert served.ask("DELETE", "/namespaces/family/blocklists/family-ads")[0] == 200


def test_a_policy_of_another_manager_is_taken_over_where_that_is_agreed_to(
    served: Served, browser: Browser
) -> None:
    path = "/namespaces/default/policies/of-a-script"
    assert (
        served.ask("PUT", f"{path}?fieldManager=script", {"spec": {"deny": ["x.example"]}})[0]
        == 201
    )
    tab = signed_in(browser, served, view="filtering")
    tab.click("Block a name")
    tab.write("Name", "y.example")
    tab.write("Policy", "default/of-a-script")
    tab.click("Block", "dialog")
    tab.click("Take it over from script")
    tab.click("Block", "dialog")
    tab.sees("default/of-a-script")
    wait_until(lambda: served.ask("GET", path)[1]["spec"]["deny"] == ["x.example", "y.example"])
    assert served.ask("DELETE", path)[0] == 200


def test_queries_of_a_busy_second_are_all_gone_through(served: Served, browser: Browser) -> None:
    names = [f"n{i}.busy.demo.example" for i in range(250)]
    ask_for(served, *names)

    def is_logged() -> bool:
        items = served.ask("GET", "/queries?name=busy.demo.example&limit=1000")[1]["items"]
        return len(items) == len(names)

    wait_until(is_logged)
    tab = signed_in(browser, served, view="queries?name=busy.demo.example")
    tab.wait("document.querySelectorAll('tbody tr').length === 100")
    tab.click("Older")
    tab.wait("document.querySelectorAll('tbody tr').length > 100")
    while tab.run("document.querySelector('.older button:enabled')?.innerText") == "Older":
        before = tab.run("document.querySelectorAll('tbody tr').length")
        tab.click("Older")
        tab.wait(
            f"document.querySelectorAll('tbody tr').length > {before}"
            " || !document.querySelector('.older')"
        )
    assert tab.run("document.querySelectorAll('tbody tr').length") == len(names)


def test_a_viewer_is_told_when_the_query_log_may_be_read(served: Served, browser: Browser) -> None:
    tab = signed_in(browser, served, "viewer", "queries")
    tab.sees("querylog.privacyLevel is 2 or more")


# --- links of others ------------------------------------------------------------------------


@contextmanager
def page_of_others(content: str) -> Iterator[str]:
    """Another program of this host, with a page."""

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(content.encode())

        def log_message(self, *_args: object) -> None:
            """Nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_link_of_another_page_leads_here_and_a_frame_does_not(
    served: Served, tmp_path: Path
) -> None:
    content = f'<a href="{served.page}">dns</a><iframe src="{served.page}"></iframe>'
    with page_of_others(content) as other, driving(tmp_path) as browser:
        tab = browser.open(other)
        tab.wait("document.querySelector('iframe')")
        frames = tab.call("Page.getFrameTree")["frameTree"]["childFrames"]
        assert len(frames) == 1
        tab.click("dns")
        tab.sees("No token yet?")
        assert tab.run("location.href") == served.page
        tab.faults.clear()  # the frame's
