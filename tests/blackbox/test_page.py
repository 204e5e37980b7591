"""The web page in a real browser, over a real server."""

import http.client
import json
import unicodedata
import urllib.error
import urllib.request
from pathlib import Path

import dns.message
import dns.name
import dns.query
import pytest

from kudurru.entrypoints.escaping import escape
from tests.blackbox.pages import Served, signed_in
from tests.blackbox.program import serving, wait_until
from tests.browsers import PHONE, Browser

HEADERS = (
    "Cache-Control", "Content-Security-Policy", "Content-Type", "Content-Length", "ETag",
    "Cross-Origin-Opener-Policy", "Referrer-Policy", "X-Content-Type-Options",
)  # fmt: skip
MARKUP = '<img src=x onerror=document.title="pwned">'


def asked(served: Served, *labels: bytes) -> None:
    """A query for a name of any octets."""
    name = dns.name.Name([*labels, b""])
    dns.query.udp(dns.message.make_query(name, "A"), served.server.host, port=served.server.port)


def logged(served: Served, part: str) -> None:
    """Wait until the query log has a name."""
    wait_until(
        lambda: any(part in one["name"] for one in served.ask("GET", "/queries")[1]["items"])
    )


def test_somebody_signs_in_with_a_token_and_out_again(served: Served, browser: Browser) -> None:
    assert served.page == f"http://{served.server.addresses['http']}/ui/"
    tab = browser.open(served.page.removesuffix("ui/"))
    tab.sees("kudurru token create me --role admin")
    tab.write("Token", "kudurru_wrong")
    tab.click("Sign in")
    tab.sees("Unauthorized")
    tab.write("Token", served.tokens["viewer"])
    tab.click("Sign in")
    tab.wait("document.querySelector('nav')")
    assert tab.run("localStorage.length") == 0
    assert served.tokens["viewer"] not in tab.run("location.href")
    tab.click("Sign out")
    tab.sees("kudurru token create me")
    assert tab.run("sessionStorage.length") == 0


def test_a_token_that_is_revoked_leads_back_to_the_sign_in_with_the_reason(
    served: Served, browser: Browser
) -> None:
    code, made = served.ask("POST", "/tokens", {"name": "soon-over", "role": "viewer"})
    assert code == 201
    served.tokens["soon-over"] = made["token"]
    tab = signed_in(browser, served, "soon-over")
    assert served.ask("DELETE", "/tokens/soon-over")[0] == 200
    tab.run("location.hash = '#/zones'")  # what the view before asks may have been refused already
    tab.sees("No token yet?")
    tab.wait("document.querySelector('.note.bad').innerText.length > 10")
    assert tab.run("sessionStorage.length") == 0


def test_the_overview_says_what_was_asked_and_what_the_log_holds(
    served: Served, browser: Browser
) -> None:
    asked(served, b"www", b"demo", b"example")
    logged(served, "www.demo.example")
    tab = signed_in(browser, served)
    tab.sees("answers")
    tab.sees("from zones here")
    tab.sees("www.demo.example")
    tab.sees("Signed up to number")
    tab.sees("Add one under Filtering")


def test_a_name_is_blocked_from_the_query_log_and_the_next_answer_says_so(
    served: Served, browser: Browser
) -> None:
    asked(served, b"ads", b"shop", b"example")
    logged(served, "ads.shop.example")
    tab = signed_in(browser, served, "operator", "queries?name=shop.example")
    tab.click("ads.shop.example A")
    tab.sees("nothing names it")
    tab.click("Block this name")
    tab.write("Reason (optional)", "too many ads")
    tab.click("Block", "dialog")
    tab.sees("a policy denies it")
    assert served.server.texts("ads.shop.example") == ["0.0.0.0"]
    newest = served.ask("GET", "/events?kind=Policy&noStatus=true")[1]["items"][0]
    assert (newest["actor"], newest["reason"]) == ("token:operator", "too many ads")
    tab.click("Allow this name")
    tab.click("Allow", "dialog")
    tab.sees("a policy allows it")
    spec = served.ask("GET", "/namespaces/default/policies/house-rules")[1]["spec"]
    assert (spec.get("deny", []), spec["allow"]) == ([], ["ads.shop.example"])


def test_queries_come_by_themselves_where_that_is_wanted(served: Served, browser: Browser) -> None:
    tab = signed_in(browser, served, view="queries")
    tab.click("Live")
    asked(served, b"later", b"example")
    tab.sees("later.example")


