"""The text at /metrics has the names, types, labels and bucket bounds of vLLM 0.32's v1/metrics/loggers.py."""

from __future__ import annotations

import gc
import re
from dataclasses import replace

import pytest
from prometheus_client import REGISTRY
from prometheus_client.parser import text_string_to_metric_families

from baton.core.exchange import TransferRecord
from baton.core.handoff import TransferMode
from baton.core.request import FinishReason
from baton.core.stats import EMPTY, TransferStats
from baton.obs.figures import EngineFigures
from baton.obs.metrics import Exposition

ENGINE = {"model_name": "tiny", "engine": "0"}

# family -> (type, labels besides model_name and engine), as read in vLLM 0.32.0
VLLM = {
    "vllm:num_requests_running": ("gauge", ()),
    "vllm:num_requests_waiting": ("gauge", ()),
    "vllm:kv_cache_usage_perc": ("gauge", ()),
    "vllm:prefix_cache_queries": ("counter", ()),
    "vllm:prefix_cache_hits": ("counter", ()),
    "vllm:num_preemptions": ("counter", ()),
    "vllm:prompt_tokens": ("counter", ()),
    "vllm:prompt_tokens_by_source": ("counter", ("source",)),
    "vllm:prompt_tokens_cached": ("counter", ()),
    "vllm:generation_tokens": ("counter", ()),
    "vllm:request_success": ("counter", ("finished_reason",)),
    "vllm:time_to_first_token_seconds": ("histogram", ()),
    "vllm:inter_token_latency_seconds": ("histogram", ()),
    "vllm:request_time_per_output_token_seconds": ("histogram", ()),
    "vllm:e2e_request_latency_seconds": ("histogram", ()),
    "vllm:request_queue_time_seconds": ("histogram", ()),
    "vllm:request_inference_time_seconds": ("histogram", ()),
    "vllm:request_prefill_time_seconds": ("histogram", ()),
    "vllm:request_decode_time_seconds": ("histogram", ()),
    "vllm:request_prompt_tokens": ("histogram", ()),
    "vllm:request_generation_tokens": ("histogram", ()),
    "vllm:request_max_num_generation_tokens": ("histogram", ()),
    "vllm:request_prefill_kv_computed_tokens": ("histogram", ()),
    "vllm:request_params_n": ("histogram", ()),
    "vllm:request_params_max_tokens": ("histogram", ()),
    "vllm:iteration_tokens_total": ("histogram", ()),
}
NIXL = {
    "vllm:nixl_xfer_time_seconds": ("histogram", ()),
    "vllm:nixl_post_time_seconds": ("histogram", ()),
    "vllm:nixl_bytes_transferred": ("histogram", ()),
    "vllm:nixl_num_descriptors": ("histogram", ()),
    "vllm:nixl_num_failed_transfers": ("counter", ()),
    "vllm:nixl_num_failed_notifications": ("counter", ()),
    "vllm:nixl_num_kv_expired_reqs": ("counter", ()),
    "vllm:nixl_num_notifications_after_expiry": ("counter", ()),
}
"""Of engines with a peer, as read in vLLM 0.33."""
BOUNDS = {  # bounds of vLLM 0.32.0's v1/metrics/buckets.py: how many, and where they start and end
    "vllm:time_to_first_token_seconds": (22, 0.001, 2560.0),
    "vllm:inter_token_latency_seconds": (19, 0.01, 80.0),
    "vllm:request_time_per_output_token_seconds": (19, 0.01, 80.0),
    "vllm:e2e_request_latency_seconds": (21, 0.3, 7680.0),
    "vllm:request_queue_time_seconds": (21, 0.3, 7680.0),
    "vllm:iteration_tokens_total": (13, 1.0, 16384.0),
    "vllm:request_params_n": (5, 1.0, 20.0),
    "vllm:request_prompt_tokens": (11, 1.0, 2000.0),
    "vllm:nixl_xfer_time_seconds": (12, 0.005, 5.0),
    "vllm:nixl_post_time_seconds": (13, 0.001, 5.0),
    "vllm:nixl_bytes_transferred": (12, 2.0**11, 2.0**33),
    "vllm:nixl_num_descriptors": (14, 10.0, 50000.0),
}


def exposition(figures: EngineFigures | None = None, model_name: str = "tiny") -> str:
    config = {"block_size": "16", "num_gpu_blocks": "1024"}
    rendered = Exposition(figures or EngineFigures(2048), model_name=model_name, cache_config=config).render()
    return rendered.decode()


def families(text: str) -> dict[str, object]:
    return {family.name: family for family in text_string_to_metric_families(text)}


@pytest.mark.parametrize("name", sorted(VLLM | NIXL))
def test_every_family_has_vllms_type_and_labels(name: str) -> None:
    kind, extra = (VLLM | NIXL)[name]
    family = families(exposition(EngineFigures(2048, hands_over=name in NIXL)))[name]
    assert family.type == kind  # type: ignore[attr-defined]
    assert family.samples, "shown from the start, so that rates have a zero to grow from"  # type: ignore[attr-defined]
    for sample in family.samples:  # type: ignore[attr-defined]
        assert {key: value for key, value in sample.labels.items() if key in ENGINE} == ENGINE
        assert set(sample.labels) - {"le"} == {*ENGINE, *extra}


