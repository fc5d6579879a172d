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
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from ..model.resolution import Resolution
from ..model.scenario import Config, canonical_json
from ..settings import Mode
from ..system.notices import warn_once
from ..triton_internals.config_names import describe
from ..triton_internals.environment import is_capturing_graph
from .request import Request
from .resolver import Resolver

__all__ = ["agree"]

_CLAIMS = 2
"""Ranks that may hold a scenario in turn; the second one takes over from one that never decided."""


def agree(request: Request, resolver: Resolver, wait: float) -> tuple[Resolution, int]:
    """Return the resolution that all ranks of a job share, and how many configs were benchmarked.

    Outside of a job, it is this process's own.

    Args:
        request: the scenario.
        resolver: looks up or tunes a config for this rank.
        wait: seconds to wait for another rank's decision, at most twice.
    """
    store = _job_store()
    if store is None:
        return resolver.resolve(request, wait=wait)
    mine: list[tuple[Resolution, int]] = []
    try:
        return _agree(store, request, resolver, wait, mine)
    except _JobStoreError as error:
        warn_once(
            "consensus",
            f"the job's key-value store fails ({error}): ranks choose configs by themselves",
        )
        return mine[0] if mine else resolver.resolve(request, wait=wait)


class _JobStoreError(Exception):
    """The job's key-value store failed, or holds something unreadable."""


def _agree(
    store: Any,
    request: Request,
    resolver: Resolver,
    wait: float,
    mine: list[tuple[Resolution, int]],
) -> tuple[Resolution, int]:
    """Return the shared resolution.

    Args:
        store: the job's key-value store.
        request: the scenario.
        resolver: looks up or tunes a config for this rank.
        wait: seconds to wait for another rank's decision.
        mine: gets what this rank has resolved: if the store fails later, that is done all the same.
    """
    name = _job_key(request)
    decided = _read_decision(store, name)
    for number in range(_CLAIMS):
        claim = f"{name}/claim{number}"
        until = time.monotonic() + wait
        while decided is None and not mine and not is_capturing_graph():
            if _ask(store.add, claim, 1) == 1:
                mine.append(_resolve_claimed(store, claim, request, resolver, wait))
            elif time.monotonic() < until:
                decided = _await_decision(store, name, claim, until)
            else:
                break
    if decided is None:
        if not mine:
            mine.append((_resolve_now(request, resolver), 0))
        if mine[0][0].is_idle:
            return mine[0]
        decided = _ask(store.compare_set, name, "", _proposal(mine[0][0])).decode()
    return _adopt_decision(request, decided, resolver, wait, mine)


def _resolve_claimed(
    store: Any, claim: str, request: Request, resolver: Resolver, wait: float
) -> tuple[Resolution, int]:
    """Resolve a claimed scenario; another rank may claim it if that fails or decides nothing."""
    decides = False
    try:
        resolution, benchmarked = resolver.resolve(request, wait=wait)
        decides = not resolution.is_idle
        return resolution, benchmarked
    finally:
        if not decides:
            with suppress(_JobStoreError):  # an error of the resolver says more
                _ask(store.delete_key, claim)


def _resolve_now(request: Request, resolver: Resolver) -> Resolution:
    """Look a config up without benchmarking and without waiting."""
    if resolver.mode is Mode.TUNE:
        return resolver.explain(request)
    return resolver.resolve(request, wait=0.0)[0]


def _adopt_decision(
    request: Request,
    decided: str,
    resolver: Resolver,
    wait: float,
    mine: Sequence[tuple[Resolution, int]],
) -> tuple[Resolution, int]:
    """Return the decision as a resolution of this rank's request."""
    if mine and decided == _proposal(mine[0][0]):
        return replace(mine[0][0], agreed=True), mine[0][1]
    try:
        proposal = json.loads(decided)
        config, rank = Config.model_validate(proposal["config"]), proposal["rank"]
    except (ValueError, KeyError, TypeError, ValidationError, RecursionError) as error:
        raise _JobStoreError(f"it holds {decided[:80]!r}: {error}") from None
    kernel = request.context.kernel
    if config in request.declared:
        chosen = request.declared[config]
        agreed = Resolution("agreed", chosen, request.scenario, request.context, agreed=True)
        return agreed, mine[0][1] if mine else 0
    warn_once(
        f"ranks {kernel.name} {config}",
        f"rank {rank} chose ({config}) for {kernel.name}{request.scenario}, which this rank does "
        "not declare: it chooses by itself; run one version of the kernel on all ranks",
    )
    return mine[0] if mine else resolver.resolve(request, wait=wait)


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


def _await_decision(store: Any, name: str, claim: str, until: float) -> str | None:
    """Return the decision; None if the claim is given up, or there is none by then."""
    pause = 0.002
    while (
        (decision := _read_decision(store, name)) is None
        and time.monotonic() < until
        and _ask(store.check, [claim])
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
