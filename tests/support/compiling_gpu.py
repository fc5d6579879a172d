"""A GPU that is only pretended, for which Triton really compiles: launches without either vendor.

Every launch goes through Triton and the cache as on a GPU, up to the function that would put the
kernel on a stream. Unlike `pretended_gpu`, what a launch returns has all of the compiler's stages;
the last one, the binary, holds the assembler's text and options, since no assembler runs.
"""

import os
import re
from types import SimpleNamespace
from typing import Any

TARGETS = {
    "cuda:80": ("cuda", 80, 32, 166912),
    "cuda:90": ("cuda", 90, 32, 232448),
    "cuda:100": ("cuda", 100, 32, 232448),
    "gfx90a": ("hip", "gfx90a", 64, 65536),
    "gfx942": ("hip", "gfx942", 64, 65536),
}
"""Backend, architecture, threads of a warp and bytes of shared memory, by usual names."""

_NAMES = {"cuda": "NVIDIA H100", "hip": "AMD Instinct MI300X"}
_PTX_OPTIONS = ("enable_fp_fusion", "ptx_options")


class _Utilities:
    """What Triton asks a device: how much it has, and to load a binary."""

    def __init__(self, shared: int) -> None:
        self.shared = shared

    def load_binary(self, *_: Any) -> tuple[int, ...]:
        return 1, 2, 32, 0, 1024

    def get_device_properties(self, device: int) -> dict[str, int]:
        return {
            "max_shared_mem": self.shared,
            "multiprocessor_count": 132,
            "max_num_regs": 65536,
            "warpSize": 32,
        }

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_, **__: None


class _Launcher:
    def __init__(self, source: Any, metadata: Any) -> None:
        self.metadata = metadata

    def __call__(self, *_: Any, **__: Any) -> None:
        pass


class _Driver:
    launcher_cls = _Launcher

    def __init__(self, target: Any, shared: int) -> None:
        self.target = target
        self.utils = _Utilities(shared)

    def get_current_target(self) -> Any:
        return self.target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 7

    def get_device_interface(self) -> Any:
        return SimpleNamespace(synchronize=lambda: None, current_device=lambda: 0)

    def get_benchmarker(self) -> Any:
        return without_timing


def pretend_gpu(target: str) -> None:
    """Replace this process's GPU driver, for good, by one of a target in `TARGETS`."""
    os.environ.pop("TRITON_INTERPRET", None)
    import torch
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver

    backend, arch, warp, shared = TARGETS[target]
    driver.set_active(_Driver(GPUTarget(backend, arch, warp), shared))
    properties = SimpleNamespace(
        name=_NAMES[backend], multi_processor_count=132, total_memory=80 << 30, major=9, minor=0,
        gcnArchName=str(arch),
    )  # fmt: skip
    torch.cuda.get_device_properties = lambda device=0: properties
    compilers = triton.backends.backends
    compilers["nvidia"].compiler.make_cubin = _keep_ptx
    compilers["amd"].compiler.make_hsaco = staticmethod(lambda src, metadata, options: src.encode())


def _keep_ptx(self: Any, src: str, metadata: Any, opt: Any, capability: int) -> bytes:
    options = {name: getattr(opt, name, None) for name in _PTX_OPTIONS}
    return f"{src}\n// ptxas {options}".encode()


def without_timing(call: Any, quantiles: Any = None, **_: Any) -> list[float]:
    """Benchmark nothing, so that only the config that runs is compiled: the first one is taken."""
    return [1.0] * len(quantiles or (0.5, 0.2, 0.8))


def code_of(compiled: Any) -> str:
    """Return a launched kernel's machine code as text, without places in files."""
    asm = compiled.asm
    text: str = (asm["cubin"] if "ptx" in asm else asm["hsaco"]).decode()
    body, _, options = text.partition("// ptxas")
    if "ptx" in asm:  # the rest is debugging information
        body = body.partition(".section")[0]
    body = re.sub(r"(?m)^\s*(\.loc|\.file|\.ident|//|;).*$", "", body)
    body = re.sub(r"(?m)[;#/]+ [^\n]*\.py:.*$", "", body)
    return re.sub(r"\s*\n\s*", "\n", body) + options