def test_names_that_are_markup_or_move_the_cursor_are_shown_as_text(
    served: Served, browser: Browser
) -> None:
    asked(served, MARKUP.encode(), b"markup", b"example")
    asked(served, b"bell\x07\x1b[31m", b"markup", b"example")
    logged(served, "bell")
    rules = [f"/{MARKUP}\u202edeed/", "/a\x9fb\u200b/"]
    spec = {"deny": rules, "clientGroupRefs": ["nobody"]}
    assert served.ask("PUT", "/namespaces/default/policies/hostile", {"spec": spec})[0] == 201
    tab = signed_in(browser, served, view="queries?name=markup.example")
    tab.sees("onerror")
    tab.sees("bell")
    for name in ("img", "bell"):
        tab.run(
            f"""[...document.querySelectorAll("td button")].find(one =>
            one.innerText.includes("{name}")).click()"""
        )
    tab.wait("document.querySelectorAll('.explained').length === 2")
    hostile = tab.text()
    tab.click("Filtering")
    tab.wait("document.querySelector('details')")
    tab.run("document.querySelectorAll('details').forEach(one => one.open = true)")
    tab.sees("\\u202edeed")
    hostile += tab.text()
    assert "\\u200b" in hostile
    assert "\\x9f" in hostile
    assert [c for c in hostile if not (c.isprintable() or c in "\n\t\xa0")] == []
    assert tab.run("document.images.length") == 0
    assert tab.run("document.title").startswith("Filtering")
    assert served.ask("DELETE", "/namespaces/default/policies/hostile")[0] == 200


def test_a_browser_makes_no_markup_of_text_in_this_page(served: Served, browser: Browser) -> None:
    """The last line: whatever a script of ours should ever do by mistake."""
    tab = signed_in(browser, served)
    fails = "try {{ {} ; 'done' }} catch (error) {{ error.name }}"
    assert tab.run(fails.format("document.body.innerHTML = '<p>x'")) == "TypeError"
    tab.run(
        "document.body.append(Object.assign(document.createElement('img'), {src: 'http://127.0.0.2/'}))"
    )
    tab.wait("true")
    wait_until(lambda: tab.run("1") and len(tab.faults) >= 2)
    assert all("Content Security Policy" in one or "trusted" in one.lower() for one in tab.faults)
    tab.faults.clear()  # they were wanted


def test_a_viewer_is_offered_no_changes_and_leaves_no_refusals_in_the_log(
    served: Served, browser: Browser
) -> None:
    served.ask(
        "PUT",
        "/namespaces/default/blocklists/seen",
        {"spec": {"sources": [{"inline": ["x.example"]}]}},
    )
    tab = signed_in(browser, served, "viewer", "filtering")
    tab.sees("seen")
    tab.sees("Client groups")
    assert tab.run("[...document.querySelectorAll('main button')].map(one => one.innerText)") == []
    tab.click("Overview")
    tab.sees("Names asked most")
    tab.click("Explain")
    tab.write("Name", "any.example")
    tab.click("Explain", "main")
    tab.sees("any.example. A for")
    assert tab.run("[...document.querySelectorAll('main button')].map(one => one.innerText)") == [
        "Explain"
    ]
    assert "Restore" not in tab.text()
    tab.run("location.hash = '#/restore'")
    tab.sees("may not see this")
    denied = served.ask("GET", "/events?type=auth.denied.v1&actor=viewer")[1]["items"]
    assert denied == []
    served.ask("DELETE", "/namespaces/default/blocklists/seen")


def test_a_policy_is_checked_by_the_server_and_its_faults_are_at_their_places(
    served: Served, browser: Browser
) -> None:
    tab = signed_in(browser, served, view="filtering")
    tab.click("New policy")
    tab.write("Name", "strict")
    tab.write(
        "spec", '{"deny": ["fine.example", "not a name"], "priority": 5, "blockTypes": ["NOPE"]}'
    )
    tab.click("Check, then apply")
    tab.sees("spec.deny[1]")
    tab.sees("spec.blockTypes[0]")
    chosen = """(field => field.value.slice(field.selectionStart, field.selectionEnd))(
        document.activeElement)"""
    assert tab.run(chosen) == '"not a name"'
    tab.click("spec.blockTypes[0]")
    assert tab.run(chosen) == '"NOPE"'
    tab.write("spec", '{"deny": ["fine.example"]}')
    tab.click("Check, then apply")
    tab.sees("it would be created")
    assert served.ask("GET", "/namespaces/default/policies/strict")[0] == 404
    tab.click("Check, then apply")
    tab.sees("strict: created")
    assert served.ask("GET", "/namespaces/default/policies/strict")[1]["spec"]["deny"] == [
        "fine.example"
    ]
    tab.click("Remove", "[aria-label='Policies']")
    tab.click("Cancel", "dialog")
    assert served.ask("DELETE", "/namespaces/default/policies/strict")[0] == 200


