"""Record types by number and mnemonic (IANA registry "Resource Record (RR) TYPEs")."""

A = 1
NS = 2
CNAME = 5
SOA = 6
PTR = 12
MX = 15
TXT = 16
AAAA = 28
SRV = 33
NAPTR = 35
DNAME = 39
OPT = 41
DS = 43
RRSIG = 46
NSEC = 47
DNSKEY = 48
NSEC3 = 50
NSEC3PARAM = 51
SVCB = 64
HTTPS = 65
SPF = 99
IXFR = 251
AXFR = 252
ANY = 255
CAA = 257

_NUMBERS = {
    "A": A, "NS": NS, "MD": 3, "MF": 4, "CNAME": CNAME, "SOA": SOA, "MB": 7, "MG": 8, "MR": 9,
    "NULL": 10, "WKS": 11, "PTR": PTR, "HINFO": 13, "MINFO": 14, "MX": MX, "TXT": TXT, "RP": 17,
    "AFSDB": 18, "X25": 19, "ISDN": 20, "RT": 21, "NSAP": 22, "NSAP-PTR": 23, "SIG": 24,
    "KEY": 25, "PX": 26, "GPOS": 27, "AAAA": AAAA, "LOC": 29, "NXT": 30, "EID": 31, "NIMLOC": 32,
    "SRV": SRV, "ATMA": 34, "NAPTR": NAPTR, "KX": 36, "CERT": 37, "A6": 38, "DNAME": DNAME,
    "SINK": 40, "OPT": OPT, "APL": 42, "DS": DS, "SSHFP": 44, "IPSECKEY": 45, "RRSIG": RRSIG,
    "NSEC": NSEC, "DNSKEY": DNSKEY, "DHCID": 49, "NSEC3": NSEC3, "NSEC3PARAM": NSEC3PARAM,
    "TLSA": 52, "SMIMEA": 53, "HIP": 55, "NINFO": 56, "RKEY": 57, "TALINK": 58, "CDS": 59,
    "CDNSKEY": 60, "OPENPGPKEY": 61, "CSYNC": 62, "ZONEMD": 63, "SVCB": SVCB, "HTTPS": HTTPS,
    "DSYNC": 66, "HHIT": 67, "BRID": 68, "SPF": SPF, "UINFO": 100, "UID": 101, "GID": 102,
    "UNSPEC": 103, "NID": 104, "L32": 105, "L64": 106, "LP": 107, "EUI48": 108, "EUI64": 109,
    "NXNAME": 128, "TKEY": 249, "TSIG": 250, "IXFR": IXFR, "AXFR": AXFR, "MAILB": 253,
    "MAILA": 254, "ANY": ANY, "URI": 256, "CAA": CAA, "AVC": 258, "DOA": 259, "AMTRELAY": 260,
    "RESINFO": 261, "WALLET": 262, "CLA": 263, "IPN": 264, "TA": 32768, "DLV": 32769,
}  # fmt: skip
_MNEMONICS = {value: mnemonic for mnemonic, value in _NUMBERS.items()}


OTHER = 0
"""In counts, for types without a mnemonic: anybody can ask for 65,536 of them."""


def counted_as(rtype: int) -> int:
    """The type under which a question is counted."""
    return rtype if rtype in _MNEMONICS else OTHER


class BadRecord(ValueError):
    """A text or wire form that is no record of its type; the message says why."""


def type_from_text(text: str) -> int:
    """Number of a mnemonic in any letter case, or of TYPE12345 (RFC 3597 section 5)."""
    word = text.upper()
    if (known := _NUMBERS.get(word)) is not None:
        return known
    digits = word[4:]
    if word[:4] == "TYPE" and digits.isascii() and digits.isdecimal() and len(digits) <= 5:
        value = int(digits)
        if value <= 0xFFFF:
            return value
    raise BadRecord(f"unknown record type {text!r}; types without a name are written TYPE12345")


def type_to_text(rtype: int) -> str:
    return _MNEMONICS.get(rtype) or f"TYPE{rtype}"


def type_label(counted: int) -> str:
    """Of a type as `counted_as` has it."""
    return _MNEMONICS.get(counted, "other")


SINGLETON_TYPES = frozenset({CNAME, DNAME, SOA})
"""Types of which a name holds one record at most (RFC 2181 section 10.1, RFC 6672 section 2.4,
RFC 1035 section 5.2)."""

BESIDE_CNAME = frozenset({RRSIG, NSEC, 24, 25, 30})
"""Types that may stand beside a CNAME (RFC 4034 section 3, RFC 2181 section 10.1): RRSIG, NSEC,
and the older SIG, KEY and NXT."""


def is_meta_type(rtype: int) -> bool:
    """Whether a type asks for something and is never stored (RFC 6895 section 3.1): OPT, TKEY,
    TSIG, transfers, ANY, and the reserved 0 and 65535."""
    return rtype in (0, OPT, 65535) or 128 <= rtype <= 255
