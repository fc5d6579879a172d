"""Records of another Triton stand in for a miss; those of another GPU never do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support.addition import CONFIGS, add_one
from support.kernels import launch

from dejavu_cache import cached_autotune
from dejavu_cache.model.record import Measurement, Record, Winner
from dejavu_cache.model.scenario import Context, now
from dejavu_cache.stores import FileStore
from dejavu_cache.triton_internals.config_names import describe


@pytest.fixture
def listings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Count how often a file store lists contexts."""
    asked = []
    list_contexts = FileStore.contexts

    def note(store: FileStore, kernel: str | None = None) -> Iterator[Context]:
        asked.append(kernel or "")
        return list_contexts(store, kernel)

    monkeypatch.setattr(FileStore, "contexts", note)
    return asked


def make(store: Path) -> Any:
    return cached_autotune(CONFIGS, ["n"], store=store, mode="reuse")(add_one)


def record_elsewhere(store: Path, **differing: Any) -> None:
    """Record the last config as the winner in an environment that differs."""
    request = make(store).request(torch.ones(100), torch.ones(100), 100)
    best = describe(CONFIGS[2])
    timed = Measurement(config=best, median=1.0, p20=1.0, p80=1.0, at=now())
    record = Record(
        scenario=request.scenario,
        measurements=(timed,),
        winner=Winner(config=best, at=now()),
    )
    environment = request.context.environment
    if "device" in differing:
        differing["device"] = environment.device.model_copy(update=differing["device"])
    elsewhere = request.context.model_copy(
        update={"environment": environment.model_copy(update=differing)}
    )
    FileStore(store).put(elsewhere, [record])


OTHER_GPU = {"device": {"name": "A sibling"}}
OTHER_TRITON = {"triton": "0.0.1"}


@pytest.mark.parametrize(
    ("differing", "how"),
    [
        (OTHER_TRITON, "toolchain"),
        (OTHER_GPU, "default"),
        ({**OTHER_GPU, **OTHER_TRITON}, "default"),
        ({**OTHER_TRITON, "variables": {"TRITON_X": "1"}}, "default"),
    ],
)
def test_another_tritons_record_stands_in_labelled_and_another_gpus_never(
    tmp_path: Path, differing: dict[str, Any], how: str
) -> None:
    record_elsewhere(tmp_path, **differing)
    kernel = make(tmp_path)
    launch(kernel, 100)
    resolution = kernel.explain(torch.ones(100), torch.ones(100), 100)
    assert resolution.how == how
    assert kernel.best_config is (CONFIGS[0] if how == "default" else CONFIGS[2])
    assert how == "default" or [field.field for field in resolution.differences] == [
        "environment.triton"
    ]


def test_later_launches_do_not_list_the_contexts_again(tmp_path: Path, listings: list[str]) -> None:
    record_elsewhere(tmp_path, **OTHER_GPU)
    kernel = make(tmp_path)
    launch(kernel, 100)
    assert listings
    listings.clear()
    launch(kernel, 200)
    assert listings == []
