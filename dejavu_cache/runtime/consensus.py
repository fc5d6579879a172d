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
    agreement = _Agreement(store, request, resolver, wait)
    try:
        return agreement.reach()
    except _JobStoreError as error:
        warn_once(
            "consensus",
            f"the job's key-value store fails ({error}): ranks choose configs by themselves",
        )
        return agreement.mine or resolver.resolve(request, wait=wait)


class _JobStoreError(Exception):
    """The job's key-value store failed, or holds something unreadable."""


class _Agreement:
    """A rank's part in the decision about one scenario.

    Args:
        store: the job's key-value store.
        request: the scenario.
        resolver: looks up or tunes a config for this rank.
        wait: seconds to wait for another rank.

    Attributes:
        mine: what this rank has resolved, and how many configs it has benchmarked for it, or None.
    """

    def __init__(self, store: Any, request: Request, resolver: Resolver, wait: float) -> None:
        """Ask the store nothing yet."""
        self._store, self._name = store, _job_key(request)
        self._request, self._resolver, self._wait = request, resolver, wait
        self.mine: tuple[Resolution, int] | None = None

    def reach(self) -> tuple[Resolution, int]:
        """Return the shared resolution, and how many configs this rank benchmarked for it."""
        decided = self._read()
        for number in range(_CLAIMS):
            if decided is None and self.mine is None:
                decided = self._claim_or_wait(f"{self._name}/claim{number}")
        if decided is None:
            self.mine = self.mine or (self._resolve_now(), 0)
            if self.mine[0].is_idle:
                return self.mine
            decided = self._ask("compare_set", self._name, "", _proposal(self.mine[0])).decode()
        return self._adopt(decided)

    def _claim_or_wait(self, claim: str) -> str | None:
        """Resolve the scenario if no other rank does, or else return what the other one decides."""
        until, pause = time.monotonic() + self._wait, 0.002
        while not is_capturing_graph():
            if not self._ask("check", [claim]) and self._ask("add", claim, 1) == 1:
                self._resolve(claim)
                return None
            decided = self._read()
            if decided is not None or time.monotonic() >= until:
                return decided
            time.sleep(pause)
            pause = min(pause * 1.5, 0.25)
        return None

    def _resolve(self, claim: str) -> None:
        """Resolve the scenario; if that fails or decides nothing, another rank may claim it."""
        decides = False
        try:
            self.mine = self._resolver.resolve(self._request, wait=self._wait)
            decides = not self.mine[0].is_idle
        finally:
            if not decides:
                with suppress(_JobStoreError):  # an error of the resolver says more
                    self._ask("delete_key", claim)

    def _resolve_now(self) -> Resolution:
        """Look a config up without benchmarking and without waiting."""
        if self._resolver.mode is Mode.TUNE:
            return self._resolver.explain(self._request)
        return self._resolver.resolve(self._request, wait=0.0)[0]

    def _adopt(self, decided: str) -> tuple[Resolution, int]:
        """Return the decision as a resolution of this rank's request."""
        request, mine = self._request, self.mine
        if mine is not None and decided == _proposal(mine[0]):
            return replace(mine[0], agreed=True), mine[1]
        try:
            proposal = json.loads(decided)
            config, rank = Config.model_validate(proposal["config"]), proposal["rank"]
        except (ValueError, KeyError, TypeError, ValidationError, RecursionError) as error:
            raise _JobStoreError(f"it holds {decided[:80]!r}: {error}") from None
        if config in request.declared:
            chosen = request.declared[config]
            agreed = Resolution("agreed", chosen, request.scenario, request.context, agreed=True)
            return agreed, mine[1] if mine else 0
        kernel = request.context.kernel.name
        warn_once(
            f"ranks {kernel} {config}",
            f"rank {rank} chose ({config}) for {kernel}{request.scenario}, which this rank does "
            "not declare: it chooses by itself; run one version of the kernel on all ranks",
        )
        return mine or self._resolver.resolve(request, wait=self._wait)

    def _read(self) -> str | None:
        """Return what was decided, or None."""
        if not self._ask("check", [self._name]):
            return None
        return str(self._ask("get", self._name).decode())

    def _ask(self, method: str, *args: Any) -> Any:
        try:
            return getattr(self._store, method)(*args)
        except Exception as error:  # a store raises what its transport raises
            raise _JobStoreError(error) from None


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
