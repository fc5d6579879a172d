"""What the launch path needs to know of Triton's inside, and where its versions differ.

`JITFunction.run` of Triton 3.4 to 3.9 does the same steps in the same order; what differs between them is here.
Anything else (another version, a patched or interpreted function, another kind of launcher) counts as not covered,
and its launches go through `JITFunction.run` itself.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import triton
from triton import knobs
from triton.backends.compiler import BaseBackend
from triton.runtime import jit

__all__ = [
    "COVERED",
    "SPECIALIZE",
    "WATCHED",
    "active_hook",
    "autotuning_listener",
    "c_launcher",
    "is_covered",
    "kernel_follows_hooks",
    "only_alignment_counts",
    "specializer",
    "triton_key",
]

_VERSION: tuple[int, ...] = tuple(map(int, triton.__version__.split("+")[0].split(".")[:2]))

COVERED = (3, 4) <= _VERSION <= (3, 9)
"""Whether `JITFunction.run` of this Triton is known."""

_HookChain = getattr(knobs, "HookChain", None)  # 3.5 and later: never None, often empty
_LAUNCHER_TAKES_A_TUPLE = _VERSION >= (3, 7)


SPECIALIZE = (
    "__specialize(__backend, {value}, {flags})"
    if _VERSION >= (3, 6)
    else "__specialize({value}, {flags})"
)
"""How a binder asks what an argument is to Triton, in terms of `specializer`."""
if _VERSION == (3, 4):  # which compares the text, and so tells 1 from True inside a tuple
    SPECIALIZE = f"str({SPECIALIZE})"

_SINCE = {
    (3, 4): "__knobs.runtime.debug",
    (3, 6): "__knobs.compilation.instrumentation_mode",
    (3, 7): "__knobs.runtime.add_stages_inspection_hook",
    (3, 9): "__knobs.compilation.fpsan_homomorphic_casts",
}
WATCHED = tuple(knob for since, knob in _SINCE.items() if since <= _VERSION)
"""The knobs that `JITFunction.run` chooses a kernel by."""


def triton_key() -> str:
    """Return Triton's digest of its own files, which is part of each binary's key."""
    if _VERSION >= (3, 5):
        from triton.runtime.cache import triton_key as digest_of_files
    else:
        from triton.compiler.compiler import triton_key as digest_of_files
    return str(digest_of_files())


def specializer(fn: Any) -> dict[str, Any]:
    """Triton's own function for `SPECIALIZE`, and the backend of the current device."""
    *_, backend, binder = fn.device_caches[jit.driver.active.get_current_device()]
    return {"__specialize": binder.__globals__["specialize_impl"], "__backend": backend}


def only_alignment_counts(fn: Any) -> bool:
    """Whether a tensor's specialisation is its dtype and its alignment on 16 bytes, as it is on CUDA."""
    backend = specializer(fn)["__backend"]
    asked = "get_tensor_specialization" if _VERSION >= (3, 6) else "get_arg_specialization"
    return getattr(type(backend), asked) is getattr(BaseBackend, asked)


def kernel_follows_hooks() -> bool:
    """Whether a hook takes part in choosing the kernel, in a way that only Triton knows."""
    return _VERSION >= (3, 7) and knobs.runtime.add_stages_inspection_hook is not None


def is_covered(fn: Any) -> bool:
    """Whether a function is launched by the `JITFunction.run` that this module knows."""
    return (
        COVERED
        and isinstance(fn, jit.JITFunction)
        and type(fn).run is jit.JITFunction.run
        and "run" not in vars(fn)
        and jit.JITFunction.run.__module__ == jit.__name__
    )


def autotuning_listener() -> Callable[..., None] | None:
    """Return the listener to call after an autotuner's choice; Triton 3.7 and later have one."""
    listener: Callable[..., None] | None = getattr(knobs.autotuning, "listener", None)
    return listener


def active_hook(hook: Any) -> Any:
    """A launch hook, or None if calling it does nothing."""
    return None if hook.__class__ is _HookChain and not hook.calls else hook


def c_launcher(kernel: Any) -> Callable[..., None]:
    """How a compiled kernel is put on a stream: `(x, y, z, stream, metadata, enter, exit, arguments)`.

    Straight to the module's C function where Triton's Python launcher adds nothing to it (CUDA, no scratch
    memory, no sanitizer), and through that launcher elsewhere.
    """
    run = kernel.run
    if not _passes_on(run):
        return _through_triton(kernel)
    launch, function, packed = run.launch, kernel.function, kernel.packed_metadata
    cooperative, pdl = run.launch_cooperative_grid, run.launch_pdl
    if _LAUNCHER_TAKES_A_TUPLE:
        annotations, signature = run.arg_annotations, run.kernel_signature

        def call(
            x: int, y: int, z: int, stream: int, metadata: Any, enter: Any, leave: Any, args: Any
        ) -> None:
            launch(
                x, y, z, stream, function, cooperative, pdl, packed, metadata, enter, leave, None, None,
                annotations, signature, (*args,),
            )  # fmt: skip

    elif _VERSION >= (3, 5):

        def call(
            x: int, y: int, z: int, stream: int, metadata: Any, enter: Any, leave: Any, args: Any
        ) -> None:
            launch(
                x,
                y,
                z,
                stream,
                function,
                cooperative,
                pdl,
                None,
                None,
                packed,
                metadata,
                enter,
                leave,
                *args,
            )

    else:

        def call(
            x: int, y: int, z: int, stream: int, metadata: Any, enter: Any, leave: Any, args: Any
        ) -> None:
            launch(
                x,
                y,
                z,
                stream,
                function,
                cooperative,
                pdl,
                None,
                packed,
                metadata,
                enter,
                leave,
                *args,
            )

    return call


def _passes_on(run: Any) -> bool:
    return (
        type(run).__name__ == "CudaLauncher"
        and type(run).__module__ == "triton.backends.nvidia.driver"
        and inspect.isbuiltin(run.launch)
        and run.global_scratch_size == 0
        and getattr(run, "profile_scratch_size", 0) == 0
        and not getattr(run, "gsan_enabled", False)
    )


def _through_triton(kernel: Any) -> Callable[..., None]:
    def call(
        x: int, y: int, z: int, stream: int, metadata: Any, enter: Any, leave: Any, args: Any
    ) -> None:
        kernel.run(
            x, y, z, stream, kernel.function, kernel.packed_metadata, metadata, enter, leave, *args
        )

    return call