@pytest.mark.parametrize("name", sorted(BOUNDS))
def test_histograms_have_vllms_bounds(name: str) -> None:
    text = exposition(EngineFigures(2048, hands_over="nixl" in name))
    bounds = [float(bound) for bound in re.findall(rf'^{name}_bucket{{.*le="([^"]+)"', text, flags=re.MULTILINE)]
    assert (len(bounds) - 1, bounds[0], bounds[-2]) == BOUNDS[name]
    assert bounds[-1] == float("inf") and bounds == sorted(bounds)


def test_counters_end_in_total_and_histograms_have_sum_and_count() -> None:
    figures = EngineFigures(2048)
    figures.generation_tokens = 7
    figures.success[FinishReason.LENGTH] = 2
    figures.step_tokens.observe(300)
    text = exposition(figures)
    assert 'vllm:generation_tokens_total{engine="0",model_name="tiny"} 7.0' in text
    assert 'vllm:request_success_total{engine="0",finished_reason="length",model_name="tiny"} 2.0' in text
    assert 'vllm:request_success_total{engine="0",finished_reason="abort",model_name="tiny"} 0.0' in text
    assert 'vllm:iteration_tokens_total_sum{engine="0",model_name="tiny"} 300.0' in text
    assert 'vllm:iteration_tokens_total_count{engine="0",model_name="tiny"} 1.0' in text
    assert 'vllm:iteration_tokens_total_bucket{engine="0",le="512.0",model_name="tiny"} 1.0' in text
    assert 'vllm:iteration_tokens_total_bucket{engine="0",le="256.0",model_name="tiny"} 0.0' in text


def record(num_bytes: int, early_bytes: int) -> TransferRecord:
    return TransferRecord(
        transfer_id="t",
        mode=TransferMode.PUSH,
        num_bytes=num_bytes,
        num_descriptors=12,
        post_s=0.002,
        wire_s=0.25,
        exposed_s=0.03,
        early_bytes=early_bytes,
    )


def test_what_vllm_does_not_measure_of_handoffs() -> None:
    figures = EngineFigures(2048, hands_over=True)
    assert figures.handoff is not None and figures.handoff.early_share is None
    figures.handoff.observe(record(1000, 250))
    figures.handoff.observe(record(3000, 2950))
    figures.handoff.observe(record(0, 0))  # everything was there already
    assert figures.handoff.early_share == 0.8
    figures.handoff.stats = TransferStats(
        num_quarantined=4, num_malformed=5, num_late=6, num_dropped=9, failures={"a": 1, "b": 2}
    )
    figures.stats = replace(EMPTY, pinned_blocks=7, num_fallbacks=8)
    text = exposition(figures)
    for line in (
        'baton_handoff_exposed_seconds_bucket{engine="0",le="0.05",model_name="tiny"} 3.0',
        'baton_handoff_exposed_seconds_bucket{engine="0",le="0.025",model_name="tiny"} 0.0',
        'baton_handoff_early_share_bucket{engine="0",le="0.25",model_name="tiny"} 1.0',
        'baton_handoff_early_share_count{engine="0",model_name="tiny"} 2.0',
        'baton_handoff_quarantined{engine="0",model_name="tiny"} 4.0',
        'baton_handoff_pinned_blocks{engine="0",model_name="tiny"} 7.0',
        'baton_handoff_malformed_total{engine="0",model_name="tiny"} 5.0',
        'baton_handoff_late_total{engine="0",model_name="tiny"} 6.0',
        'baton_handoff_dropped_total{engine="0",model_name="tiny"} 9.0',
        'baton_handoff_fallbacks_total{engine="0",model_name="tiny"} 8.0',
        'baton_handoff_failures_total{engine="0",model_name="tiny",reason="b"} 2.0',
        'vllm:nixl_num_failed_transfers_total{engine="0",model_name="tiny"} 3.0',
        'vllm:nixl_num_notifications_after_expiry_total{engine="0",model_name="tiny"} 6.0',
    ):
        assert line in text


def test_an_engine_without_a_peer_shows_nothing_of_handoffs() -> None:
    text = exposition()
    assert "nixl" not in text and "handoff" not in text and "external_kv_transfer" not in text


def test_the_cache_is_described_by_labels() -> None:
    assert 'vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="1024"} 1.0' in exposition()


def test_the_process_is_measured_too() -> None:
    found = families(exposition())
    assert {"process_resident_memory_bytes", "process_cpu_seconds", "python_info", "python_gc_collections"} <= set(
        found
    )


def test_odd_model_names_are_escaped() -> None:
    name = 'a"b\\c\nd'
    family = families(exposition(model_name=name))["vllm:num_requests_running"]
    assert family.samples[0].labels["model_name"] == name  # type: ignore[attr-defined]


def test_the_librarys_global_registry_stays_untouched() -> None:
    before = {family.name for family in REGISTRY.collect()}
    hooks = len(gc.callbacks)
    exposition()
    exposition()
    assert {family.name for family in REGISTRY.collect()} == before
    assert not any(name.startswith("vllm") for name in before)
    assert len(gc.callbacks) == hooks
