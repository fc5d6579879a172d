"""Differences between Triton 3.6 and 3.9, as far as this package depends on them.

`JITFunction.run` of all these versions does the same steps in the same order. A launch by anything
else (another version, a patched or interpreted function) is not covered, and is left to Triton.

Triton's private objects that other packages use are imported from here alone.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import triton

from ..errors import UnsupportedTritonError

if (_VERSION := tuple(map(int, triton.__version__.split("+")[0].split(".")[:2]))) < (3, 6):
    raise UnsupportedTritonError(
        f"dejavu-cache needs Triton 3.6 or later, and {triton.__version__} is installed: "
        "pip install 'triton>=3.6,<3.10', with the torch that goes with it"
    )
from triton import knobs
from triton.backends.compiler import BaseBackend
from triton.compiler.errors import CompilationError
from triton.runtime import _async_compile as async_compile
from triton.runtime import driver, jit
from triton.runtime.autotuner import Autotuner, Heuristics, autotune
from triton.runtime.errors import OutOfResources, PTXASError
from triton.runtime.jit import JITFunction

if TYPE_CHECKING:
    from triton.compiler import CompiledKernel

__all__ = [
    "Autotuner",
    "CompilationError",
    "Heuristics",
    "JITFunction",
    "OutOfResources",
    "PTXASError",
    "async_compile",
    "autotune",
    "driver",
    "knobs",
]

COVERED = (3, 6) <= _VERSION <= (3, 9)
"""Whether `JITFunction.run` of this Triton is known, and the Hopper kernel was run with it."""

TYPE_NAMES: Mapping[str, str] = getattr(jit, "type_canonicalisation_dict", {})
"""Triton's names of PyTorch's dtypes."""

HOOK_CHAIN: Any = knobs.HookChain
"""Class of launch hooks, whose instances are often empty and never None."""

SPECIALIZE = "__specialize(__backend, {value}, {flags})"
"""Expression for an argument's specialisation, in terms of what `specializer` returns."""

_KNOBS_SINCE = {
    "__knobs.runtime.debug": (3, 6),
    "__knobs.compilation.instrumentation_mode": (3, 6),
    "__knobs.runtime.add_stages_inspection_hook": (3, 7),
    "__knobs.compilation.fpsan_homomorphic_casts": (3, 9),
}
WATCHED_KNOBS = tuple(knob for knob, since in _KNOBS_SINCE.items() if since <= _VERSION)
"""Expressions for the knobs that `JITFunction.run` chooses a kernel by."""

watched_values = attrgetter(*(knob.removeprefix("__knobs.") for knob in WATCHED_KNOBS))
"""Function of `triton.knobs` that returns their values."""


def specializer(fn: JITFunction) -> dict[str, Any]:
    """Return the names in `SPECIALIZE`: Triton's function, and the current device's backend.

    The jit function must have been launched on that device.
    """
    *_, backend, binder = fn.device_caches[driver.active.get_current_device()]
    return {"__specialize": binder.__globals__["specialize_impl"], "__backend": backend}


def specialize_values(
    fn: JITFunction, backend: BaseBackend, arguments: Mapping[str, Any]
) -> dict[str, tuple[Any, Any]]:
    """Return the types and attributes that `JITFunction.run` finds for arguments, by parameter.

    The attributes are None if there are none.
    """
    if not arguments:
        return {}
    binder = jit.create_function_from_signature(fn.signature, fn.params, backend)
    bound, specialization, options = binder(**{**dict.fromkeys(fn.arg_names), **arguments})
    indices = {name: fn.arg_names.index(name) for name in arguments}
    _, signature, _, attrs = fn._pack_args(backend, {}, bound, specialization, options)
    return {name: (signature[name], attrs.get((index,))) for name, index in indices.items()}


def only_alignment_counts(fn: JITFunction) -> bool:
    """Return whether a tensor's specialisation is its dtype and its alignment on 16 bytes."""
    backend = specializer(fn)["__backend"]
    kind: Any = type(backend)
    return bool(kind.get_tensor_specialization is BaseBackend.get_tensor_specialization)


def kernel_follows_hooks() -> bool:
    """Return whether a hook takes part in choosing the kernel, in a way that only Triton knows."""
    return _VERSION >= (3, 7) and knobs.runtime.add_stages_inspection_hook is not None


def is_covered(fn: Any) -> bool:
    """Return whether a function is launched by the `JITFunction.run` that this module knows."""
    return (
        COVERED
        and isinstance(fn, JITFunction)
        and type(fn).run is JITFunction.run
        and "run" not in vars(fn)
        and JITFunction.run.__module__ == jit.__name__
    )


def active_hook(hook: Any) -> Any:
    """Return a launch hook, or None if calling it does nothing."""
    return None if hook.__class__ is HOOK_CHAIN and not hook.calls else hook


