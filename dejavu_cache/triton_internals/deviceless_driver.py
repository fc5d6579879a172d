"""A driver for a machine without a device, and a stand-in for the modules that call a real one."""

from __future__ import annotations

from typing import Any

__all__ = ["DevicelessDriver", "UnloadedModule"]


class UnloadedModule:
    """Module that is built and not loaded: it has every attribute, and calling one does nothing."""

    def __getattr__(self, name: str) -> Any:
        """Return another stand-in for any attribute."""
        return UnloadedModule()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return another stand-in."""
        return UnloadedModule()


class DevicelessDriver:
    """Driver that knows the target to compile for, and nothing else.

    Args:
        target: Triton's `GPUTarget`.
    """

    def __init__(self, target: Any) -> None:
        """Set the target to compile for."""
        self.utils = UnloadedModule()
        self._target = target

    def get_current_target(self) -> Any:
        """Return the target to compile for."""
        return self._target

    def get_current_device(self) -> int:
        """Return the index of the first device."""
        return 0
