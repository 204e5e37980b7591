"""Zones, records, their history and their way back, in the page of a real server."""

import json
from typing import Any

from tests.blackbox.pages import Served, signed_in
from tests.blackbox.program import wait_until
from tests.browsers import Browser, Tab
from tests.primaries import Script, SocketPrimary, whole

MARKUP = '<img src=x onerror=document.title="pwned">'
HOSTILE = MARKUP + "\x07\x1b[31m\u202edeed\x9f"

ZONE_FILE = """\
$ORIGIN file.example.
$TTL 60
@ IN SOA ns1 hostmaster 2024010203 7200 900 1209600 300
@ IN NS ns1
ns1 IN A 192.0.2.53
web IN A 192.0.2.80
"""


def applied(served: Served, zone: str, **addresses: str) -> int:
    """A zone, with hosts of it. The position of that."""
    objects: list[dict[str, Any]] = [
        {"apiVersion": "kudurru.io/v1alpha1", "kind": "DNSZone", "metadata": {"name": zone},
         "spec": {"zoneName": zone}},
    ]  # fmt: skip
    objects += [
        {"apiVersion": "kudurru.io/v1alpha1", "kind": "DNSRecordSet",
         "metadata": {"name": f"{host}.{zone}", "namespace": "default"},
         "spec": {"zoneRef": {"name": zone}, "endpoints": [
             {"dnsName": f"{host}.{zone}", "recordType": "A", "targets": [address]}]}}
        for host, address in addresses.items()
    ]  # fmt: skip
    code, done = served.ask("POST", "/batch", {"apply": objects})
    assert code == 200, done
    return int(done["position"])


def is_left(tab: Tab) -> None:
    """Until no dialog is open."""
    tab.wait("!document.querySelector('dialog')")


def press(tab: Tab, label: str) -> None:
    """The button or link that is called so to those who do not see it."""
    found = f"document.querySelector({json.dumps(f'[aria-label={json.dumps(label)}]')})"
    tab.wait(found)
    tab.run(f"{found}.click()")


def opened(tab: Tab, text: str) -> None:
    """The newest event with this text, with what it changed."""
    found = f"""[...document.querySelectorAll(".event")].find(one =>
        one.innerText.includes({json.dumps(text)}))"""
    tab.wait(found)
    tab.run(f"{found}.open = true")
    tab.wait(f"{found}.querySelector('.facts')")


def test_a_zone_and_a_record_are_made_changed_told_of_and_taken_back(
    served: Served, browser: Browser
) -> None:
    ask = served.server.texts
    tab = signed_in(browser, served, view="zones")
    tab.click("Add a zone")
    tab.write("Its DNS name", "home.arpa")
    tab.click("Add", "dialog")
    tab.sees("There are no records yet")
    tab.click("Add a record")
    tab.write("Name", "nas")
    tab.write("Data", "192.0.2.7")
    tab.write("Reason (optional)", "a new disk station")
    tab.click("Save", "dialog")
    is_left(tab)
    assert ask("nas.home.arpa") == ["192.0.2.7"]
    press(tab, "Edit nas A")
    tab.write("Data", "192.0.2.8\n192.0.2.9")
    tab.write("Reason (optional)", "it moved")
    tab.click("Save", "dialog")
    is_left(tab)
    assert ask("nas.home.arpa") == ["192.0.2.8", "192.0.2.9"]
    press(tab, "History of nas A")
    tab.sees("a new disk station")
    opened(tab, "it moved")
    tab.sees("token:admin as kudurru")
    tab.sees('- spec.endpoints[0].targets: ["192.0.2.7"]')
    tab.sees('+ spec.endpoints[0].targets: ["192.0.2.8","192.0.2.9"]')
    tab.click("Undo this change")
    tab.sees("changes or removes 2 records, changes or adds 1 record")
    tab.click("Undo", "dialog")
    is_left(tab)
    assert ask("nas.home.arpa") == ["192.0.2.7"]
    newest = served.ask("GET", "/events?kind=DNSRecordSet&name=nas.home.arpa&noStatus=true")[1]
    assert [one["reason"] for one in newest["items"]] == ["", "it moved", "a new disk station"]
    assert newest["items"][0]["cause"].startswith("undo:")


