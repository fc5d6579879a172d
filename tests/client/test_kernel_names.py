"""Names of kernels on the command line."""

from __future__ import annotations

import pytest
from dejavu_client.cli.errors import NothingFoundError
from dejavu_client.cli.queries import matching_kernels, shorten_kernels


@pytest.mark.parametrize(
    ("pattern", "kernels"),
    [
        ("add", ["pkg.kernels.add"]),
        ("pkg.kernels.add", ["pkg.kernels.add"]),
        ("*add*", ["other.add_one", "pkg.kernels.add"]),
        ("kernels.*", ["pkg.kernels.add"]),
    ],
)
def test_a_kernel_is_named_by_its_end_or_a_glob(pattern: str, kernels: list[str]) -> None:
    assert matching_kernels(["pkg.kernels.add", "other.add_one"], pattern, "here") == kernels


@pytest.mark.parametrize("typo", ["ad", "kernels.ad", "pkg.kernels.addd", "Add"])
def test_a_similar_kernel_is_suggested(typo: str) -> None:
    with pytest.raises(NothingFoundError, match=r"did you mean pkg\.kernels\.add"):
        matching_kernels(["pkg.kernels.add", "pkg.kernels.mul"], typo, "here")


def test_a_kernel_is_shortened_to_an_end_that_names_it_alone() -> None:
    names = ["pkg.a.add", "pkg.b.add", "pkg.mul", "add", "", "pkg.a.add"]
    short = shorten_kernels(names)
    assert short == ["a.add", "b.add", "mul", "add", "", "a.add"]
    for name, end in zip(names[:4], short[:4], strict=True):
        assert matching_kernels(names[:4], end, "here") == [name]
