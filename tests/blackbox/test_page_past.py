"""Restore, deleted objects, the history and the chain, in the page of a real server."""

from tests.blackbox.pages import Served, signed_in
from tests.blackbox.test_page_zones import applied, is_left, opened
from tests.browsers import PHONE, Browser


def test_a_zone_goes_back_to_a_moment_by_a_plan_that_was_shown(
    served: Served, browser: Browser
) -> None:
    then = applied(served, "back.example", host="192.0.2.1")
    applied(served, "back.example", host="192.0.2.2", more="192.0.2.3")
    tab = signed_in(browser, served, view="zones/back.example")
    tab.click("Restore", "main")
    tab.write("Moment", str(then))
    tab.click("Show what would change")
    tab.sees(f"To position {then}")
    tab.sees('- spec.endpoints[0].targets[0]: "192.0.2.2"')
    tab.sees('+ spec.endpoints[0].targets[0]: "192.0.2.1"')
    assert served.server.texts("host.back.example") == ["192.0.2.2"]
    tab.click("Restore", ".plan + .actions")
    tab.write("Type the beginning of the plan's digest", "00000000")
    tab.click("Restore", "dialog")
    tab.sees("not the digest of this plan")
    digest = tab.run("document.querySelector('dialog code').innerText")
    tab.write("Type the beginning of the plan's digest", digest[:8])
    tab.write("Reason (optional)", "the move failed")
    tab.click("Restore", "dialog")
    tab.sees("Restored: recorded at position")
    assert served.server.texts("host.back.example") == ["192.0.2.1"]
    assert served.server.texts("more.back.example") == ["NXDOMAIN"]
    newest = served.ask("GET", "/events?zone=back.example&type=obj.applied.v1&limit=1")[1]["items"]
    assert newest[0]["reason"] == "the move failed"


def test_a_plan_that_is_not_so_any_more_is_not_carried_out(
    served: Served, browser: Browser
) -> None:
    then = applied(served, "stale.example", host="192.0.2.1")
    applied(served, "stale.example", host="192.0.2.2")
    tab = signed_in(browser, served, "operator", f"restore?zone=stale.example&at={then}")
    tab.click("Show what would change")
    tab.click("Restore", ".plan + .actions")
    digest = tab.run("document.querySelector('dialog code').innerText")
    applied(served, "stale.example", host="192.0.2.3")
    tab.write("Type the beginning of the plan's digest", digest)
    tab.click("Restore", "dialog")
    tab.sees("the plan is stale")
    assert served.server.texts("host.stale.example") == ["192.0.2.3"]


def test_what_was_deleted_is_listed_and_brought_back(served: Served, browser: Browser) -> None:
    applied(served, "gone.example", host="192.0.2.1")
    tab = signed_in(browser, served, view="zones/gone.example")
    tab.click("Delete", ".heading")
    tab.write("Reason (optional)", "by mistake")
    tab.click("Remove", "dialog")
    tab.wait("location.hash === '#/zones'")
    assert served.ask("GET", "/dnszones/gone.example")[0] == 404
    tab.click("Restore", "nav")
    tab.sees("by mistake")
    tab.click("Bring back", "[aria-label='Deleted objects']")
    tab.click("Bring back", "dialog")
    is_left(tab)
    tab.wait("!document.body.innerText.includes('by mistake')")
    assert served.server.texts("host.gone.example") == ["192.0.2.1"]


