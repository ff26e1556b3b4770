"""A doctor's judgement over facts: a good fleet, and each way in which one can be wrong."""

from __future__ import annotations

from dataclasses import replace

import pytest

from baton.cluster.ask import Asked
from baton.cluster.doctor import check_fleet
from baton.cluster.doctor_facts import Endpoint, FleetFacts, MachineFacts, RouterFacts, ServerFacts
from baton.cluster.doctor_finding import Finding, Level
from baton.cluster.doctor_gather import clock_offset_s, server_facts
from baton.cluster.doctor_machine import check_machine
from baton.core.handoff import Role, TransferMode

PREFILL = ServerFacts(
    url="http://10.0.0.1:8000",
    models=("m",),
    fingerprint="f",
    role=Role.PREFILL,
    told_role=Role.PREFILL,
    transfer_modes=frozenset(TransferMode),
    side_channel=Endpoint(host="10.0.0.1", port=9000),
    clock_offset_s=0.4,
)
DECODE = replace(
    PREFILL,
    url="http://10.0.0.2:8000",
    role=Role.DECODE,
    told_role=Role.DECODE,
    side_channel=Endpoint(host="10.0.0.2", port=9000),
)
ROUTER = RouterFacts(url="http://10.0.0.9:8080", mode="push")


def judged(*servers: ServerFacts, router: RouterFacts | None = ROUTER) -> list[Finding]:
    return check_fleet(FleetFacts(router=router, servers=servers))


def bad(findings: list[Finding]) -> list[tuple[str, str, str]]:
    return [(each.level.value, each.subject, each.message) for each in findings if each.level is not Level.OK]


PUSHES, PULLS = ({"transfer_modes": frozenset({mode})} for mode in TransferMode)


@pytest.mark.parametrize("mode", ["push", "pull", "auto"])
def test_a_good_pair_has_no_finding_but_ok(mode: str) -> None:
    findings = judged(PREFILL, DECODE, router=replace(ROUTER, mode=mode))
    assert bad(findings) == []
    # The router; each server and its side channel; fingerprint and model name.
    assert [each.subject for each in findings].count(PREFILL.url) == 2
    assert {"fingerprint", "served model name", ROUTER.url} <= {each.subject for each in findings}


def test_a_lone_server_needs_no_partner() -> None:
    assert bad(judged(ServerFacts(url="http://h", models=("m",)), router=None)) == []
    assert bad(judged(PREFILL, router=None)) == []


@pytest.mark.parametrize(
    ("prefill", "decode", "router", "level", "words"),
    [
        ({"error": "Connection refused"}, {}, {}, "error", "does not answer (Connection refused)"),
        ({}, {"state": "dead"}, {}, "error", "is dead"),
        ({}, {"state": "draining"}, {}, "warning", "draining"),
        ({}, {"silent_s": 7.0}, {}, "error", "said nothing for 7 s"),
        ({}, {"told_role": Role.PREFILL}, {}, "error", "told that its role is prefill, but it runs as decode"),
        ({}, {"role": Role.PREFILL, "told_role": None}, {}, "error", "No decode engine answers"),
        ({"role": None, "told_role": Role.PREFILL}, {}, {}, "error", "has no role"),
        (PUSHES, PULLS, {"mode": "auto"}, "error", "--transfer push, the other with pull"),
        (PUSHES, {}, {"mode": "pull"}, "error", "runs with --transfer push and the router with --mode pull"),
        ({}, {"fingerprint": "g"}, {}, "error", "fingerprint is g"),
        ({}, {"models": ("other",)}, {}, "error", "served model name is other, that of http://10.0.0.1:8000 is m"),
        ({"side_channel_error": "connection refused"}, {}, {}, "error", "side channel 10.0.0.1:9000 is closed"),
        ({}, {"side_channel_error": "timed out"}, {}, "warning", "side channel 10.0.0.2:9000 is closed"),
        ({"side_channel": Endpoint(host="127.0.0.1", port=1)}, {}, {}, "error", "--advertise-host"),
        ({}, {"tp_size": 4}, {}, "warning", "sizes are 1 and 4"),
        ({"tp_size": 2}, {"tp_size": 3}, {}, "error", "none divides the other"),
        ({}, {"clock_offset_s": -90.0}, {}, "warning", "90 s behind"),
        ({}, {}, {"unpaired": ("a and b differ in dtype",)}, "warning", "a and b differ in dtype"),
    ],
)
def test_each_way_to_be_wrong(
    prefill: dict[str, object], decode: dict[str, object], router: dict[str, object], level: str, words: str
) -> None:
    findings = judged(
        replace(PREFILL, **prefill),  # type: ignore[arg-type]
        replace(DECODE, **decode),  # type: ignore[arg-type]
        router=replace(ROUTER, **router),  # type: ignore[arg-type]
    )
    found, *_ = [each for each in bad(findings) if words in each[2]]
    assert found[0] == level
    assert found[2].endswith(".")


