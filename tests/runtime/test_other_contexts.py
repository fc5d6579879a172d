"""Records of another GPU of the family, or of another toolchain, stand in where that is allowed."""

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
from dejavu_cache.settings import current_settings
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
OTHER_ARCH = {"device": {"name": "A stranger", "arch": "sm_999"}}
OTHER_TRITON = {"triton": "0.0.1"}


@pytest.mark.parametrize(
    ("setting", "differing", "how"),
    [
        ({}, OTHER_GPU, "default"),
        ({}, OTHER_TRITON, "default"),
        ({"DEJAVU_CACHE_FAMILY": "1"}, OTHER_GPU, "family"),
        ({"DEJAVU_CACHE_FAMILY": "1"}, OTHER_ARCH, "default"),
        ({"DEJAVU_CACHE_FAMILY": "1"}, OTHER_TRITON, "default"),
        ({"DEJAVU_CACHE_TOOLCHAIN": "loose"}, OTHER_TRITON, "toolchain"),
        ({"DEJAVU_CACHE_TOOLCHAIN": "loose"}, OTHER_GPU, "default"),
        ({"DEJAVU_CACHE_TOOLCHAIN": "loose"}, {**OTHER_ARCH, **OTHER_TRITON}, "default"),
    ],
)
def test_only_what_a_setting_allows_stands_in_and_it_is_labelled(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    setting: dict[str, str],
    differing: dict[str, Any],
    how: str,
) -> None:
    record_elsewhere(tmp_path, **differing)
    for name, value in setting.items():
        monkeypatch.setenv(name, value)
    current_settings.cache_clear()
    kernel = make(tmp_path)
    launch(kernel, 100)
    resolution = kernel.explain(torch.ones(100), torch.ones(100), 100)
    assert resolution.how == how
    assert kernel.best_config is (CONFIGS[0] if how == "default" else CONFIGS[2])
    assert how == "default" or resolution.differences


def test_later_launches_do_not_list_the_contexts_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listings: list[str]
) -> None:
    record_elsewhere(tmp_path, **OTHER_GPU)
    monkeypatch.setenv("DEJAVU_CACHE_FAMILY", "1")
    current_settings.cache_clear()
    kernel = make(tmp_path)
    launch(kernel, 100)
    assert listings
    listings.clear()
    launch(kernel, 200)
    assert listings == []