def test_a_second_type_of_a_name_goes_into_the_object_that_has_the_name(
    served: Served, browser: Browser
) -> None:
    applied(served, "two.example", host="192.0.2.1")
    tab = signed_in(browser, served, view="zones/two.example")
    tab.click("Add a record")
    tab.write("Name", "host")
    tab.write("Type", "AAAA")
    tab.write("Data", "2001:db8::1")
    tab.click("Save", "dialog")
    is_left(tab)
    spec = served.ask("GET", "/namespaces/default/dnsrecordsets/host.two.example")[1]["spec"]
    assert [one["recordType"] for one in spec["endpoints"]] == ["A", "AAAA"]
    press(tab, "Delete host A")
    tab.click("Delete", "dialog")
    is_left(tab)
    assert served.server.texts("host.two.example") == []
    press(tab, "Delete host AAAA")
    tab.click("Delete", "dialog")
    is_left(tab)
    assert served.server.texts("host.two.example") == ["NXDOMAIN"]
    assert served.ask("GET", "/namespaces/default/dnsrecordsets/host.two.example")[0] == 404


def test_what_the_server_finds_wrong_is_at_its_field_and_nothing_is_written(
    served: Served, browser: Browser
) -> None:
    applied(served, "fault.example")
    tab = signed_in(browser, served, view="zones/fault.example")
    tab.click("Add a record")
    tab.write("Name", "a..b")
    tab.write("Data", "192.0.2.1\nnonsense")
    tab.click("Save", "dialog")
    tab.sees("line 2: 'nonsense' is not an IPv4 address")
    assert tab.run("document.querySelectorAll('[aria-invalid]').length") == 2
    tab.write("Name", "elsewhere.example.")
    tab.write("Data", "192.0.2.1")
    tab.click("Save", "dialog")
    tab.sees("is outside the zone")
    tab.click("Cancel", "dialog")
    found = served.ask("GET", "/dnszones/fault.example/records")[1]["items"]
    assert [one["recordType"] for one in found] == ["SOA"]


def test_two_people_cannot_overwrite_each_other(served: Served, browser: Browser) -> None:
    applied(served, "both.example", host="192.0.2.1")
    first, second = (
        signed_in(browser, served, role, "zones/both.example") for role in ("admin", "operator")
    )
    for tab, address in ((first, "192.0.2.10"), (second, "192.0.2.20")):
        press(tab, "Edit host A")
        tab.write("Data", address)
    second.write("Reason (optional)", "the operator was first")
    second.click("Save", "dialog")
    is_left(second)
    first.click("Save", "dialog")
    first.sees("somebody else changed it meanwhile")
    first.sees("token:operator")
    first.sees("the operator was first")
    assert served.server.texts("host.both.example") == ["192.0.2.20"]
    first.click("Look at it as it is now", "dialog")
    first.sees('"192.0.2.20"')


def test_a_change_of_most_of_a_zone_is_refused_until_somebody_means_it(
    served: Served, browser: Browser
) -> None:
    hosts = {f"h{i}": f"192.0.2.{i}" for i in range(12)}
    applied(served, "mass.example", **hosts)
    tab = signed_in(browser, served, view="zones")
    tab.click("Import a zone file")
    text = ZONE_FILE.replace("file.example", "mass.example")
    tab.write("or its text", text)
    tab.run("document.querySelector('[name=replace]').click()")
    tab.click("Import", "dialog")
    tab.sees("deleted 12")
    tab.click("Import", "dialog")
    tab.sees("MassChange")
    assert served.server.texts("h1.mass.example") == ["192.0.2.1"]
    tab.run("document.getElementById('insist').click()")
    tab.click("Import", "dialog")
    is_left(tab)
    assert served.server.texts("h1.mass.example") == ["NXDOMAIN"]
    assert served.server.texts("web.mass.example") == ["192.0.2.80"]


def test_records_of_others_are_shown_and_not_offered_to_be_changed(
    served: Served, browser: Browser
) -> None:
    script = Script()
    script.steps["sec.example"] = whole(10, 'www 60 TXT "one"', timers="3600 600 86400 60")
    with SocketPrimary(script).serving() as primary:
        tab = signed_in(browser, served, view="zones")
        tab.click("Add a zone")
        tab.write("Its DNS name", "sec.example")
        tab.write("Type", "Secondary")
        tab.write("Addresses of its primaries", f"127.0.0.1:{primary.port}")
        tab.click("Add", "dialog")
        tab.sees("is no IP address")
        tab.click("Cancel", "dialog")
        primaries = [{"address": "127.0.0.1", "port": primary.port}]
        spec = {
            "zoneName": "sec.example",
            "type": "Secondary",
            "secondary": {"primaries": primaries},
        }
        assert served.ask("PUT", "/dnszones/sec.example", {"spec": spec})[0] == 201
        wait_until(lambda: served.server.texts("www.sec.example", "TXT") == ['"one"'])
        tab.run("location.hash = '#/zones/sec.example'")
        tab.sees('"one"')
        tab.sees("fetched from")
        assert tab.run("document.querySelectorAll('.row-actions button').length") == 0
        assert tab.run("document.querySelectorAll('tbody tr').length") == 3  # SOA, NS, TXT
        assert "Add a record" not in tab.text()
        assert served.ask("DELETE", "/dnszones/sec.example")[0] == 200