def test_a_mixed_engine_fits_where_the_router_was_told_either_role() -> None:
    assert bad(judged(replace(PREFILL, role=Role.MIXED), DECODE)) == []


def test_a_fleet_without_workers_and_one_of_whole_engines() -> None:
    ((level, _, message),) = bad(judged())
    assert level == "error" and "no workers" in message
    whole = replace(PREFILL, role=None, told_role=None, side_channel=None)
    assert bad(judged(whole, replace(whole, url="http://10.0.0.3:8000"))) == []


def test_another_vendors_pair_is_judged_by_what_the_router_was_told() -> None:
    def plain(url: str, role: Role) -> ServerFacts:
        return ServerFacts(url=url, is_baton=False, told_role=role, models=("m",))

    assert bad(judged(plain("http://a", Role.PREFILL), plain("http://b", Role.DECODE))) == []
    ((_, _, message),) = bad(judged(plain("http://a", Role.PREFILL)))
    assert message.startswith("No decode engine")


def test_stats_of_an_older_server_leave_what_they_do_not_tell() -> None:
    facts = server_facts("http://h", {"state": "ready", "served": {"model": "m"}})
    assert facts == ServerFacts(url="http://h", models=("m",))


def test_clocks_are_compared_in_the_middle_of_the_question() -> None:
    # Date says 1000, so it was 1000.5 on average; here it was 989 when half of the way there and back was done.
    assert clock_offset_s(Asked(status=200, date_s=1000.0, asked_s=988.0, answered_s=990.0)) == 11.5
    assert clock_offset_s(Asked(status=200, asked_s=0.0, answered_s=0.0)) is None


GOOD_MACHINE = MachineFacts(
    python=(3, 12, 1),
    num_cores=8,
    torch="2.13.0",
    backends=("UCX",),
    shared_memory_bytes=1 << 33,
    open_files=None,
    disk_free_bytes={"/tmp": 1 << 40},
)


def test_a_good_machine() -> None:
    assert bad(check_machine(GOOD_MACHINE)) == []


@pytest.mark.parametrize(
    ("facts", "level", "words"),
    [
        ({"python": (3, 10, 9)}, "error", "Python 3.10.9; install 3.11"),
        ({"torch": "", "torch_error": "No module named 'torch'"}, "error", "pip install 'baton[engine]'"),
        ({"num_gpu_devices": 2}, "warning", "uses none of the 2 NVIDIA devices"),
        ({"nixl_error": "this NIXL has no back end GDR"}, "error", "this NIXL has no back end GDR; choose others"),
        ({"shared_memory_bytes": 64 << 20}, "warning", "64 MiB are free in /dev/shm"),
        ({"shared_memory_bytes": None}, "warning", "no /dev/shm"),
        ({"open_files": 1024}, "warning", "only 1024"),
        ({"taken_ports": (8080,)}, "warning", "8080 already"),
        ({"disk_free_bytes": {"/tmp": 1 << 30}}, "warning", "1.0 GiB are free in /tmp"),
        ({"disk_free_bytes": {"/tmp": 1 << 20}}, "error", "make room"),
    ],
)
def test_each_want_of_a_machine(facts: dict[str, object], level: str, words: str) -> None:
    ((found, _, message),) = bad(check_machine(replace(GOOD_MACHINE, **facts)))  # type: ignore[arg-type]
    assert found == level and words in message