def test_an_object_that_somebody_changed_meanwhile_is_not_overwritten(
    served: Served, browser: Browser
) -> None:
    path = "/namespaces/default/clientgroups/both"
    served.ask("PUT", path, {"spec": {"clients": [{"ip": "192.0.2.1"}]}})
    tab = signed_in(browser, served, view="filtering")
    tab.click("Edit", "[aria-label='Client groups']")
    served.ask("PUT", path, {"spec": {"clients": [{"ip": "192.0.2.2"}]}})
    tab.write("spec", '{"clients": [{"ip": "192.0.2.3"}]}')
    tab.click("Check, then apply")
    tab.sees("Conflict")
    assert served.ask("GET", path)[1]["spec"]["clients"] == [{"ip": "192.0.2.2"}]
    tab.click("Cancel", "dialog")
    served.ask("DELETE", path)


def test_a_policy_whose_list_is_not_there_says_so(served: Served, browser: Browser) -> None:
    path = "/namespaces/default/policies/dangling"
    assert served.ask("PUT", path, {"spec": {"blockListRefs": ["absent"]}})[0] == 201

    def faulty() -> list[str]:
        conditions = served.ask("GET", path)[1].get("status", {}).get("conditions", [])
        return [
            one["message"] for one in conditions if one["type"] == "Degraded" and one["message"]
        ]

    (message,) = wait_until(faulty)
    tab = signed_in(browser, served, "viewer", "filtering")
    tab.sees(message)
    served.ask("DELETE", path)


def test_a_list_is_subscribed_to_for_a_policy_and_removed_again(
    served: Served, browser: Browser
) -> None:
    tab = signed_in(browser, served, view="filtering")
    tab.click("Add a list")
    tab.write("URL", "http://127.0.0.1:9/ads.txt")  # refused at once: it is private
    tab.write("Name", "invalid-ads")
    tab.click("Add", "dialog")
    tab.sees("invalid-ads is subscribed to")
    tab.click("Refresh")
    tab.sees("default/invalid-ads: fetched now")
    tab.sees("http://127.0.0.1:9/ads.txt")
    tab.sees("failed")
    refs = served.ask("GET", "/namespaces/default/policies/house-rules")[1]["spec"]["blockListRefs"]
    assert refs == ["invalid-ads"]
    tab.click("Remove", "tr:has(.source)")
    tab.click("Remove", "dialog")
    tab.sees("deleted")
    assert served.ask("GET", "/namespaces/default/blocklists/invalid-ads")[0] == 404
    served.ask("DELETE", "/namespaces/default/policies/house-rules")


def test_blocking_is_paused_for_a_while_and_resumed(served: Served, browser: Browser) -> None:
    tab = signed_in(browser, served, "operator", "filtering")
    tab.click("Pause blocking")
    tab.write("For how long", "300")
    tab.write("Reason (optional)", "a film")
    tab.click("Pause", "dialog")
    tab.sees("ends in 5 min")
    assert served.ask("GET", "/blocking")[1]["pauses"][0]["group"] == ""
    tab.click("Resume")
    tab.click("Resume", "dialog")
    tab.wait("!document.body.innerText.includes('ends in')")
    assert served.ask("GET", "/blocking")[1]["pauses"] == []


HOLD = """(() => { const real = window.fetch; window.held = [];
    window.fetch = (...given) => new Promise(begin => held.push(() => begin(real(...given))));
    window.release = () => { window.fetch = real; held.forEach(begin => begin()); }; })()"""
"""Whatever the page asks waits for `release()`."""


