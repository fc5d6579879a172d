"""An operation of an engine as one kernel to tune: several launches that share a config."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

from ..triton_internals.compilation import await_kernel, load_binary

__all__ = ["EngineOperation"]


class EngineOperation:
    """An engine's operation, in the place of a `triton.jit` function below a cached autotuner.

    The operation launches one kernel, perhaps several times, and other code around it. A config is
    measured by the duration of the whole, and recorded under the kernel's name and source.

    Args:
        module: the engine's module that launches the kernel by a global name.
        kernel: that name.
        arg_names: the operation's arguments, and those of the configs.
        launch: runs the operation: `launch(arguments, config)`, both by name.

    Attributes:
        fn: the kernel.
        arg_names: as above.
    """

    def __init__(
        self,
        module: ModuleType,
        kernel: str,
        arg_names: Sequence[str],
        launch: Callable[[Mapping[str, Any], Mapping[str, Any]], object],
    ) -> None:
        """Set up the operation; nothing is launched."""
        self.fn = getattr(module, kernel)
        self.arg_names = list(arg_names)
        self._module = module
        self._kernel = kernel
        self._launch = launch

    def run(self, *args: Any, grid: Any = None, warmup: bool = False, **config: Any) -> Any:
        """Run the operation with a config, or only compile its launches.

        Args:
            *args: the operation's arguments, in the order of `arg_names`.
            grid: ignored; the operation knows its own.
            warmup: whether to compile without launching the kernel.
            **config: the config's values and options.

        Returns:
            The compiled launches where `warmup` is set, else None.
        """
        arguments = dict(zip(self.arg_names, args, strict=False))
        if not warmup:
            self._launch(arguments, config)
            return None
        kernels: list[Any] = []
        setattr(self._module, self._kernel, _CompilingKernel(self.fn, kernels))
        try:
            self._launch(arguments, config)
        finally:
            setattr(self._module, self._kernel, self.fn)
        return CompiledLaunches(kernels)


class _CompilingKernel:
    """A kernel whose launches are compiled and do not run."""

    def __init__(self, kernel: Any, kernels: list[Any]) -> None:
        self._kernel_to_compile = kernel
        self._kernels = kernels

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        def launch(*args: Any, **kwargs: Any) -> None:
            compiled = self._kernel_to_compile.run(*args, grid=grid, warmup=True, **kwargs)
            self._kernels.append(compiled)

        return launch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kernel_to_compile, name)


class CompiledLaunches:
    """The compiled kernels of an operation's launches, like one compiled kernel or its future."""

    def __init__(self, kernels: Sequence[Any]) -> None:
        """Keep what `JITFunction.run` returned for each launch."""
        self._kernels = kernels

    @property
    def future(self) -> CompiledLaunches:
        """The future: this object itself."""
        return self

    def done(self) -> bool:
        """Return whether all compilations have ended."""
        futures = (getattr(kernel, "future", None) for kernel in self._kernels)
        return all(future is None or future.done() for future in futures)

    def result(self) -> CompiledLaunches:
        """Wait for all compilations.

        Raises:
            Exception: what Triton raises where a launch cannot be compiled.
        """
        for kernel in self._kernels:
            await_kernel(kernel)
        return self

    def _init_handles(self) -> None:
        """Load the binaries, as `CompiledKernel` does."""
        for kernel in self._kernels:
            load_binary(kernel)
