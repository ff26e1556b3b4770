"""The digest of a checkpoint: the same for the same values, however they are stored; another for any sampled change."""

from __future__ import annotations

import pytest
import torch

from baton.models.weights_digest import WeightsDigest

pytestmark = pytest.mark.torch


def digest(tensors: dict[str, torch.Tensor]) -> str:
    watched = WeightsDigest()
    assert [name for name, _ in watched.watch(tensors.items())] == list(tensors)
    return watched.hexdigest()


def test_order_and_layout_do_not_matter_values_names_and_shapes_do() -> None:
    torch.manual_seed(0)
    one, two = torch.randn(300, 7), torch.randn(5)
    base = digest({"a": one, "b": two})
    assert len(base) == 16
    assert digest({"b": two, "a": one.t().contiguous().t()}) == base
    assert digest({"a": one.to(torch.bfloat16).float(), "b": two}) != base
    assert digest({"a": one, "c": two}) != base
    assert digest({"a": one.reshape(7, 300), "b": two}) != base
    changed = two.clone()
    changed[4] += 1e-3
    assert digest({"a": one, "b": changed}) != base
