"""A kernel whose identity raises an error is launched as plain Triton launches it."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.kernels import load

from dejavu_cache.errors import UnreadableKernelError
from dejavu_cache.triton_internals.identity import identify
from dejavu_cache.triton_internals.source_hash import source_hash

LAZY = """
import types, triton, triton.language as tl
class LazyModule(types.ModuleType):
    def __getattr__(self, name):
        raise ImportError("please install the optional package")
class Placeholder:
    def __getattr__(self, name):
        raise ImportError("please install the optional package")
module = LazyModule("optional")
placeholder = Placeholder()
"""
KERNEL = """
@triton.heuristics({"B": block})
@triton.jit
def k(x, B: tl.constexpr):
    tl.store(x, B)
"""


@pytest.mark.parametrize("name", ["module", "placeholder"])
def test_an_optional_package_that_is_missing_is_the_reason(tmp_path: Path, name: str) -> None:
    heuristic = f"block = lambda args: {name}.tile(args) if args['x'] is None else 64\n"
    kernel = load(tmp_path / "lazy.py", LAZY + heuristic + KERNEL).k
    identity = identify(kernel, [])
    assert identity.source is None
    assert "please install the optional package" in str(identity.unstored)
    with pytest.raises(UnreadableKernelError, match="ImportError"):
        source_hash(kernel)


@pytest.mark.parametrize(
    "heuristic",
    [
        "block = lambda args: max((16, 64), key=lambda size: -size)",
        "other, block = lambda n, k=1: n + k, lambda args: 64",
    ],
)
def test_lambdas_that_share_a_line_are_told_apart(tmp_path: Path, heuristic: str) -> None:
    kernel = load(tmp_path / "edited.py", f"{LAZY}{heuristic}\n{KERNEL}").k
    assert identify(kernel, []).unstored is None


def test_lambdas_that_differ_in_defaults_alone_cannot_be_told_apart(tmp_path: Path) -> None:
    heuristic = "block, other = lambda args, k=64: k, lambda args, k=32: k"
    kernel = load(tmp_path / "edited.py", f"{LAZY}{heuristic}\n{KERNEL}").k
    assert "give it a line of its own" in str(identify(kernel, []).unstored)


def test_a_file_that_is_broken_while_it_is_edited_is_the_reason(tmp_path: Path) -> None:
    path = tmp_path / "edited.py"
    kernel = load(path, f"{LAZY}block = lambda args: 64\n{KERNEL}").k
    path.write_text(path.read_text() + "def oops(:\n")
    assert "cannot be parsed" in str(identify(kernel, []).unstored)


def test_a_config_value_that_raises_is_the_reason(tmp_path: Path) -> None:
    module = load(tmp_path / "value.py", f"{LAZY}block = lambda args: 64\n{KERNEL}")
    assert identify(module.k, [{"FN": module.placeholder}]).source is None


@pytest.mark.parametrize(
    "heuristic", ["block = lambda args: 64", "def block(args):\n    return 64"]
)
@pytest.mark.parametrize(
    ("old", "new"), [("64", "128"), ("import types", "# a line more\nimport types")]
)
def test_a_file_that_changed_since_its_import_is_the_reason(
    tmp_path: Path, heuristic: str, old: str, new: str
) -> None:
    path = tmp_path / "edited.py"
    text = f"{LAZY}{heuristic}\n{KERNEL}"
    kernel = load(path, text).k
    path.write_text(text.replace(old, new))
    # Triton 3.9 reads a kernel's text when it is first needed, and then finds other lines.
    assert "has changed since it was imported" in str(identify(kernel, []).unstored)
    assert identify(load(path, text.replace(old, new)).k, []).unstored is None


CLASS = """
import torch, triton, triton.language as tl
from dejavu_cache import cached_autotune
CONFIGS = [triton.Config({"B": size}) for size in (16, 32)]
class Scale:
    BY = tl.constexpr(3)
    @@
    @cached_autotune(configs=CONFIGS, key=[])
    @triton.jit
    def scale(x, B: tl.constexpr):
        tl.store(x, Scale.BY)
"""
HELPER = """
    @staticmethod
    def launch(x):
        return torch.empty_like(x)
"""


def test_a_kernel_that_names_its_own_class_is_told_what_to_move(tmp_path: Path) -> None:
    module = load(tmp_path / "method.py", CLASS.replace("@@", ""))
    reason = str(identify(module.Scale.scale.fn, []).unstored)
    assert "Scale.scale is an autotuned kernel" in reason
    assert "keep what kernels read in a class without it" in reason


def test_a_method_that_is_read_because_a_kernel_names_its_class_is_named(tmp_path: Path) -> None:
    module = load(tmp_path / "helper.py", CLASS.replace("    @@\n", HELPER))
    reason = str(identify(module.Scale.scale.fn, []).unstored)
    assert "torch._VariableFunctionsClass.empty_like" in reason
    assert "Scale.launch counts because Scale is read as a whole" in reason


def test_functions_in_any_place_of_a_file_are_found(tmp_path: Path) -> None:
    source = """
class Tiles:
    __sizes = (64, 128, 0.0, -0.0)

    @functools.wraps(len)
    def pick(self, args, *, which=1):
        tile = super().__init__
        try:
            return {"a": self.__sizes[which]}["a"] if which in {"x", "y", 1} else tile
        except KeyError:
            return 1

def make(size):
    def block(args, *rest, **options):
        '''Choose.'''
        return max(size, *(one for one in TILES.pick(args)), key=lambda one: one + size)
    return block

TILES = Tiles()
block = make(64)
block(dict) if False else None
"""
    path = tmp_path / "places.py"
    module = load(path, "import functools" + LAZY + source + KERNEL)
    assert identify(module.k, []).unstored is None
