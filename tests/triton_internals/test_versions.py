"""What `versions` reads of Triton's own objects, which differ between its versions."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dejavu_cache.triton_internals.versions import COVERED, expandable_descriptors

cuda = pytest.importorskip("triton.backends.nvidia.driver")

MAPS = [{"swizzle": 1}, {"swizzle": 2}]
DESCRIPTOR = "tensordesc<bf16[16, 64]>"


def kernel_of(signature: list[Any], maps: list[dict[str, int]], **changes: Any) -> Any:
    """Return a kernel whose launcher is Triton's own for a signature, around a built-in."""
    launcher = object.__new__(cuda.CudaLauncher)
    launcher.global_scratch_size = launcher.profile_scratch_size = 0
    launcher.launch = cuda.wrap_handle_tensordesc(len, dict(enumerate(signature)), maps)
    vars(launcher).update(changes)
    return SimpleNamespace(run=launcher)


pytestmark = pytest.mark.skipif(not COVERED, reason="no kernel has descriptors there")


def test_descriptors_are_found_by_their_place() -> None:
    kernel = kernel_of(["*fp32", DESCRIPTOR, "constexpr", DESCRIPTOR, "i32"], MAPS)
    assert expandable_descriptors(kernel) == {1: MAPS[0], 3: MAPS[1]}


def test_a_kernel_without_descriptors_has_none_to_expand() -> None:
    assert expandable_descriptors(kernel_of(["*fp32", "i32"], [])) == {}


@pytest.mark.skipif(not hasattr(cuda, "wrap_handle_tensordesc_impl"), reason="since Triton 3.8")
def test_descriptors_inside_of_tuples_are_left_to_triton() -> None:
    assert expandable_descriptors(kernel_of([DESCRIPTOR, ("i32", DESCRIPTOR)], MAPS)) == {}


@pytest.mark.parametrize(
    "change", [{"global_scratch_size": 64}, {"profile_scratch_size": 64}, {"gsan_enabled": True}]
)
def test_a_launch_that_needs_more_than_arguments_is_left_to_triton(change: dict[str, Any]) -> None:
    assert expandable_descriptors(kernel_of([DESCRIPTOR], MAPS[:1], **change)) == {}
