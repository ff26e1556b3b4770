"""Random weights: reproducible, keyed by name and seed, with the asked spread."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from baton.models.dummy import dummy_weights
from baton.models.slots import WeightSlot

pytestmark = pytest.mark.torch


def ignore(tensor: Tensor) -> None:
    """A slot that keeps nothing."""


SLOTS = {
    name: WeightSlot(shape=shape, load=ignore, optional=name == "lm_head.weight")
    for name, shape in {
        "a.weight": (100, 50),
        "b.weight": (100, 50),
        "x_norm.weight": (7,),
        "lm_head.weight": (2,),
    }.items()
}


def make(seed: int) -> dict[str, Tensor]:
    return dict(dummy_weights(SLOTS, std=0.02, seed=seed))


def test_norms_are_one_and_the_rest_is_normal() -> None:
    weights = make(0)
    assert weights["x_norm.weight"].tolist() == [1.0] * 7
    # 5000 samples: the standard error of the mean is 0.02 / 71, of the deviation 0.02 / 100.
    assert abs(weights["a.weight"].mean()) < 0.0015
    assert weights["a.weight"].std() == pytest.approx(0.02, rel=0.05)


def test_optional_tensors_are_left_out() -> None:
    assert set(make(0)) == set(SLOTS) - {"lm_head.weight"}


def test_each_name_and_seed_has_its_own_numbers() -> None:
    assert torch.equal(make(0)["a.weight"], make(0)["a.weight"])
    assert not torch.equal(make(0)["a.weight"], make(0)["b.weight"])
    assert not torch.equal(make(0)["a.weight"], make(1)["a.weight"])


def test_order_does_not_matter() -> None:
    turned = dict(dummy_weights(dict(reversed(SLOTS.items())), std=0.02, seed=0))
    assert torch.equal(turned["b.weight"], make(0)["b.weight"])
