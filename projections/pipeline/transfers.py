"""Who may fetch a zone, and what they get: AXFR (RFC 5936), or IXFR (RFC 1995) out of the zone
history.

What is sent is the stamped version, whole, as it was when the transfer began. An IXFR leads there
in one step; where the history does not reach back that far, or the step would be larger than the
zone, the whole zone is sent.
"""

from collections.abc import Iterator
from ipaddress import IPv6Address, ip_address, ip_network
from typing import NamedTuple

import msgspec

from kudurru.domain.dns import names, zone_transfer
from kudurru.domain.dns.lookup import (
    FORMERR,
    NOTAUTH,
    NOTIMP,
    PROHIBITED,
    REFUSED,
    SERVFAIL,
    Answer,
)
from kudurru.domain.dns.messages import Query, TransferFrame, transfer_frame, transfer_serial
from kudurru.domain.dns.names import Name
from kudurru.domain.dns.record_types import AXFR
from kudurru.domain.dns.records import CLASS_IN
from kudurru.domain.dns.serials import is_newer
from kudurru.domain.dns.zone_tree import Delta, Zone
from kudurru.domain.kinds.zone import Transfer
from kudurru.projections.zone_state import ZoneState
from kudurru.projections.zone_view import ZoneView

TRANSFERS_MAX = 32
"""Streams at once. Each holds a message, the owners' names of its zone and a connection; one more
secondary can wait for its next refresh."""

ACLS_MAX = 4096
"""Access lists that are kept ready."""

STREAMS = frozenset({"tcp", "tls"})

_NOT_AUTHORITATIVE = Answer(NOTAUTH, is_lasting=False)
_REFUSED = Answer(REFUSED, is_lasting=False, extended_error=PROHIBITED)
_MALFORMED = Answer(FORMERR, is_lasting=False)
_NOT_HERE = Answer(NOTIMP, is_lasting=False)
_LATER = Answer(SERVFAIL, is_lasting=False)


class TransferStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Counted since the start. What was sent is counted when its last message is made."""

    full: int
    incremental: int
    up_to_date: int
    refused: int
    busy: int
    failed: int  # the client went away, or a record fits into no message
    active: int
    octets: int


class Sender(NamedTuple):
    """Who asks, over what, and the key that the query is signed with."""

    client: str
    proto: str
    key: Name | None


class Acl(msgspec.Struct, frozen=True):
    """`spec.transfer.allow`: networks to come from, and keys to be signed with. Where it names
    both, both must hold; where it names nothing, nobody is allowed."""

    networks: tuple[tuple[int, int, int], ...]  # IP version, first address, last address
    keys: frozenset[Name]

    def allows(self, client: str, key: Name | None) -> bool:
        if not self.networks and not self.keys:
            return False
        if self.keys and key not in self.keys:
            return False
        return not self.networks or self._has(client)

    def _has(self, client: str) -> bool:
        try:
            address = ip_address(client)
        except ValueError:
            return False  # of a client that is gone
        if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        number = int(address)
        return any(v == address.version and a <= number <= z for v, a, z in self.networks)


def acl_of(transfer: Transfer | None) -> Acl:
    networks, keys = [], set()
    for text in transfer.allow if transfer is not None else ():
        try:
            network = ip_network(text, strict=False)
        except ValueError:
            keys.add(names.key(names.from_text(text)))
        else:
            first, last = int(network.network_address), int(network.broadcast_address)
            networks.append((network.version, first, last))
    return Acl(tuple(networks), frozenset(keys))


class Transfers:
    """Answers transfer queries over the zones of a view."""

    def __init__(self, zones: ZoneView) -> None:
        self._zones = zones
        self._acls: dict[str, tuple[Transfer | None, Acl]] = {}  # by name of the DNSZone
        self._full = self._incremental = self._up_to_date = 0
        self._refused = self._busy = self._failed = self._active = self._octets = 0

    def statistics(self) -> TransferStatistics:
        return TransferStatistics(
            full=self._full,
            incremental=self._incremental,
            up_to_date=self._up_to_date,
            refused=self._refused,
            busy=self._busy,
            failed=self._failed,
            active=self._active,
            octets=self._octets,
        )

    def answer(
        self,
        packet: bytes,
        query: Query,
        sender: Sender,
        *,
        room: int,
        options: bytes = b"",
    ) -> Answer | Iterator[bytes]:
        """The messages of a transfer, unsigned, or why there is none. `room` is the octets that
        one message may have, `options` go into its OPT record."""
        state = self._zones.serving(names.key(query.qname))
        if state is None or state.zone is None or query.qclass != CLASS_IN:
            return _NOT_AUTHORITATIVE  # RFC 5936 section 2.2.1
        if not self._acl(state).allows(sender.client, sender.key):
            self._refused += 1
            return _REFUSED
        if state.zone.stamped_soa is None or not state.zone.is_available:
            return _LATER  # the first stamp or transfer is on its way, or the zone has expired
        frame = transfer_frame(query, options)
        if query.qtype == AXFR:
            return self._axfr(state.zone, frame, sender.proto)
        serial = transfer_serial(packet, query)
        if serial is None:
            return _MALFORMED
        return self._ixfr(state, state.zone, frame, sender.proto, serial, room)

    def _acl(self, state: ZoneState) -> Acl:
        known = self._acls.get(state.name)
        if known is None or known[0] is not state.spec.transfer:
            if len(self._acls) >= ACLS_MAX:
                self._acls.clear()  # also of zones that are gone
            known = self._acls[state.name] = state.spec.transfer, acl_of(state.spec.transfer)
        return known[1]

    def _axfr(self, zone: Zone, frame: TransferFrame, proto: str) -> Answer | Iterator[bytes]:
        if proto not in STREAMS:
            # RFC 5936 section 4.2, RFC 9250 section 4.4: a datagram is no place for a zone.
            return _MALFORMED if proto == "udp" else _NOT_HERE
        if self._active >= TRANSFERS_MAX:
            self._busy += 1
            return _LATER
        return self._whole(zone, frame)

    def _ixfr(
        self,
        state: ZoneState,
        zone: Zone,
        frame: TransferFrame,
        proto: str,
        serial: int,
        room: int,
    ) -> Answer | Iterator[bytes]:
        soa_only = zone_transfer.up_to_date(frame, zone.key, zone.soa_wire)
        if serial == zone.serial or is_newer(serial, zone.serial):
            self._up_to_date += 1
            return iter((soa_only,))
        delta = self._step(state, zone, serial)
        if proto in STREAMS:
            if self._active >= TRANSFERS_MAX:
                self._busy += 1
                return _LATER
            return self._whole(zone, frame) if delta is None else self._changes(zone, frame, delta)
        if delta is not None and len(delta.changes) <= room // 16:
            messages = zone_transfer.difference(frame, zone.key, delta)
            first = next(messages)
            if len(first) <= room and next(messages, None) is None:
                self._incremental += 1
                self._octets += len(first)
                return iter((first,))
        # RFC 1995 section 2: what does not fit is the SOA, and the client comes over TCP.
        return iter((soa_only,))

    def _step(self, state: ZoneState, zone: Zone, serial: int) -> Delta | None:
        """From a version to the stamped one; None where that cannot be told, or is more than the
        zone itself."""
        deltas: list[Delta] = []
        for version in self._zones.history.newest_first(state.apex):
            if version.delta is None or (not deltas and version.serial != zone.serial):
                return None
            deltas.append(version.delta)
            if version.delta.from_serial == serial:
                step = zone_transfer.condense(deltas[::-1])
                if len(step.changes) > max(zone.name_count, 1):
                    return None
                return zone_transfer.with_case(step, zone.cased)
        return None

    def _whole(self, zone: Zone, frame: TransferFrame) -> Iterator[bytes]:
        version = zone.read_stamped()
        assert version is not None
        messages = zone_transfer.full(frame, zone.key, version.soa_wire, version)
        self._active += 1
        try:
            yield from self._counted(messages)
            self._full += 1
        except BaseException:
            self._failed += 1
            raise
        finally:
            self._active -= 1
            version.close()

    def _changes(self, zone: Zone, frame: TransferFrame, delta: Delta) -> Iterator[bytes]:
        self._active += 1
        try:
            yield from self._counted(zone_transfer.difference(frame, zone.key, delta))
            self._incremental += 1
        except BaseException:
            self._failed += 1
            raise
        finally:
            self._active -= 1

    def _counted(self, messages: Iterator[bytes]) -> Iterator[bytes]:
        for message in messages:
            self._octets += len(message)
            yield message