def test_a_zone_file_is_read_by_the_server_shown_and_then_imported(
    served: Served, browser: Browser
) -> None:
    tab = signed_in(browser, served, view="zones")
    tab.click("Import a zone file")
    tab.write("or its text", ZONE_FILE + "web IN A nonsense\n")
    tab.click("Import", "dialog")
    tab.sees("line:7")
    tab.write("or its text", ZONE_FILE)
    tab.click("Import", "dialog")
    tab.sees("created 3")
    assert served.ask("GET", "/dnszones/file.example")[0] == 404
    tab.click("Import", "dialog")
    tab.wait("location.hash === '#/zones/file.example'")
    tab.sees("192.0.2.80")
    assert served.server.texts("web.file.example") == ["192.0.2.80"]
    assert served.server.texts("file.example", "SOA")[0].split()[2] == "2024010203"


def test_texts_of_records_and_reasons_that_are_markup_or_move_the_cursor_are_shown_as_text(
    served: Served, browser: Browser
) -> None:
    applied(served, "hostile.example")
    spec = {
        "zoneRef": {"name": "hostile.example"},
        "endpoints": [
            {"dnsName": "text.hostile.example", "recordType": "TXT", "targets": [MARKUP]},
            {"dnsName": r"\007\027[31m.hostile.example", "recordType": "A",
             "targets": ["192.0.2.1"]},
        ],
    }  # fmt: skip
    labels = {"spec": spec, "metadata": {"annotations": {"note": HOSTILE}}}
    query = "?reason=" + "%3Cimg+src%3Dx+onerror%3Dalert(1)%3E%07%E2%80%AEdeed"
    code, done = served.ask("PUT", f"/namespaces/default/dnsrecordsets/hostile{query}", labels)
    assert code == 201, done
    tab = signed_in(browser, served, view="zones/hostile.example")
    tab.sees("onerror")
    shown = tab.text()
    tab.run("location.hash = '#/objects/dnsrecordsets/default/hostile'")
    tab.sees("As it is now")
    opened(tab, "onerror=alert(1)")
    tab.sees("+ annotations")
    shown += tab.text()
    tab.run("location.hash = '#/history?zone=hostile.example'")
    tab.sees("onerror=alert(1)")
    shown += tab.text()
    assert "\\u202e" in shown
    assert [c for c in shown if not (c.isprintable() or c in "\n\t\xa0")] == []
    assert tab.run("document.images.length") == 0
    assert tab.run("document.title").startswith("History")


def test_a_viewer_reads_everything_and_is_offered_no_changes(
    served: Served, browser: Browser
) -> None:
    applied(served, "seen.example", host="192.0.2.1")
    tab = signed_in(browser, served, "viewer", "zones")
    buttons = "[...document.querySelectorAll('main button')].map(one => one.innerText)"
    tab.sees("seen.example")
    assert tab.run(buttons) == []
    tab.click("seen.example")
    tab.sees("192.0.2.1")
    assert tab.run(buttons) == ["Export", "Search"]
    press(tab, "History of host A")
    opened(tab, "created")
    assert tab.run(buttons) == ["As it was then"]
    tab.run("location.hash = '#/history?zone=seen.example'")
    tab.sees("Filter (set)")
    opened(tab, "created")
    tab.click("Verify")
    tab.sees("Last checkpoint")
    assert tab.run(buttons) == ["Verify", "Filter"]
    denied = served.ask("GET", "/events?type=auth.denied.v1&actor=viewer")[1]["items"]
    assert denied == []


def test_a_token_that_is_limited_to_a_zone_changes_its_records_and_makes_no_zones(
    served: Served, browser: Browser
) -> None:
    applied(served, "mine.example", host="192.0.2.1")
    wanted = {"name": "mine", "role": "operator", "zones": ["mine.example"]}
    served.tokens["mine"] = served.ask("POST", "/tokens", wanted)[1]["token"]
    tab = signed_in(browser, served, "mine", "zones")
    tab.sees("mine.example")
    assert "demo.example" not in tab.text()
    assert "Add a zone" not in tab.text()
    tab.click("mine.example")
    press(tab, "Edit host A")
    offered = tab.run("[...document.querySelectorAll('.heading button')].map(one => one.innerText)")
    assert offered == ["Add a record", "Settings", "Export"]
    tab.write("Data", "192.0.2.2")
    tab.click("Save", "dialog")
    is_left(tab)
    assert served.server.texts("host.mine.example") == ["192.0.2.2"]
