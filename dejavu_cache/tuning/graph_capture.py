"""Capture launches as CUDA graphs, one after the other, in memory that they share."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch

__all__ = ["GraphCapture"]


class GraphCapture:
    """A stream on which graphs of the current device are captured, and the latest one of them.

    PyTorch frees the memory of a graph that is gone only where an allocation fails, and never
    during a capture: graphs with memory of their own would fill the device. They share the memory
    as long as one of them exists, so the latest one is kept.
    """

    def __init__(self) -> None:
        """Take a stream of the current device."""
        self._stream = torch.cuda.Stream()
        self._latest: Any = None

    def capture(self, call: Callable[[], object], times: int) -> Any:
        """Capture calls, without the garbage collection of `torch.cuda.graph`.

        Returns:
            The graph; it serves until the next one is captured.

        Raises:
            Exception: what the call raises, and what PyTorch does where it cannot be captured.
        """
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            call()
            torch.cuda.synchronize()
            graph = self._capture(call, times)
        torch.cuda.current_stream().wait_stream(self._stream)
        if self._latest is not None:
            self._latest.reset()
        self._latest = graph
        return graph

    def release(self) -> None:
        """Let PyTorch have the memory."""
        if self._latest is not None:
            self._latest.reset()
            self._latest = None

    def _capture(self, call: Callable[[], object], times: int) -> Any:
        graph = torch.cuda.CUDAGraph()
        pool = None if self._latest is None else self._latest.pool()
        graph.capture_begin(pool=pool, capture_error_mode="thread_local")
        try:
            for _ in range(times):
                call()
        except BaseException:
            with suppress(RuntimeError):
                self._end(graph)
            graph.reset()
            raise
        self._end(graph)
        return graph

    def _end(self, graph: Any) -> None:
        """End a capture; after a failure, leave the memory that PyTorch may still take for its."""
        try:
            graph.capture_end()
        except RuntimeError:
            graph.reset()
            self.release()
            raise
