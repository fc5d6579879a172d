"""Protocol `Layers`: what an implementation of attention does in the layers of a step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from .batch import Batch
from .layer_tensors import LayerTensors
from .new_tokens import NewTokens

__all__ = ["Layers", "Repeat"]

Repeat = Callable[[LayerTensors], bool]
"""Computes another layer as the first one was computed; returns False if it could not.

It writes the layer's new tokens if the first launch was given some, and ignores them otherwise. The
layer has scales if the first one had. It is to be launched in the first one's `queue`, whose
counters it takes.
"""


class Layers(Protocol):
    """Launches of an implementation in the layers of a step, which share memory and schedule."""

    def writes(self, batch: Batch, new: NewTokens) -> bool:
        """Return whether these launches write a layer's new tokens beside computing attention."""

    def launch(self, batch: Batch, new: NewTokens | None = None) -> Repeat | None:
        """Compute a layer, and return how to compute others of the same form, if that is known.

        Args:
            batch: the call of the layer.
            new: its new tokens, if these launches are to write them.
        """
