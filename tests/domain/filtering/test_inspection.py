"""What answers lead to, also answers that are no answers."""

import dns.message
import dns.rrset
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kudurru.domain.dns import names
from kudurru.domain.dns.responses import Malformed, Message, read_response
from kudurru.domain.filtering import inspection
from kudurru.domain.filtering.inspection import NAMES_MAX, address_key, leads_to


def message_of(*records: str, rtype: str = "A") -> tuple[bytes, Message]:
    query = dns.message.make_query("www.example.", rtype, use_edns=False)
    response = dns.message.make_response(query)
    for record in records:
        owner, kind, data = record.split(" ", 2)
        rrset = dns.rrset.from_text(owner, 60, "IN", kind, data)
        response.answer.append(rrset)
    question = query.to_wire()[12:]
    return question, read_response(question, response.to_wire())


@pytest.mark.parametrize(
    ("records", "rtype", "found"),
    [
        (["www.example. CNAME A.B.example.", "a.b.example. A 192.0.2.1"], "A",
         ["a.b.example.", "192.0.2.1."]),
        (["www.example. AAAA 2001:DB8::0:1"], "AAAA", ["2001:db8::1."]),
        (["www.example. HTTPS 1 cdn.example. ipv4hint=192.0.2.1,192.0.2.2 ipv6hint=2001:db8::2"],
         "HTTPS", ["cdn.example.", "192.0.2.1.", "192.0.2.2.", "2001:db8::2."]),
        (["www.example. HTTPS 0 alias.example."], "HTTPS", ["alias.example."]),
        (["www.example. SVCB 1 . alpn=h2"], "SVCB", []),
        (["www.example. MX 1 mail.example."], "MX", []),
        (["www.example. TXT 192.0.2.1"], "TXT", []),
        ([], "A", []),
    ],
)  # fmt: skip
def test_an_answer_leads_to_its_aliases_targets_and_addresses(
    records: list[str], rtype: str, found: list[str]
) -> None:
    question, message = message_of(*records, rtype=rtype)
    assert [names.to_text(key) for key in leads_to(question.lower(), message)] == found


def test_many_addresses_are_looked_at_up_to_a_limit() -> None:
    records = [f"www.example. A 10.0.{i // 256}.{i % 256}" for i in range(NAMES_MAX + 50)]
    question, message = message_of(*records)
    assert len(leads_to(question, message)) == NAMES_MAX


@given(st.binary(max_size=300), st.lists(st.integers(0, 400), max_size=5))
def test_no_octets_harm_the_inspection(body: bytes, places: list[int]) -> None:
    question = b"\3www\7example\0\0\1\0\1"
    try:
        message = read_response(question, b"\0\0\x81\0\0\1\0\3\0\0\0\0" + question + body)
    except Malformed:
        message = Message(0, (len(places), 0, 0), body + bytes(420), tuple(places))
    for key in leads_to(question, message):
        assert len(key) <= names.NAME_MAX


@given(st.ip_addresses())
def test_an_address_is_the_name_of_its_text(address: object) -> None:
    key = address_key(address.packed)  # type: ignore[attr-defined]  # of either version
    meant = getattr(address, "ipv4_mapped", None) or address
    assert names.to_text(key, final_dot=False) == str(meant)


def test_an_ipv4_address_in_the_form_of_ipv6_is_held_against_rules_as_ipv4() -> None:
    question, message = message_of("www.example. AAAA ::ffff:192.0.2.1", rtype="AAAA")
    assert [names.to_text(key) for key in leads_to(question, message)] == ["192.0.2.1."]


def test_large_answers_are_not_held_in_memory() -> None:
    records = [f"www.example. A 10.1.{i // 256}.{i % 256}" for i in range(200)]
    question, message = message_of(*records)
    before = inspection._remembered.cache_info().currsize
    assert len(leads_to(question, message)) == 200
    assert inspection._remembered.cache_info().currsize == before