def test_an_object_is_shown_as_it_was_and_brought_back_where_it_is_gone(
    served: Served, browser: Browser
) -> None:
    then = applied(served, "was.example", host="192.0.2.1")
    path = "/namespaces/default/dnsrecordsets/host.was.example"
    applied(served, "was.example", host="192.0.2.2")
    tab = signed_in(browser, served, view="objects/dnsrecordsets/default/host.was.example")
    tab.sees('"192.0.2.2"')
    tab.run(f"document.querySelector('[name=at]').value = '{then}'")
    tab.click("As it was then")
    tab.sees(f"As it was at {then}")
    tab.sees('+ spec.endpoints[0].targets[0]: "192.0.2.2"')
    assert served.ask("DELETE", path)[0] == 200
    tab.click("As it is now", "form")
    tab.sees("It is not there now")
    tab.click("Bring it back")
    tab.click("Bring back", "dialog")
    is_left(tab)
    tab.sees("As it is now")
    assert served.ask("GET", path)[1]["spec"]["endpoints"][0]["targets"] == ["192.0.2.2"]


def test_an_undo_of_what_was_changed_again_says_so_and_does_nothing(
    served: Served, browser: Browser
) -> None:
    applied(served, "again.example", host="192.0.2.1")
    applied(served, "again.example", host="192.0.2.2")
    applied(served, "again.example", host="192.0.2.3")
    tab = signed_in(browser, served, view="history?name=host.again.example&kind=DNSRecordSet")
    tab.wait("document.querySelectorAll('.event').length === 3")
    tab.run("document.querySelectorAll('.event')[1].open = true")
    tab.click("Undo this change")
    tab.sees("changed since, last at position")
    tab.click("Close", "dialog")
    assert served.server.texts("host.again.example") == ["192.0.2.3"]


def test_history_is_filtered_and_comes_by_itself_where_that_is_wanted(
    served: Served, browser: Browser
) -> None:
    applied(served, "live.example", host="192.0.2.1")
    applied(served, "other.example")
    tab = signed_in(browser, served, view="history")
    tab.click("Filter", "main")
    tab.write("Zone", "live.example")
    tab.click("Filter", "form")
    tab.sees("Filter (set)")
    tab.sees("dnszone/live.example")
    assert "other.example" not in tab.text()
    tab.run("document.querySelector('[name=live]').click()")
    applied(served, "live.example", later="192.0.2.2")
    tab.sees("dnsrecordset/default/later.live.example")
    tab.run("location.hash = '#/history?type=auth.login.v1'")
    tab.sees("came in")
    opened(tab, "came in")


def test_the_log_is_verified_and_its_export_is_offered_to_who_may(
    served: Served, browser: Browser
) -> None:
    tab = signed_in(browser, served, view="history")
    tab.click("Verify")
    tab.sees("Last checkpoint")
    tab.click("Verify all of it")
    tab.sees("rows are consistent: every row")
    tab.click("Export")
    tab.write("until", "5")
    tab.call("Browser.setDownloadBehavior", behavior="deny")
    tab.click("Save as a file", "dialog")
    is_left(tab)
    acted = served.ask("GET", "/events?type=auth.acted.v1")[1]["items"]
    assert acted[0]["actor"] == "token:admin"
    tab = signed_in(browser, served, "operator", "history")
    tab.sees("Verify")
    assert "Export" not in tab.text()


def test_a_moment_gets_a_name(served: Served, browser: Browser) -> None:
    tab = signed_in(browser, served, view="restore")
    tab.click("Mark this moment")
    tab.write("Name", "before-the-move")
    tab.click("Mark", "dialog")
    tab.wait("document.querySelector('#moments option')?.value === 'mark:before-the-move'")


def test_nothing_is_wider_than_a_phone(served: Served, browser: Browser) -> None:
    applied(served, "phone.example", **{"a-long-name-of-a-host" * 2: "192.0.2.1"})
    tab = signed_in(browser, served)
    tab.size(*PHONE, dark=True)
    for view, text in (
        ("zones", "phone.example"),
        ("zones/phone.example", "192.0.2.1"),
        ("history", "created"),
        ("restore", "Go back"),
        ("objects/dnszones/-/phone.example", "As it is now"),
    ):
        tab.run(f"location.hash = '#/{view}'")
        tab.sees(text)
        assert tab.run("document.documentElement.scrollWidth") <= PHONE[0], view