def c_launcher(kernel: CompiledKernel, expanded: bool = False) -> Callable[..., None]:
    """Return the function that puts a compiled kernel on a stream.

    It takes `(x, y, z, stream, launch_metadata, enter_hook, exit_hook, arguments)`. It calls the
    host module's C function directly where Triton's Python launcher adds nothing to it (CUDA, no
    scratch memory, no sanitizer), and that launcher elsewhere.

    Args:
        kernel: Triton's `CompiledKernel`, loaded onto the device.
        expanded: take the values that `expand_descriptor` returns in the place of each descriptor;
            only for a kernel that has `expandable_descriptors`.
    """
    run = kernel.run
    # A Python launcher of Triton's own around the C function expands descriptors.
    if not (expanded or (_allocates_nothing(run) and inspect.isbuiltin(run.launch))):
        return _python_launcher(kernel)
    launch = _behind_descriptors(run)["launcher"] if expanded else run.launch
    function, packed = kernel.function, kernel.packed_metadata
    cooperative, pdl = run.launch_cooperative_grid, run.launch_pdl
    if _VERSION >= (3, 7):
        annotations, signature = run.arg_annotations, run.kernel_signature

        def call(
            x: int, y: int, z: int, stream: int, metadata: Any, enter: Any, leave: Any, args: Any
        ) -> None:
            launch(
                x, y, z, stream, function, cooperative, pdl, packed, metadata, enter, leave,
                None, None, annotations, signature, (*args,),
            )  # fmt: skip

    else:

        def call(
            x: int, y: int, z: int, stream: int, metadata: Any, enter: Any, leave: Any, args: Any
        ) -> None:
            launch(
                x, y, z, stream, function, cooperative, pdl, None, None, packed, metadata,
                enter, leave, *args,
            )  # fmt: skip

    return call


def expandable_descriptors(kernel: CompiledKernel) -> dict[int, Any]:
    """Return Triton's metadata of a kernel's TMA descriptors, by their place in the arguments.

    Triton makes a tensor map from each descriptor at each launch. Its C function takes one that was
    made before. Empty for a kernel without descriptors, or with some inside of tuples, and for any
    other launcher. The kernel is loaded onto the device.
    """
    if not _allocates_nothing(kernel.run):
        return {}
    inside = _behind_descriptors(kernel.run)
    places, metadata = _descriptor_places(inside), inside.get("tensordesc_meta")
    if not (places and metadata and inspect.isbuiltin(inside.get("launcher"))):
        return {}
    return dict(zip(places, metadata, strict=True))


def expand_descriptor(descriptor: Any, metadata: Any) -> list[Any]:
    """Return a TMA descriptor as the C function takes it: a tensor map, its shape and strides.

    The metadata is what `expandable_descriptors` has of its place.
    """
    from triton.backends.nvidia import driver as cuda

    others = () if _VERSION < (3, 8) else (None,)  # of the launch, which this function ignores
    expanded: list[Any] = cuda.make_tensordesc_arg(descriptor, metadata, *others)
    return expanded


def _behind_descriptors(run: Any) -> dict[str, Any]:
    """Return what Triton's function that expands descriptors has in its closure, by name."""
    wrapper = run.launch
    if not (COVERED and inspect.isfunction(wrapper)):
        return {}
    cells = wrapper.__closure__ or ()
    return {
        name: cell.cell_contents
        for name, cell in zip(wrapper.__code__.co_freevars, cells, strict=True)
    }


def _descriptor_places(inside: Mapping[str, Any]) -> list[int]:
    """Return which arguments are descriptors, in order; none if a tuple has some."""
    if _VERSION < (3, 8):
        return sorted(inside.get("tensordesc_indices", ()))
    paths = inside.get("relevant_paths", {})  # Triton 3.8 has a tree: {0: {}, 2: {1: {}}}
    return [] if any(paths.values()) else sorted(paths)


def _allocates_nothing(run: Any) -> bool:
    """Return whether a launcher is Triton's own for CUDA, and its launches need no memory."""
    return (
        type(run).__name__ == "CudaLauncher"
        and type(run).__module__ == "triton.backends.nvidia.driver"
        and run.global_scratch_size == 0
        and getattr(run, "profile_scratch_size", 0) == 0
        and not getattr(run, "gsan_enabled", False)
    )


def _python_launcher(kernel: CompiledKernel) -> Callable[..., None]:
    def call(
        x: int, y: int, z: int, stream: int, metadata: Any, enter: Any, leave: Any, args: Any
    ) -> None:
        kernel.run(
            x, y, z, stream, kernel.function, kernel.packed_metadata, metadata, enter, leave, *args
        )

    return call


def thread_barrier(language: Any) -> Any:
    """Return Gluon's barrier of a group of warps, which was renamed in Triton 3.7."""
    return language.thread_barrier if _VERSION < (3, 7) else language.barrier


def reinterpret_shared(language: Any) -> Any:
    """Return Gluon's view of shared memory in another form, which became public in Triton 3.9."""
    descriptor = language.shared_memory_descriptor
    return descriptor._reinterpret if _VERSION < (3, 9) else descriptor.reinterpret


def load_box(tma: Any) -> Any:
    """Return Gluon's load of a box by TMA, which was renamed in Triton 3.8."""
    return tma.async_copy_global_to_shared if _VERSION < (3, 8) else tma.async_load
