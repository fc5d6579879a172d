"""One config per scenario on all ranks of a torch.distributed job, without a collective.

Ranks agree through the job's key-value store, which every rank can read at any time: a kernel that
only some ranks run cannot make one of them wait for the others. The first rank that meets a
scenario claims it and decides; the others wait for its decision, up to a limit. The first decision,
be it a fallback, holds for the rest of the job.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import cache
from typing import Any

from pydantic import ValidationError

from ..model.resolution import Resolution
from ..model.scenario import Config, canonical_json
from ..system.notices import warn_once
from ..triton_internals.config_names import describe
from ..triton_internals.environment import is_capturing_graph
from .request import Request

__all__ = ["agree"]

_CLAIMS = 2
"""Times a scenario can be claimed; the second one takes over from a rank that never decided."""

_Resolve = Callable[[], tuple[Resolution, int]]


def agree(
    request: Request, resolve: _Resolve, resolve_now: Callable[[], Resolution], wait: float
) -> tuple[Resolution, int]:
    """Return the resolution that all ranks of a job share; outside a job, this process's own.

    Args:
        request: the scenario.
        resolve: looks up or tunes a config; returns its resolution and the number of benchmarks.
        resolve_now: looks up a config without benchmarking and without waiting.
        wait: seconds to wait for another rank's decision, at most twice.
    """
    store = _job_store()
    if store is None:
        return resolve()
    resolve = cache(resolve)  # If the job's store fails later, a tune has been done all the same.
    try:
        return _agree(store, request, resolve, resolve_now, wait)
    except _JobStoreError as error:
        warn_once(
            "consensus",
            f"the job's key-value store fails ({error}): ranks choose configs by themselves",
        )
        return resolve()


class _JobStoreError(Exception):
    """The job's key-value store failed, or holds something unreadable."""


def _agree(
    store: Any, request: Request, resolve: _Resolve, resolve_now: Any, wait: float
) -> tuple[Resolution, int]:
    name = _job_key(request)
    decided = _read_decision(store, name)
    mine, benchmarked = None, 0
    # As many claims were given up by ranks whose launches had no work, which decide nothing.
    claim = idle = _ask(store.add, f"{name}/idle", 0)
    while decided is None and claim < idle + _CLAIMS and not is_capturing_graph():
        given_up = f"{name}/given up{claim}"
        if _ask(store.add, f"{name}/claim{claim}", 1) == 1:
            mine, benchmarked = _resolve_or_give_up(store, name, given_up, resolve)
            break
        decided = _await_decision(store, name, given_up, wait)
        claim, idle = claim + 1, _ask(store.add, f"{name}/idle", 0)
    if mine is not None and mine.is_idle:
        return mine, benchmarked
    if decided is None:
        mine = mine or resolve_now()
        decided = _ask(store.compare_set, name, "", _proposal(mine)).decode()
    return _adopt_decision(request, decided, mine, resolve, benchmarked)


def _resolve_or_give_up(
    store: Any, name: str, given_up: str, resolve: _Resolve
) -> tuple[Resolution, int]:
    """Resolve a claimed scenario; the ranks that wait are told if that fails or decides nothing."""
    try:
        mine, benchmarked = resolve()
        if mine.is_idle:
            _ask(store.add, f"{name}/idle", 1)
            _ask(store.set, given_up, "")
        return mine, benchmarked
    except BaseException:
        with suppress(_JobStoreError):  # The error of `resolve` says more.
            _ask(store.set, given_up, "")
        raise


def _adopt_decision(
    request: Request, decided: str, mine: Resolution | None, resolve: _Resolve, benchmarked: int
) -> tuple[Resolution, int]:
    """Return the decision as a resolution of this rank's request."""
    if mine is not None and decided == _proposal(mine):
        return replace(mine, agreed=True), benchmarked
    try:
        proposal = json.loads(decided)
        config, rank = Config.model_validate(proposal["config"]), proposal["rank"]
    except (ValueError, KeyError, TypeError, ValidationError, RecursionError) as error:
        raise _JobStoreError(f"it holds {decided[:80]!r}: {error}") from None
    kernel = request.context.kernel
    if config not in request.declared:
        warn_once(
            f"ranks {kernel.name} {config}",
            f"rank {rank} chose ({config}) for {kernel.name}{request.scenario}, "
            "which this rank does not declare: "
            "it chooses by itself; run one version of the kernel on all ranks",
        )
        return (mine, benchmarked) if mine is not None else resolve()
    resolution = Resolution(
        "agreed", request.declared[config], request.scenario, request.context, agreed=True
    )
    return resolution, benchmarked


def _job_key(request: Request) -> str:
    """Return the scenario's key in the job's store.

    It holds the kernel's code: one function may make several kernels of one name, and ranks with
    different code have nothing to agree on.
    """
    text = canonical_json([request.context.text, request.scenario.text])
    if request.prunes:
        # Launches of one bucket may be left different configs, and then agree separately.
        text += canonical_json(sorted(config.text for config in request.declared))
    return hashlib.sha256(text.encode()).hexdigest()


def _proposal(resolution: Resolution) -> str:
    config = describe(resolution.config).model_dump(mode="json")
    return json.dumps({"config": config, "rank": _torch_distributed().get_rank()})


def _read_decision(store: Any, name: str) -> str | None:
    if not _ask(store.check, [name]):
        return None
    return str(_ask(store.get, name).decode())


def _await_decision(store: Any, name: str, given_up: str, wait: float) -> str | None:
    until, pause = time.monotonic() + wait, 0.002
    while (
        (decision := _read_decision(store, name)) is None
        and time.monotonic() < until
        and not _ask(store.check, [given_up])
    ):
        time.sleep(pause)
        pause = min(pause * 1.5, 0.25)
    return decision


def _ask(question: Callable[..., Any], *args: Any) -> Any:
    try:
        return question(*args)
    except Exception as error:  # a store raises what its transport raises
        raise _JobStoreError(error) from None


def _torch_distributed() -> Any:
    torch = sys.modules.get("torch")
    return torch.distributed if torch is not None and torch.distributed.is_available() else None


def _job_store() -> Any:
    """Return the job's key-value store, or None outside a job."""
    distributed = _torch_distributed()
    if distributed is None or not distributed.is_initialized():
        return None
    return distributed.PrefixStore(
        "dejavu-cache", distributed.distributed_c10d._get_default_store()
    )
