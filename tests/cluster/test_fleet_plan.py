"""What a local fleet consists of."""

from __future__ import annotations

from pathlib import Path

import pytest

from baton.cluster.fleet_plan import FleetConfig, Machine, MemberKind, engine_plans, router_plan, this_machine
from baton.core.errors import ConfigError
from baton.router.config import Mode


def config(**given: object) -> FleetConfig:
    fields = {"model": "M", "num_prefill": 1, "num_decode": 2, "mode": Mode.AUTO, "port": 8080, "log_dir": Path("/x")}
    return FleetConfig(**(fields | given))  # type: ignore[arg-type]


def value_of(command: tuple[str, ...], flag: str) -> str:
    return command[command.index(flag) + 1]


def test_prefill_then_decode_each_with_its_role() -> None:
    plans = engine_plans(config(serve_flags=("--dtype", "float32")), Machine(num_cores=8), {})
    assert [plan.name for plan in plans] == ["prefill-0", "decode-0", "decode-1"]
    assert [value_of(plan.command, "--role") for plan in plans] == ["prefill", "decode", "decode"]
    assert all(plan.command[-2:] == ("--dtype", "float32") and plan.port == 0 for plan in plans)


@pytest.mark.parametrize("mode", list(Mode))
def test_the_mode_is_the_routers_alone(mode: Mode) -> None:
    given, machine = config(mode=mode), Machine(num_cores=8)
    assert engine_plans(given, machine, {}) == engine_plans(config(), machine, {})
    assert value_of(router_plan(given, ["http://p"], ["http://d"]).command, "--mode") == mode.value


@pytest.mark.parametrize(("num_cores", "threads"), [(12, "4"), (2, "1"), (7, "2")])
def test_cores_are_shared_and_each_engine_has_one(num_cores: int, threads: str) -> None:
    for plan in engine_plans(config(), Machine(num_cores=num_cores), {}):
        assert plan.environment == {"OMP_NUM_THREADS": threads}


def test_what_a_person_set_is_left_alone() -> None:
    for plan in engine_plans(config(), Machine(num_cores=12), {"OMP_NUM_THREADS": "5"}):
        assert plan.environment == {}


def test_gpus_go_round() -> None:
    def seen(gpus: tuple[str, ...], device: str) -> list[str | None]:
        plans = engine_plans(config(device=device), Machine(num_cores=3, gpus=gpus), {})
        return [plan.environment.get("CUDA_VISIBLE_DEVICES") for plan in plans]

    assert seen(("0", "1"), "auto") == ["0", "1", "0"]
    assert seen(("6", "7", "2"), "cuda") == ["6", "7", "2"]
    assert seen(("0", "1"), "cpu") == seen(("0", "1"), "cuda:1") == [None, None, None]


def test_devices_are_those_that_cuda_may_see(tmp_path: Path) -> None:
    for name in ("nvidia0", "nvidia3", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    assert this_machine({}, tmp_path).gpus == ("0", "1")  # CUDA counts what is there
    assert this_machine({"CUDA_VISIBLE_DEVICES": "3, 1"}, tmp_path).gpus == ("3", "1")
    assert this_machine({"CUDA_VISIBLE_DEVICES": ""}, tmp_path).gpus == ()
    assert this_machine({}, tmp_path / "none").gpus == ()


def test_the_router_is_told_every_engine_and_keeps_secrets_out_of_its_arguments() -> None:
    given = config(mode=Mode.PUSH, route_flags=("--host", "h"), route_environment={"BATON_API_KEY": "s"})
    plan = router_plan(given, ["http://p"], ["http://d0", "http://d1"])
    words = plan.command[3:]
    assert words[:7] == ("route", "--prefill", "http://p", "--decode", "http://d0", "--decode", "http://d1")
    assert value_of(words, "--mode") == "push" and value_of(words, "--host") == "h"
    assert plan.port == 8080 and plan.environment == {"BATON_API_KEY": "s"} and "s" not in words
    assert plan.kind is MemberKind.ROUTER


@pytest.mark.parametrize("given", [{"num_prefill": 0}, {"num_decode": 0}, {"max_restarts": -1}])
def test_fleets_that_cannot_be(given: dict[str, int]) -> None:
    with pytest.raises(ConfigError):
        config(**given)
