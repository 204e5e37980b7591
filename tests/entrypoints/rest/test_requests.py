"""What a request may be: who asks by which name, what a body and a URL hold, how much at once."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kudurru.adapters.http_api import Request
from kudurru.adapters.http_ops import Response
from kudurru.adapters.memory.clock import ManualClock
from kudurru.domain.errors import KudurruError
from kudurru.domain.events import AUTH_DENIED, AUTH_LOGIN
from kudurru.domain.kinds.validation import CAUSES_MAX
from kudurru.domain.objects import key_of
from kudurru.entrypoints import access_log
from kudurru.entrypoints.rest import calls
from kudurru.entrypoints.rest.app import IN_FLIGHT_MAX, all_routes
from kudurru.entrypoints.rest.calls import ASIDE_MIN, DEPTH_MAX, read_json
from kudurru.entrypoints.rest.routes import PREFIX, Router, segments
from kudurru.entrypoints.rest.status import BadRequest
from tests.api import LOCAL, Answer, Api, refused, serving
from tests.nodes import TESTER

PATH = "/namespaces/default/dnsrecordsets/www"
BODY: dict[str, Any] = {"spec": {"zoneRef": {"name": "z"}, "endpoints": []}}


def on_api(ask: Callable[[Api], Awaitable[Any]], **how: Any) -> Any:
    async def asked() -> Any:
        async with serving("viewer", **how) as api:
            return await ask(api)

    return asyncio.run(asked())


# --- who asks -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:80", "127.0.0.1:1", "[::1]:80", "ns1.example", "NS1.example:9"]
)  # fmt: skip
def test_a_host_of_ours_is_answered(host: str) -> None:
    answer = on_api(lambda api: api.ask("GET", "/info", headers={"host": host}))
    assert answer.code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "192.0.2.1", "",
             "evil.example@localhost.evil.example", "[::2]", "[", "localhost,evil.example"]
)  # fmt: skip
@pytest.mark.parametrize("path", ["/api/v1/info", "/livez", "/api/docs", "/api/v1/openapi.json"])
def test_a_name_that_somebody_points_here_is_refused(host: str, path: str) -> None:
    """DNS rebinding: the page of evil.example, whose address is ours by now."""
    answer = on_api(lambda api: api.ask("GET", path, prefix="", headers={"host": host}))
    refused(answer, 421, "MisdirectedRequest")


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": "http://localhost.evil.example"},
        {"origin": "http://localhost:9999"},
        {"origin": "http://localhost"},
        {"origin": "http://localhost:99999"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
)
def test_a_page_of_another_site_changes_and_reads_nothing(headers: dict[str, str]) -> None:
    """CSRF: with a token, which a browser never sends by itself, and without a preflight."""

    async def ask(api: Api) -> list[Answer]:
        before = api.node.objects.position
        got = [
            await api.ask("PUT", PATH, BODY, headers=headers),
            await api.ask("GET", "/info", headers=headers),
            await api.ask("OPTIONS", PATH, headers=headers),
            await api.ask("POST", "/batch", b"{}", kind="text/plain", headers=headers),
        ]
        assert api.node.objects.position == before
        return got

    for answer in on_api(ask):
        refused(answer, 403, "Forbidden")


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("localhost:8080", "http://localhost:8080"),
        ("[::1]:8080", "http://[::1]:8080"),
        # Through a proxy that ends TLS.
        ("ns1.example", "https://ns1.example"),
        ("ns1.example:8443", "https://ns1.example:8443"),
        ("127.0.0.1:8080", "https://ns1.example"),
    ],
)
def test_a_page_of_ours_may_ask(host: str, origin: str) -> None:
    headers = {"host": host, "origin": origin, "sec-fetch-site": "same-origin"}
    assert on_api(lambda api: api.ask("GET", "/info", headers=headers)).code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Basic dXNlcjpwdw=="},
        {"authorization": "Bearer"},
        {"authorization": "Bearer x"},
        {"authorization": "Bearer kudurru_admin_" + "0" * 64},
        {"x-api-key": "kudurru_admin_" + "0" * 64},
        {"cookie": "token=whatever"},
    ],
)
def test_without_a_token_that_counts_nothing_is_told(headers: dict[str, str]) -> None:
    async def ask(api: Api) -> list[Answer]:
        return [
            await api.ask(method, path, body, token="", headers=headers)
            for method, path, body in (
                ("GET", "/info", None), ("PUT", PATH, BODY), ("GET", "/nowhere", None),
            )
        ]  # fmt: skip

    for answer in on_api(ask):
        refused(answer, 401, "Unauthorized")
        assert answer.headers["WWW-Authenticate"].startswith("Bearer")


def test_a_token_may_come_in_either_header() -> None:
    async def ask(api: Api) -> int:
        headers = {"x-api-key": api.token["viewer"]}
        return (await api.ask("GET", "/info", token="", headers=headers)).code

    assert on_api(ask) == 200


@pytest.mark.parametrize("name", ["token", "access_token", "api_key", "Token", "%74oken"])
def test_a_token_in_a_url_is_refused_and_not_repeated(name: str) -> None:
    async def ask(api: Api) -> tuple[Answer, str]:
        secret = api.token["admin"]
        return await api.ask("GET", f"/info?{name}={secret}", token=""), secret

    answer, secret = on_api(ask)
    status = refused(answer, 400, "BadRequest")
    assert "revoke it" in status["message"]
    assert secret not in answer.body.decode()


def test_a_token_of_another_address_is_forbidden_and_an_expired_one_unknown() -> None:
    clock = ManualClock()

    async def ask(api: Api) -> tuple[Answer, Answer]:
        await api.make_token("viewer", "near", cidrs=["127.0.0.0/8"])
        await api.make_token("viewer", "brief", lifetime_s=60)
        far = await api.ask("GET", "/info", token="near", peer="192.0.2.1")
        clock.advance(60_000_000)
        return far, await api.ask("GET", "/info", token="brief")

    far, late = on_api(ask, clock=clock)
    refused(far, 403, "Forbidden")
    assert "expired" in refused(late, 401, "Unauthorized")["message"]


def test_who_was_let_in_on_a_connection_is_asked_again_in_every_second_and_after_a_change() -> None:
    clock = ManualClock()

    async def ask(api: Api) -> list[int]:
        await api.make_token("viewer", "short", lifetime_s=5)
        found = [(await api.ask("GET", "/info", token="short")).code for _ in range(2)]
        found.append((await api.ask("GET", "/info", token="viewer")).code)
        forged = api.token["short"][:-1] + ("0" if api.token["short"][-1] != "0" else "1")
        headers = {"authorization": f"Bearer {forged}"}
        found.append((await api.ask("GET", "/info", token="", headers=headers)).code)
        found.append((await api.ask("GET", "/info", token="short")).code)
        clock.advance(5_000_000)
        found.append((await api.ask("GET", "/info", token="short")).code)
        await api.ask("GET", "/info", token="viewer")
        await api.writer.submit(api.tokens.revocation("viewer", TESTER))
        found.append((await api.ask("GET", "/info", token="viewer")).code)
        return found

    assert on_api(ask, clock=clock) == [200, 200, 200, 401, 200, 401, 401]


def test_the_same_headers_again_are_let_in_as_long_as_their_token_counts() -> None:
    clock = ManualClock()

    async def ask(api: Api) -> list[int]:
        async def code(number: int, token: str = "viewer", host: str = "localhost") -> int:
            headers = {"host": host}
            answer = await api.ask("GET", "/info", token=token, headers=headers, number=number)
            return answer.code

        await api.make_token("viewer", "short", lifetime_s=5)
        found = [await code(7), await code(7), await code(8, "short"), await code(8, "short")]
        found += [await code(9, "short", host="evil.example"), await code(8, "short")]
        clock.advance(5_000_000)
        found += [await code(8, "short"), await code(7), await code(7)]
        await api.writer.submit(api.tokens.revocation("viewer", TESTER))
        return [*found, await code(7)]

    assert on_api(ask, clock=clock) == [200, 200, 200, 200, 421, 200, 401, 200, 200, 401]


def test_headers_without_a_number_are_those_of_no_other_request() -> None:
    async def ask(api: Api) -> list[int]:
        await api.ask("GET", "/info", token="viewer")
        others = ({"host": "evil.example"}, {"host": "localhost"})
        return [
            (await api.ask("GET", "/info", token="", headers=headers)).code for headers in others
        ]

    assert on_api(ask) == [421, 401]


def test_what_is_kept_of_a_connection_shows_no_token() -> None:
    async def ask(api: Api) -> str:
        await api.ask("GET", "/info", token="viewer")
        assert api.token["viewer"] not in repr(api.kept)
        return repr(api.kept)

    assert "'viewer'" in on_api(ask)


def test_paths_lead_to_the_same_routes_whether_they_are_remembered_or_not() -> None:
    router = Router(all_routes())
    words = sorted({part for route in router.routes for part in segments(route.path)})
    names = ["www", "a.b", "w%77w", "", "x:y", *[word for word in words if "{" not in word]]
    for route in router.routes:
        above = ["n1" if "{" in part else part for part in segments(route.path)]
        for last in names:
            path = "/".join([PREFIX, *above[:-1], last])
            for method in ("GET", "PUT", "DELETE", "POST", "HEAD"):
                wanted = found_by(router._find, method, path)
                assert [found_by(router.find, method, path) for _ in range(2)] == [wanted] * 2
    assert router._parents


def found_by(find: Callable[[str, str], Any], method: str, path: str) -> Any:
    try:
        route, names = find(method, path)
    except KudurruError as error:
        return type(error), str(error)
    return route.method, route.path, names


@pytest.mark.parametrize("token", ["admin", "bootstrap"])
def test_a_token_that_is_taken_away_between_head_and_body_does_nothing(token: str) -> None:
    """The first token goes when there is an admin."""

    async def ask(api: Api) -> tuple[int, dict[str, Any], list[Any]]:
        await api.ask("DELETE", "/tokens/admin")
        change, first = api.tokens.bootstrap(TESTER, api.entropy)
        await api.writer.submit(change)
        api.token["bootstrap"] = first.token
        if token == "admin":
            await api.make_token("admin")
        head = Request(
            method="POST", path="/api/v1/tokens", query="", peer="127.0.0.1", local="127.0.0.1",
            headers={
                "host": "localhost", "authorization": f"Bearer {api.token[token]}",
                "content-type": "application/json",
            },
        )  # fmt: skip
        assert api.app.admit(head) is None
        if token == "admin":
            await api.writer.submit(api.tokens.revocation("admin", TESTER))
        else:
            await api.make_token("admin")
        head.body = b'{"name": "mine", "role": "admin"}'
        answer = await api.app.answer(head)
        assert isinstance(answer, Response)
        names = [state.name for state in api.tokens.states()]
        return answer.code, json.loads(answer.body), names

    code, status, names = on_api(ask)
    assert (code, status["reason"]) == (401, "Unauthorized")
    assert "mine" not in names


# --- what a body is -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        (b"", "no JSON"),
        (b"{", "no JSON"),
        (b"\xff{}", "octet 0 is not UTF-8"),
        (b"\xff\xfe{\x00}\x00", "octet 0 is not UTF-8"),
        (b'{"a":1}{"b":2}', "no JSON"),
        (b'{"spec":{},"spec":{}}', "the key 'spec' is given twice"),
        (b'{"a":1.5}', "fraction"),
        (b'{"a":1e9}', "fraction"),
        (b'{"a":NaN}', "fraction"),
        (b'{"a":"\\ud800"}', "surrogate"),
        (b'{"\\udc00":1}', "surrogate"),
        (b'{"a":' + b"9" * 5000 + b"}", "no JSON"),
        (b"[" * 40 + b"]" * 40, "nested deeper"),
        (b'{"a":' * 40 + b"1" + b"}" * 40, "nested deeper"),
        (b"[" * 200_000, "nested deeper"),
        (b"[" * 2_000_000, "more than 400000 values"),
        (b"[" + b"0," * 400_001 + b"0]", "more than 400000 values"),
        (b'{"a":[' + b'"",' * 1_000_000 + b"0]}", "more than 400000 values"),
        # These two took minutes and hours where time grew with the square of the size.
        (b"{" + b",".join(b'"%x":0' % i for i in range(9_999)) + b',"1":0}', "given twice"),
        (b"{" + b",".join(b'"%x":0' % i for i in range(200_000)) + b"}", "at most 10000"),
        (b'{"a":"' + b"[" * 40 + b'\\"' * 2_000_000, "no JSON"),
        (b'{"a":"[[[","b":[' + b"[" * DEPTH_MAX + b"]" * DEPTH_MAX + b"]}", "deeper"),
    ],
)  # fmt: skip
def test_a_body_that_is_no_json_of_ours_is_refused(body: bytes, fault: str) -> None:
    async def ask(api: Api) -> Answer:
        answer = await api.ask("PUT", PATH, body)
        assert api.node.objects.find(key_of("DNSRecordSet", "default", "www")) is None
        return answer

    status = refused(on_api(ask), 400, "BadRequest")
    assert fault in status["message"]


@pytest.mark.parametrize(
    "announced", [{"content-length": "8000000"}, {"transfer-encoding": "chunked"}]
)
@pytest.mark.parametrize(
    ("method", "path", "code", "reason"),
    [
        ("POST", "/livez", 405, "MethodNotAllowed"),
        ("GET", "/livez", 400, "BadRequest"),
        ("POST", "/api/docs", 405, "MethodNotAllowed"),
        ("GET", "/api/docs", 400, "BadRequest"),
        ("HEAD", "/api/v1/openapi.json", 400, "BadRequest"),
        ("GET", "/api/v1/info", 400, "BadRequest"),
        ("DELETE", f"/api/v1{PATH}", 400, "BadRequest"),
        ("PUT", f"/api/v1{PATH}", None, ""),
    ],
)
def test_a_body_is_taken_only_where_one_is_read(
    method: str, path: str, code: int | None, reason: str, announced: dict[str, str]
) -> None:
    """By the head, before an octet of it is held."""

    async def ask(api: Api) -> Response | None:
        headers = {
            "host": "localhost", "content-type": "application/json", **announced,
            "authorization": f"Bearer {api.token['admin']}",
        }  # fmt: skip
        return api.app.admit(
            Request(method=method, path=path, query="", headers=headers, peer=LOCAL, local=LOCAL)
        )

    answer = on_api(ask)
    told = (answer.code, json.loads(answer.body)["reason"]) if answer else (None, "")
    assert told == (code, reason)


@pytest.mark.parametrize("body", [b"null", b"7", b'"x"', b"[]", b"true"])
@pytest.mark.parametrize("route", [("PUT", PATH), ("PATCH", PATH), ("POST", "/batch"),
                                   ("POST", "/tokens"), ("PUT", "/blocking")])  # fmt: skip
def test_json_of_another_shape_is_invalid(body: bytes, route: tuple[str, str]) -> None:
    refused(on_api(lambda api: api.ask(*route, body)), 422, "Invalid")


def test_brackets_in_texts_are_not_depth() -> None:
    text = "[{" * 1000 + '\\"['
    wanted = {**BODY, "metadata": {"annotations": {"a/b": text}}}
    assert on_api(lambda api: api.ask("PUT", PATH, wanted)).code == 201


depths = st.recursive(
    st.one_of(st.integers(), st.text('[]{},\\\\"\\n x')),
    lambda inner: st.one_of(st.lists(inner), st.dictionaries(st.text('[{,\\\\"'), inner)),
)


@given(depths, st.integers(0, DEPTH_MAX + 3))
def test_what_strings_hold_is_no_structure(value: Any, more: int) -> None:
    def depth_of(value: Any) -> int:
        inside = value.values() if isinstance(value, dict) else value
        return 1 + max(map(depth_of, inside), default=0) if isinstance(value, list | dict) else 0

    for _ in range(more):
        value = [value]
    body = json.dumps(value).encode()
    if depth_of(value) > DEPTH_MAX:
        with pytest.raises(BadRequest):
            read_json(body)
    else:
        assert read_json(body) == value


def test_what_is_no_object_has_fewer_values() -> None:
    body = {"what": "1", "more": [0] * 10_001}
    answer = on_api(lambda api: api.ask("POST", "/undo", body))
    assert "more than 10000 values" in refused(answer, 400, "BadRequest")["message"]


def test_a_large_body_is_read_in_a_thread_while_others_are_answered() -> None:
    large = json.dumps(BODY).encode() + b" " * ASIDE_MIN

    async def ask(api: Api) -> tuple[int, int]:
        async with api.context.brief.room, api.context.brief.room:  # all the room for such
            held = asyncio.create_task(api.ask("PUT", PATH, large))
            small = (await api.ask("PUT", PATH + "2", BODY)).code
            assert not held.done()
        return small, (await held).code

    assert on_api(ask) == (201, 201)


@pytest.mark.parametrize(
    "kind", ["", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data",
             "application/json; charset=latin-1", "text/yaml", "application/merge-patch+json"]
)  # fmt: skip
def test_a_body_of_another_type_is_refused(kind: str) -> None:
    headers = {"content-type": kind}
    answer = on_api(lambda api: api.ask("PUT", PATH, BODY, headers=headers))
    refused(answer, 415, "UnsupportedMediaType")


@pytest.mark.parametrize(
    ("method", "path", "kind"),
    [
        ("PUT", PATH, "application/json"),
        ("PATCH", PATH, "application/merge-patch+json"),
        ("POST", "/batch", "application/json"),
        ("POST", "/query", "application/dns-message"),
    ],
)
@pytest.mark.parametrize("coding", ["gzip", "GZIP", "br", "identity, gzip", "x"])
def test_a_packed_body_is_refused(method: str, path: str, kind: str, coding: str) -> None:
    headers = {"content-encoding": coding}
    answer = on_api(lambda api: api.ask(method, path, b"\x1f\x8b", headers=headers, kind=kind))
    assert "send it as it is" in refused(answer, 415, "UnsupportedMediaType")["message"]


@pytest.mark.parametrize("coding", ["", "identity", "Identity"])
def test_a_body_that_is_said_not_to_be_packed_is_read(coding: str) -> None:
    headers = {"content-encoding": coding}
    assert on_api(lambda api: api.ask("PUT", PATH, BODY, headers=headers)).code == 201


def test_all_faults_of_an_object_are_told_at_once_with_their_paths() -> None:
    body = {
        "metadata": {"labels": {"a": "not a label!"}},
        "spec": {"zoneRef": {}, "endpoints": [{"dnsName": 7, "recordType": "A", "targets": ["x"]}]},
        "stauts": {},
    }
    status = refused(on_api(lambda api: api.ask("PUT", PATH, body)), 422, "Invalid")
    fields = {cause["field"] for cause in status["details"]["causes"]}
    assert {
        "stauts",
        "metadata.labels[a]",
        "spec.zoneRef.name",
        "spec.endpoints[0].dnsName",
    } <= fields


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (PATH, {**BODY, "kind": "Policy"}),
        (PATH, {**BODY, "apiVersion": "v1"}),
        (PATH, {**BODY, "metadata": {"name": "other"}}),
        (PATH, {**BODY, "metadata": {"namespace": "other"}}),
        ("/dnszones/z", {"spec": {"zoneName": "z"}, "metadata": {"namespace": "default"}}),
        ("/namespaces/default/dnsrecordsets/Upper", BODY),
        ("/namespaces/a%2Fb/dnsrecordsets/www", BODY),
        ("/namespaces/default/dnsrecordsets/%00", BODY),
        ("/namespaces/default/dnsrecordsets/%ff", BODY),
    ],
)
def test_a_path_and_a_body_that_disagree_are_refused(path: str, body: Any) -> None:
    refused(on_api(lambda api: api.ask("PUT", path, body)), 400, "BadRequest")


# --- what a URL is --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("/dnszones?unknown=1", "unknown"),
        ("/dnszones?limit=x", "limit"),
        ("/dnszones?limit=-1", "limit"),
        ("/dnszones?limit=" + "9" * 30, "limit"),
        ("/dnszones?watch=maybe", "watch"),
        ("/dnszones?limit=1&limit=2", "limit"),
        ("/dnszones?labelSelector=" + "a" * 5000, "labelSelector"),
        ("/dnszones?watch=true&at=1", "at"),
        ("/query", "name"),
        ("/query?name=%ff", "name"),
    ],
)
def test_parameters_that_make_no_sense_are_refused_by_name(path: str, field: str) -> None:
    status = refused(on_api(lambda api: api.ask("GET", path)), 400, "BadRequest")
    assert field in {cause["field"] for cause in status["details"]["causes"]}


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("/dnszones?at=tomorrow", 422),
        ("/dnszones?at=99999", 404),
        ("/dnszones?at=mark:none", 404),
        ("/dnszones?labelSelector=%3D%3D", 422),
        ("/dnszones?continue=x", 422),
        ("/events?since=never", 422),
        ("/events?kind=nonsense", 422),
        ("/query?name=a..b", 422),
        ("/query?name=a&client=nobody", 422),
        ("/explain?name=a&mac=zz", 422),
        ("/stats/nothing", 404),
    ],
)
def test_values_that_make_no_sense_are_refused(path: str, code: int) -> None:
    answer = on_api(lambda api: api.ask("GET", path))
    refused(answer, code, {422: "Invalid", 404: "NotFound"}[code])


@pytest.mark.parametrize(
    "path",
    ["/nothing", "/", "", "//dnszones", "/dnszones/", "/dnszones/a/b/c", "/apitokens", "/secrets",
     "/namespaces/default", "/namespaces/default/dnszones", "/dnszones/z:nothing", "/../info",
     "/%2e%2e/info", "/{}", "/dnszones/{name}/x"],
)  # fmt: skip
def test_what_is_not_there_is_not_found(path: str) -> None:
    refused(on_api(lambda api: api.ask("GET", path)), 404, "NotFound")


@pytest.mark.parametrize("path", ["/api/v2/info", "/api", "/", "/admin.token", "/metrics"])
def test_nothing_is_served_outside_of_the_api(path: str) -> None:
    refused(on_api(lambda api: api.ask("GET", path, prefix="")), 404, "NotFound")


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("POST", "/dnszones", "GET"),
        ("DELETE", "/dnszones", "GET"),
        ("TRACE", PATH, "DELETE, GET, PATCH, PUT"),
        ("OPTIONS", "/info", "GET"),
        ("GET", "/batch", "POST"),
    ],
)
def test_a_method_that_a_path_does_not_take_is_refused_with_those_that_it_does(
    method: str, path: str, allowed: str
) -> None:
    answer = on_api(lambda api: api.ask(method, path))
    refused(answer, 405, "MethodNotAllowed")
    assert answer.headers["Allow"] == allowed


@pytest.mark.parametrize(
    ("path", "body", "code"),
    [
        ("/events:redact", {"position": 10**30, "reason": "x"}, 422),
        ("/events:redact", {"position": 2**63, "reason": "x"}, 422),
        ("/events:redact", {"position": -1, "reason": "x"}, 422),
        ("/restore", {"beforeEvent": 10**30, "scope": {"kind": "rs"}}, 422),
        ("/restore", {"at": "9" * 30, "scope": {"kind": "rs"}}, 422),
        ("/undo", {"what": "9" * 30}, 404),
        ("/events:prune", {"before": "9" * 30}, 422),
        ("/batch", {"importedSerials": {"z": 2**32}}, 422),
        ("/batch", {"importedSerials": {"z": 10**30}}, 422),
        ("/tokens", {"name": "x", "role": "viewer", "lifetimeSeconds": 10**30}, 422),
    ],
)
def test_a_number_that_no_database_holds_reaches_none(path: str, body: Any, code: int) -> None:
    """One would end the writer, and the server with it."""

    async def ask(api: Api) -> tuple[Answer, int]:
        answer = await api.ask("POST", path, body)
        return answer, (await api.ask("PUT", PATH, BODY)).code

    answer, after = on_api(ask)
    refused(answer, code, {422: "Invalid", 404: "NotFound"}[code])
    assert after == 201


# --- how much -------------------------------------------------------------------------------


def test_one_token_has_a_hundred_requests_under_way_and_others_are_not_held_up() -> None:
    async def ask(api: Api) -> tuple[list[int], int, int]:
        async with api.writer.applying:  # nothing that reads objects goes on
            held = [asyncio.create_task(api.ask("GET", "/lists")) for _ in range(IN_FLIGHT_MAX)]
            while sum(api.app._in_flight.values()) < IN_FLIGHT_MAX:  # what the limit counts
                await asyncio.sleep(0)
            over = await api.ask("GET", "/info")
            refused(over, 429, "TooManyRequests")
            assert over.headers["Retry-After"] == "1"
            other = (await api.ask("GET", "/info", token="viewer")).code
        codes = [(await one).code for one in held]
        return codes, other, (await api.ask("GET", "/info")).code

    codes, other, after = on_api(ask)
    assert codes == [200] * IN_FLIGHT_MAX
    assert (other, after) == (200, 200)


def test_before_the_log_is_replayed_only_health_is_served() -> None:
    async def ask(api: Api) -> list[Answer]:
        api.app._context = None  # as it is until `open`
        return [
            await api.ask("GET", "/livez", prefix="", token=""),
            await api.ask("GET", "/info"),
            await api.ask("GET", "/info", token=""),
        ]

    live, info, nobody = on_api(ask)
    assert live.code == 200
    for answer in (info, nobody):
        refused(answer, 503, "Busy")
        assert answer.headers["Retry-After"] == "1"


def test_a_fault_of_ours_in_a_thread_is_no_answer_of_another_shape() -> None:
    """What the log refuses to say is told as a Status too."""

    async def ask(api: Api) -> Answer:
        return await api.ask("GET", "/checkpoint")

    refused(on_api(ask), 404, "NotFound")


# --- what the log says of it ----------------------------------------------------------------


def test_denials_are_events_that_are_counted_and_hold_no_secret() -> None:
    clock = ManualClock()

    async def ask(api: Api) -> tuple[list[dict[str, Any]], str]:
        wrong = {"authorization": "Bearer kudurru_admin_" + "f" * 64}
        for _ in range(50):
            await api.ask("GET", "/info", token="", headers=wrong, peer="192.0.2.1")
            await api.ask("DELETE", PATH, token="viewer")
        clock.advance(600_000_000)
        await api.ask("GET", "/info", token="", headers=wrong, peer="192.0.2.1")
        whole = str([(e.body, e.who) for e in api.node.log.read()])
        return await api.events(AUTH_DENIED), whole

    denials, whole = on_api(ask, clock=clock)
    assert denials == [
        {"count": 1, "token": "", "claimed": "admin", "why": "unknown"},
        {"count": 1, "right": "objects.write", "token": "viewer", "why": "right"},
        {"count": 50, "token": "", "claimed": "admin", "why": "unknown"},
    ]
    assert "f" * 64 not in whole


def test_a_refusal_is_that_of_a_token_only_where_it_was_proven() -> None:
    clock = ManualClock()

    async def ask(api: Api) -> list[tuple[dict[str, Any], str]]:
        await api.make_token("viewer", "near", cidrs=["127.0.0.0/8"])
        await api.ask("GET", "/info", token="near", peer="192.0.2.1")
        for i in range(300):
            headers = {"authorization": f"Bearer kudurru_n{i}_" + "0" * 64}
            await api.ask("GET", "/info", token="", headers=headers, peer=f"2001:db8::{i:x}")
        headers = {"authorization": "Bearer kudurru_near_" + "0" * 64}
        await api.ask("GET", "/info", token="", headers=headers, peer="2001:db8::1")
        await api.events(AUTH_DENIED)
        return [
            (json.loads(event.body or b""), json.loads(event.who or b"")["actor"])
            for event in api.node.log.read()
            if event.type == AUTH_DENIED
        ]

    assert on_api(ask, clock=clock) == [
        ({"token": "near", "why": "address", "count": 1}, "token:near"),
        ({"token": "", "why": "unknown", "count": 1}, "nobody"),
        ({"token": "", "why": "unknown", "count": 1, "claimed": "near"}, "nobody"),
    ]


def test_strangers_write_a_bounded_number_of_events_a_day_and_hide_no_refusal_of_a_token() -> None:
    clock = ManualClock()

    async def ask(api: Api) -> tuple[list[dict[str, Any]], int]:
        for ten_minutes in range(144):
            for i in range(20):
                api.access.denied("", f"2001:db8:{ten_minutes:x}:{i:x}::1", "unknown")
            await api.events(AUTH_DENIED)
            clock.advance(600_000_000)
        api.access.denied("viewer", "192.0.2.1", "right", "objects.write")
        return await api.events(AUTH_DENIED), api.access.statistics().lost

    events, lost = on_api(ask, clock=clock)
    assert len(events) <= access_log.DENIED_DAY_MAX + 145
    assert sum(event["count"] for event in events) >= 144 * 20 - 20
    assert (events[-1]["token"], lost) == ("viewer", 0)


def test_a_token_that_is_used_from_everywhere_is_a_bounded_number_of_events_a_day() -> None:
    clock = ManualClock()

    async def ask(api: Api) -> list[dict[str, Any]]:
        for day in range(2):
            for i in range(300):
                peer = f"2001:db8:{day:x}:{i:x}::1"
                await api.ask("GET", "/info", token="viewer", peer=peer)
                await asyncio.sleep(0)
            clock.advance(86_400_000_000)
        return await api.events(AUTH_LOGIN)

    each = [{"token": "viewer"}] * access_log.LOGINS_DAY_MAX
    first, second = {"token": "viewer", "count": 1}, {"token": "viewer", "count": 300 - 32 - 1}
    assert on_api(ask, clock=clock) == [*each, first, each[0], second, *each[1:]]


def test_addresses_of_one_network_are_one_login() -> None:
    async def ask(api: Api) -> list[dict[str, Any]]:
        for i in range(300):
            await api.ask("GET", "/info", token="viewer", peer=f"2001:db8::{i:x}")
        return await api.events(AUTH_LOGIN)

    assert on_api(ask) == [{"token": "viewer"}]


def test_a_login_is_an_event_once_a_day_for_each_address() -> None:
    clock = ManualClock()

    async def ask(api: Api) -> list[dict[str, Any]]:
        for peer in ("127.0.0.1", "127.0.0.1", "192.0.2.7", "127.0.0.1"):
            await api.ask("GET", "/info", token="viewer", peer=peer)
        clock.advance(86_400_000_000)
        await api.ask("GET", "/info", token="viewer")
        return await api.events(AUTH_LOGIN)

    assert on_api(ask, clock=clock) == [{"token": "viewer"}] * 3


def test_a_flood_of_names_and_addresses_is_a_bounded_number_of_events() -> None:
    async def ask(api: Api) -> tuple[int, int]:
        for i in range(2_000):
            headers = {"authorization": f"Bearer kudurru_n{i}_" + "0" * 64}
            peer = f"2001:db8:{i:x}::1"
            await api.ask("GET", "/info", token="", headers=headers, peer=peer)
            await asyncio.sleep(0)
        return len(await api.events(AUTH_DENIED)), api.access.statistics().denied

    events, denied = on_api(ask)
    assert denied == 2_000
    assert events <= 260


@given(st.text(alphabet='",[]{}a', max_size=40), st.integers(1, 8))
def test_what_is_outside_of_strings_is_the_same_however_a_body_is_cut(text: str, size: int) -> None:
    body = text.encode()
    whole = b"".join(body.split(b'"')[::2])
    assert calls._outside_of_strings(body, size) == whole


def test_a_batch_that_is_all_faults_names_the_first_and_looks_at_no_more() -> None:
    wrong = {"kind": "DNSZone", **{f"x{i}": 1 for i in range(30)}}

    async def ask(api: Api) -> Answer:
        return await api.ask("POST", "/batch", {"apply": [wrong] * 9_000})

    status = refused(on_api(ask), 422, "Invalid")
    fields = [cause["field"] for cause in status["details"]["causes"]]
    assert len(fields) == CAUSES_MAX
    assert fields[0] == "apply[0].x0"
    assert fields[-1].startswith("apply[2]")
