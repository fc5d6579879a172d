"""Suite of the default attention sweep as it is where `auto` has no Hopper kernel.

    dejavu-cache sweep benchmarks/sweep_without_hopper.py --preset llama3-8b --store FOLDER

takes on a Hopper GPU about what a sweep costs on others. Give it an empty folder, and an empty
TRITON_CACHE_DIR.
"""

from __future__ import annotations

from dejavu_cache.attention import api
from dejavu_cache.attention.sweep_suite import suite

__all__ = ["suite"]

api.GLUON_IS_TESTED = False
