"""What is wrong with a fleet, in words: pure checks over facts that were gathered before."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterable, Iterator
from itertools import product
from urllib.parse import urlsplit

from baton.cluster.doctor_facts import FleetFacts, RouterFacts, ServerFacts
from baton.cluster.doctor_finding import Finding, error, ok, warning
from baton.core.handoff import Role

_SILENT_S = 2.0
_CLOCK_S = 2.0  # the Date header has whole seconds


def check_fleet(facts: FleetFacts) -> list[Finding]:
    """Every finding about a router and its workers, or about one server."""
    findings = list(_router(facts))
    for server in facts.servers:
        findings += _server(server)
    answering = [server for server in facts.servers if not server.error]
    if facts.router is not None:
        findings += [*_roles(answering), *_router_modes(facts.router, answering)]
    for compare in _COMPARISONS:
        findings += compare(answering)
    return findings


def _router(facts: FleetFacts) -> Iterator[Finding]:
    router = facts.router
    if router is None:
        return
    if not facts.servers:
        yield error(router.url, "The router has no workers; give it some with --prefill, --decode or --worker.")
    else:
        yield ok(router.url, f"A router in mode {router.mode or 'unknown'} with {len(facts.servers)} workers.")
    for reason in router.unpaired:
        yield warning(router.url, f"The router cannot pair two workers: {reason}.")


def _server(server: ServerFacts) -> Iterator[Finding]:
    for check in (_reachable, _note, _told_role, _side_channel, _clock):
        findings = list(check(server))
        yield from findings
        if server.error:
            return


def _reachable(server: ServerFacts) -> Iterator[Finding]:
    if server.error:
        yield error(server.url, f"It does not answer ({server.error}); start it, or mend the address or the network.")
    elif server.state == "draining":
        yield warning(server.url, "It is draining and takes no new requests.")
    elif server.state != "ready":
        yield error(server.url, f"It is {server.state}, not ready; its log says why.")
    elif server.silent_s > _SILENT_S:
        yield error(
            server.url, f"Its engine process has said nothing for {server.silent_s:.0f} s; it hangs or is stopped."
        )
    else:
        role = "no role" if server.role is None else f"role {server.role.value}"
        kind = "A Baton server" if server.is_baton else "An OpenAI server, known by what the router was told alone"
        yield ok(server.url, f"{kind}: {role}, model {', '.join(server.models) or 'unnamed'}.")


def _note(server: ServerFacts) -> Iterator[Finding]:
    if server.note:
        yield warning(server.url, f"The router sends it nothing: {server.note}.")


def _told_role(server: ServerFacts) -> Iterator[Finding]:
    """Whether the router was told the role that the engine has."""
    told, role = server.told_role, server.role
    if server.is_baton and told is not None and role is not None and told is not role and role is not Role.MIXED:
        yield error(
            server.url,
            f"The router was told that its role is {told.value}, but it runs as {role.value}; "
            f"give it to the router as --{role.value}, or start it with --role {told.value}.",
        )


def _side_channel(server: ServerFacts) -> Iterator[Finding]:
    if server.side_channel is None:
        return
    gives = server.role is not Role.DECODE
    if gives and _is_loopback(server.side_channel.host) and not _is_loopback(urlsplit(server.url).hostname or ""):
        yield error(
            server.url,
            f"Its side channel is advertised as {server.side_channel}, which others cannot reach; "
            "start it with --side-channel-host and --advertise-host of an address they can.",
        )
    elif server.side_channel_error:
        level = error if gives else warning  # decode engines dial, and are not dialled
        yield level(
            server.url,
            f"Its side channel {server.side_channel} is closed ({server.side_channel_error}); "
            "open that port between the engines, or set --side-channel-port and --advertise-host.",
        )
    else:
        yield ok(server.url, f"Its side channel {server.side_channel} is open.")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _clock(server: ServerFacts) -> Iterator[Finding]:
    offset_s = server.clock_offset_s
    if offset_s is not None and abs(offset_s) > _CLOCK_S:
        ahead = "ahead of" if offset_s > 0 else "behind"
        yield warning(
            server.url,
            f"Its clock is {abs(offset_s):.0f} s {ahead} this machine's, so timelines do not fit together; "
            "synchronise both by NTP.",
        )


def _roles(servers: list[ServerFacts]) -> Iterator[Finding]:
    roles = {server.role or server.told_role for server in servers}
    if not roles & {Role.PREFILL, Role.DECODE}:
        return  # a fleet of whole engines
    for role in (Role.PREFILL, Role.DECODE):
        if not roles & {role, Role.MIXED}:
            yield error(
                "roles", f"No {role.value} engine answers; start one with `baton serve MODEL --role {role.value}`."
            )
    for server in servers:
        if server.is_baton and server.role is None:
            yield error(server.url, "It has no role and cannot hand over; start it with --role prefill or decode.")


def _router_modes(router: RouterFacts, servers: list[ServerFacts]) -> Iterator[Finding]:
    for server in servers:
        if server.transfer_modes and router.mode in ("push", "pull") and router.mode not in _names(server):
            yield error(
                server.url,
                f"It runs with --transfer {_names(server)[0]} and the router with --mode {router.mode}; "
                "start it with --transfer auto, or the router with --mode auto.",
            )


def _transfer_modes(servers: list[ServerFacts]) -> Iterator[Finding]:
    for giver, taker in _pairs(servers):
        if giver.transfer_modes and taker.transfer_modes and not giver.transfer_modes & taker.transfer_modes:
            yield error(
                f"{giver.url} -> {taker.url}",
                f"One runs with --transfer {_names(giver)[0]}, the other with {_names(taker)[0]}: they cannot hand "
                "over; start both with --transfer auto.",
            )


def _names(server: ServerFacts) -> list[str]:
    return sorted(mode.value for mode in server.transfer_modes)


def _fingerprints(servers: list[ServerFacts]) -> Iterator[Finding]:
    yield from _same(
        servers,
        lambda server: server.fingerprint,
        "fingerprint",
        "they serve different models, weights or number formats and cannot hand over; start them with the same.",
    )


def _models(servers: list[ServerFacts]) -> Iterator[Finding]:
    yield from _same(
        servers,
        lambda server: " and ".join(sorted(server.models)),
        "served model name",
        "a request for one is refused by the other; start them with the same --served-model-name.",
    )


def _same(servers: list[ServerFacts], value: Callable[[ServerFacts], str], what: str, advice: str) -> Iterator[Finding]:
    """An error for each server that differs from the first, else one OK; what is not told is not compared."""
    told = [(server, value(server)) for server in servers if value(server)]
    if len(told) < 2:
        return
    first, expected = told[0]
    different = [(server, found) for server, found in told[1:] if found != expected]
    for server, found in different:
        yield error(server.url, f"Its {what} is {found}, that of {first.url} is {expected}: {advice}")
    if not different:
        yield ok(what, f"All {len(told)} servers have the same: {expected}.")


def _ranks(servers: list[ServerFacts]) -> Iterator[Finding]:
    for giver, taker in _pairs(servers):
        one, other = sorted((giver.tp_size, taker.tp_size))
        if one == other:
            continue
        subject = f"{giver.url} -> {taker.url}"
        sizes = f"Their tensor-parallel sizes are {giver.tp_size} and {taker.tp_size}"
        if other % one:
            yield error(subject, f"{sizes}, of which none divides the other; choose sizes that do.")
        else:
            yield warning(subject, f"{sizes}: each block moves in {other // one} pieces; equal sizes need one.")


def _pairs(servers: Iterable[ServerFacts]) -> Iterator[tuple[ServerFacts, ServerFacts]]:
    """(giver, taker) for all that have to work together."""
    servers = list(servers)
    givers = [server for server in servers if (server.role or server.told_role) in (Role.PREFILL, Role.MIXED)]
    takers = [server for server in servers if (server.role or server.told_role) in (Role.DECODE, Role.MIXED)]
    return ((giver, taker) for giver, taker in product(givers, takers) if giver is not taker)


_COMPARISONS = (_transfer_modes, _fingerprints, _models, _ranks)
