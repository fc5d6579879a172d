"""A step captured into one CUDA or HIP graph per bucket, and replayed for every size that fits.

Capturing a step for every size that a server may meet takes too much memory and time; launching
kernel by kernel takes too much of the host. The buckets of the step's size determine the graphs: a
step of 33 tokens runs in the graph for 64, its inputs copied into that graph's buffers.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

import torch

from ..errors import SettingsError
from ..model.buckets import Bucket
from ..system.fork_lock import ForkLock

__all__ = ["GraphedStep"]


_Shape = tuple[tuple[int, ...], Any, Any]
"""Shape, dtype and device."""


class _Captured(NamedTuple):
    graph: Any
    inputs: dict[str, torch.Tensor]
    output: Any


class GraphedStep:
    """A function of tensors, replayed from graphs.

    The step is called as `step(**inputs)`, every input a tensor with a row per unit of the size.
    Inputs are padded to the bucket's size. The rows beyond the call's size hold data of an earlier
    call, or zeros, so the step must not let them affect the others. Values that differ
    between calls must be tensors.

    Before a size is captured, the step runs once without a graph, so that kernels are tuned and
    compiled outside of the capture. All graphs share one memory pool. A size above all buckets runs
    without a graph.

    Args:
        step: from tensors to a tensor, or to a tuple or dictionary of them.
        sizes: the buckets of the size; `Pow2(max=256)` gives graphs for 1, 2, 4, …, 256.
        fixed: the inputs that have no rows, and one shape in all calls.
        limit: the most graphs to keep; a new one replaces the least recently used one.

    Example:
        >>> step = GraphedStep(decode, Pow2(min=8, max=256), limit=8)  # doctest: +SKIP
        >>> logits = step(33, tokens=tokens, positions=positions)      # replays the graph for 64
    """

    def __init__(
        self,
        step: Callable[..., Any],
        sizes: Bucket,
        *,
        fixed: Collection[str] = (),
        limit: int = 32,
    ) -> None:
        """Set up the step without capturing anything yet.

        Raises:
            SettingsError: the limit is below 1.
        """
        if limit < 1:
            raise SettingsError(f"limit={limit}: keep at least one graph")
        self._step = step
        self._sizes = sizes
        self._fixed = frozenset(fixed)
        self._limit = limit
        self._captured: OrderedDict[tuple[Any, ...], _Captured] = OrderedDict()
        self._pool: Any = None
        self._lock = ForkLock()

    @property
    def sizes(self) -> list[int]:
        """Captured sizes, the most recently used one last."""
        return [key[0] for key in self._captured]

    def __call__(self, size: int, **inputs: torch.Tensor) -> Any:
        """Run the step for a size.

        Raises:
            SettingsError: an input that is not fixed has another number of rows.

        Returns:
            The step's result; of tensors with as many rows as the bucket, the first `size` rows.
            It lies in the graph's own memory and is valid until the next call of any size.
        """
        room = self._sizes.above(size)
        if room is None:
            return self._step(**inputs)
        with self._lock:
            captured = self._graph_for(
                room, {name: self._shape(name, value, size, room) for name, value in inputs.items()}
            )
            for name, value in inputs.items():
                buffer = captured.inputs[name]
                (buffer if name in self._fixed else buffer[:size]).copy_(value, non_blocking=True)
            captured.graph.replay()
            return _cut(captured.output, room, size)

    def _shape(self, name: str, value: torch.Tensor, size: int, room: int) -> _Shape:
        """Return the shape, dtype and device of a graph's buffer for an input."""
        if name in self._fixed:
            return tuple(value.shape), value.dtype, value.device
        if value.dim() == 0 or value.shape[0] != size:
            raise SettingsError(
                f"input {name!r} has shape {tuple(value.shape)} in a call of size {size}: make "
                "its first dimension the size, or name the input in fixed"
            )
        return (room, *value.shape[1:]), value.dtype, value.device

    def _graph_for(self, room: int, shapes: Mapping[str, _Shape]) -> _Captured:
        key = room, *shapes.items()
        captured = self._captured.get(key)
        if captured is None:
            self._captured[key] = captured = self._capture(shapes)
            # PyTorch refuses a pool that no graph uses while a result in it is alive.
            while len(self._captured) > self._limit:
                self._captured.popitem(last=False)
        self._captured.move_to_end(key)
        return captured

    def _capture(self, shapes: Mapping[str, _Shape]) -> _Captured:
        buffers = {
            name: torch.zeros(shape, dtype=dtype, device=device)
            for name, (shape, dtype, device) in shapes.items()
        }
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            self._step(**buffers)
        torch.cuda.current_stream().wait_stream(aside)
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            output = self._step(**buffers)
        return _Captured(graph, buffers, output)


def _cut(output: Any, room: int, size: int) -> Any:
    if isinstance(output, torch.Tensor):
        return output[:size] if output.dim() and output.shape[0] == room else output
    if isinstance(output, Mapping):
        return {name: _cut(value, room, size) for name, value in output.items()}
    if isinstance(output, (tuple, list)):
        return tuple(_cut(value, room, size) for value in output)
    return output