def test_a_view_that_comes_late_takes_no_focus_from_who_went_on(
    served: Served, browser: Browser
) -> None:
    tab = signed_in(browser, served, "operator")
    tab.sees("Busiest clients")
    tab.run(HOLD)
    tab.go(f"{served.page}#/zones")
    tab.wait("held.length && document.title.startsWith('Zones')")
    tab.tab_to("History")
    tab.run("release()")
    tab.sees("demo.example")
    tab.wait("document.querySelector('main h1')?.innerText === 'Zones'")
    assert tab.run("document.activeElement.innerText") == "History"


def test_it_is_used_with_the_keyboard_alone(served: Served, browser: Browser) -> None:
    tab = browser.open(served.page)
    tab.wait("document.activeElement?.name === 'token'")
    tab.type(served.tokens["operator"])
    tab.press("Enter")
    tab.wait("document.querySelector('nav')")
    tab.tab_to("Filtering")
    tab.press("Enter")
    tab.wait(
        "document.activeElement?.innerText === 'Filtering' && document.activeElement.matches('h1')"
    )
    tab.tab_to("Pause blocking")
    tab.press("Space")
    tab.wait("document.querySelector('dialog')?.contains(document.activeElement)")
    tab.press("Escape")
    tab.wait("document.activeElement?.innerText === 'Pause blocking'")
    assert served.ask("GET", "/blocking")[1]["pauses"] == []


def test_a_text_that_is_no_json_is_refused_where_it_stands(
    served: Served, browser: Browser
) -> None:
    tab = signed_in(browser, served, view="filtering")
    tab.click("New client group")
    tab.write("Name", "broken")
    tab.write("spec", "{clients: 1")
    tab.click("Check, then apply")
    tab.sees("the text is no JSON")


def test_nothing_is_wider_than_a_phone(served: Served, browser: Browser) -> None:
    tab = signed_in(browser, served)
    tab.size(*PHONE, dark=True)
    for view in ("Overview", "Query log", "Filtering", "Explain"):
        tab.click(view, "nav")
        tab.wait(f"document.querySelector('main h1')?.innerText === {json.dumps(view)}")
        assert tab.run("document.documentElement.scrollWidth") <= PHONE[0], view


def test_texts_are_escaped_as_the_command_line_escapes_them(
    served: Served, browser: Browser
) -> None:
    """But for letters of CJK, and for what only one of Python and the browser knows yet."""
    places = (range(0x3100), range(0xE000, 0xE100), range(0xF900, 0x10800), range(0xE0000, 0xE0200))
    codes = [c for place in places for c in place if unicodedata.category(chr(c)) != "Cn"]
    expected = json.dumps([[c, escape(chr(c))] for c in codes])
    tab = browser.open(served.page)
    tab.sees("Sign in")
    unlike = tab.run(
        f"""import("/ui/dom.js").then(({{escape}}) => {expected}.filter(([code, text]) =>
        escape(String.fromCodePoint(code)) !== text).slice(0, 9))"""
    )
    assert unlike == []
    assert tab.run("import('/ui/dom.js').then(dom => dom.escape('a\\ud800b'))") == "a\\ud800b"


def test_files_go_over_the_wire_with_their_headers_once(served: Served) -> None:
    connection = http.client.HTTPConnection(served.server.addresses["http"], timeout=30)
    tag, found = "", {}
    for method, code in (("GET", 200), ("HEAD", 200), ("GET", 304)):
        sent = {"If-None-Match": tag} if code == 304 else {}
        connection.request(method, "/ui/app.js", headers=sent)
        response = connection.getresponse()
        body, headers = response.read(), response.headers
        assert (response.status, bool(body)) == (code, (method, code) == ("GET", 200))
        for name in HEADERS:
            assert len(headers.get_all(name, [])) == 1, name
        tag = headers["ETag"]
        found[code] = {name: headers[name] for name in HEADERS}
    connection.close()
    assert found[304] == found[200]
    assert found[200]["Cache-Control"] == "no-cache"
    assert found[200]["Referrer-Policy"] == "no-referrer"
    assert found[200]["X-Content-Type-Options"] == "nosniff"


def test_a_server_may_have_no_page(tmp_path: Path) -> None:
    with serving(tmp_path / "data", env={"KUDURRU__API__PAGE": "false"}) as server:
        assert "page" not in server.addresses
        for path in ("/", "/ui/"):
            with pytest.raises(urllib.error.HTTPError) as caught:
                urllib.request.urlopen(f"http://{server.addresses['http']}{path}")
            assert caught.value.code == 401
            caught.value.close()
