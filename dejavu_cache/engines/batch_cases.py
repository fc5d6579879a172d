"""Cases of a sweep for one layer of an engine, one per size of the batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from ..runtime.cached_autotuner import CachedAutotuner
from ..sweep.suite import Case

__all__ = ["batch_cases"]


def batch_cases(
    kernel: CachedAutotuner,
    sizes: Sequence[int],
    make_name: Callable[[int], str],
    make_arguments: Callable[[int], dict[str, Any]],
) -> Iterator[Case]:
    """Yield the cases of a layer, the largest batch first: it compiles what others need too.

    Args:
        kernel: the layer's operation.
        sizes: the batches' numbers of tokens or, for Mamba's states, of sequences.
        make_name: names the case of a batch.
        make_arguments: makes the arguments of a batch.
    """
    for size in sorted(sizes, reverse=True):
        yield Case(make_name(size), kernel, (1,), partial(make_arguments, size))
