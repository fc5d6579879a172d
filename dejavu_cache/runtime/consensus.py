"""One config per scenario on all ranks of a torch.distributed job, without a collective.

Ranks agree through the job's key-value store, which every rank can read at any time: a kernel that
only some ranks run cannot make one of them wait for the others. A rank that finds no decision
resolves the scenario and proposes its config; the first proposal, be it a fallback, holds for the
rest of the job. Where the ranks share a store of records, its lease has one of them tune.
"""

import hashlib
import json
import os
import sys
from dataclasses import replace
from typing import Any

from pydantic import TypeAdapter

from ..model.scenario import Config, canonical_json
from ..system.background_threads import dropping_errors
from ..system.notices import warn_once
from ..triton_internals.config_names import describe
from .request import How, Request, Resolution
from .resolver import Resolver

_provenance: TypeAdapter[How] = TypeAdapter(How)

_BROKEN = "ranks choose configs by themselves, since the job's key-value store fails"


def agree(request: Request, resolver: Resolver, wait: float) -> tuple[Resolution, int]:
    """Return the resolution that all ranks of a job share, and how many configs were benchmarked.

    Outside of a job, in a forked child of a rank, or where the job's store fails, it is this
    process's own. `wait` is in seconds, for another process that tunes the same scenario.
    """
    job = _job_store()
    if job is None:
        return resolver.resolve(request, wait=wait)
    key = _job_key(request)
    decided = _ask(job, key)
    if agreed := _adopt(request, decided):
        return agreed, 0
    mine, benchmarked = resolver.resolve(request, wait=wait)
    if decided is not None or mine.is_idle:
        return mine, benchmarked
    decided = _ask(job, key, _proposal(mine))
    if decided == _proposal(mine):
        return replace(mine, agreed=True), benchmarked
    return _adopt(request, decided) or mine, benchmarked


def _ask(job: Any, key: str, proposal: str | None = None) -> str | None:
    """Return what is decided under a key, which is the proposal if it is the first; or None."""
    with dropping_errors(_BROKEN, about="consensus"):  # a store raises what its transport raises
        if proposal is not None:
            return str(job.compare_set(key, "", proposal).decode())
        return str(job.get(key).decode()) if job.check([key]) else None
    return None


def _adopt(request: Request, decided: str | None) -> Resolution | None:
    """Return a decision as a resolution of this rank's request; None if it means nothing here."""
    if decided is None:
        return None
    with dropping_errors(_BROKEN, about="consensus"):
        proposal = json.loads(decided)
        config, rank = Config.model_validate(proposal["config"]), proposal["rank"]
        how = _provenance.validate_python(proposal["how"])
        if config in request.declared:
            chosen = request.declared[config]
            return Resolution(how, chosen, request.scenario, request.context, agreed=True)
        warn_once(
            f"ranks {request.context.kernel.name} {config}",
            f"rank {rank} chose ({config}) for {request.name}, which this rank does not declare: "
            "it chooses by itself; run one version of the kernel on all ranks",
        )
    return None


def _job_key(request: Request) -> str:
    """Return the scenario's key in the job's store.

    It holds the kernel's code: one function may make several kernels of one name, and ranks with
    different code have nothing to agree on.
    """
    text = canonical_json([request.context.text, request.scenario.text])
    if request.prunes:
        # Launches of one bucket may be left different configs, and then agree separately.
        text += canonical_json(sorted(config.text for config in request.declared))
    return f"dejavu-cache/{hashlib.sha256(text.encode()).hexdigest()}"


def _proposal(resolution: Resolution) -> str:
    config = describe(resolution.config).model_dump(mode="json")
    # What one rank has tuned is a recorded choice to the others.
    how = "exact" if resolution.how == "tuned" else resolution.how
    rank = sys.modules["torch"].distributed.get_rank()
    return json.dumps({"config": config, "how": how, "rank": rank})


def _job_store() -> Any:
    """Return the job's key-value store; None outside a job, and where a parent's is inherited."""
    distributed: Any = sys.modules.get("torch.distributed.distributed_c10d")
    with dropping_errors(_BROKEN, about="consensus"):  # another torch may have no such function
        if distributed is not None and distributed.is_initialized():
            store = distributed._get_default_store()
            return None if store in _inherited else store
    return None


_inherited: list[Any] = []
"""Stores that a parent of this process uses: on one connection, each would read any answer."""
os.register_at_fork(after_in_child=lambda: _inherited.append(_job_store()))
