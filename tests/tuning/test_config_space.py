"""A config space is a sequence of `triton.Config`, built when it is looked at."""

from collections.abc import Sequence
from typing import Any

import pytest
import triton
from support.addition import add_one
from support.kernels import launch

from dejavu_cache import cached_autotune, config_space
from dejavu_cache.errors import SettingsError


def test_it_holds_all_combinations_in_the_order_they_are_written() -> None:
    space = config_space({"M": [16, 32], "N": [64]}, num_warps=[4, 8], num_stages=[2])
    expected = [({"M": size, "N": 64}, warps, 2) for size in (16, 32) for warps in (4, 8)]
    assert [(config.kwargs, config.num_warps, config.num_stages) for config in space] == expected
    assert isinstance(space, Sequence)
    assert space[-1] == triton.Config({"M": 32, "N": 64}, num_warps=8, num_stages=2)
    assert space[1:3] == [space[1], space[2]]


def test_conditions_name_what_they_look_at() -> None:
    space = config_space(
        {"M": [16, 32], "N": [16, 32]},
        num_warps=[4, 8],
        where=[lambda M, N: M >= N, lambda num_warps, M, at=32: num_warps == 4 or at <= M],
    )
    expected = [(16, 16, 4), (32, 16, 4), (32, 16, 8), (32, 32, 4), (32, 32, 8)]
    assert [(*config.kwargs.values(), config.num_warps) for config in space] == expected


def test_vendors_have_parameters_of_their_own() -> None:
    space = config_space(
        {"BLOCK": [16, 32]},
        num_stages=[3, 4],
        hip={"waves_per_eu": [0, 2], "num_stages": [2]},
        cuda={"maxnreg": [None, 128]},
        where=lambda waves_per_eu, BLOCK: waves_per_eu == 0 or BLOCK == 32,
    )
    assert [(config.kwargs, config.num_stages) for config in space.for_vendor("hip")] == [
        ({"BLOCK": 16, "waves_per_eu": 0}, 2),
        ({"BLOCK": 32, "waves_per_eu": 0}, 2),
        ({"BLOCK": 32, "waves_per_eu": 2}, 2),
    ]
    assert [config.maxnreg for config in space.for_vendor("cuda")] == [None, 128] * 4
    assert {*space[0].kwargs} == {"BLOCK"}, "the interpreter is nobody's GPU"


def test_it_is_built_when_it_is_looked_at() -> None:
    looked: dict[int, bool] = {}
    space = config_space({"BLOCK": [16, 32]}, where=lambda BLOCK: looked.setdefault(BLOCK, True))
    kernel = cached_autotune(configs=space, key=["n"])(add_one)
    assert not looked
    launch(kernel)
    assert [*looked] == [16, 32]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"where": lambda WIDTH: True}, "where looks at WIDTH: choose from BLOCK"),
        ({"num_warps": []}, "num_warps has no values"),
        ({"where": lambda BLOK: True}, "where looks at BLOK: did you mean 'BLOCK'"),
        ({"params": {"num_warps": [8]}}, r"give it as an argument, num_warps=\[8\]"),
    ],
)
def test_mistakes_are_named_where_they_are_made(options: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        config_space(**{"params": {"BLOCK": [16]}, **options})


def test_conditions_that_leave_nothing_are_said() -> None:
    with pytest.raises(SettingsError, match="no combination of BLOCK"):
        len(config_space({"BLOCK": [16]}, where=lambda BLOCK: BLOCK > 16))
