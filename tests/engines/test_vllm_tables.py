"""vLLM reads the tables that are exported for it, by its own functions; skipped without vLLM."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from dejavu_cache.integrations.foreign_files import read_foreign_files
from dejavu_cache.integrations.tuned_tables import (
    TABLE_FILES,
    collect_tables,
    parse_labels,
    write_tables,
)
from dejavu_cache.stores import FileStore

vllm = pytest.importorskip("vllm")
pytestmark = pytest.mark.filterwarnings("ignore")

DEVICE = "NVIDIA H200"


class VllmLoaders:
    """The functions by which vLLM reads tables, on a pretended GPU."""

    def __init__(self) -> None:
        self.fused_moe = import_module("vllm.model_executor.layers.fused_moe.fused_moe")
        self.mamba_ssm = import_module("vllm.model_executor.layers.mamba.ops.mamba_ssm")

    def forget(self) -> None:
        self.fused_moe.get_moe_configs.cache_clear()
        getattr(self.mamba_ssm, "get_ssm_configs", self.fused_moe.get_moe_configs).cache_clear()

    @property
    def folders(self) -> list[Path]:
        modules = (self.fused_moe, self.mamba_ssm)
        folders = [Path(module.__file__ or "").with_name("configs") for module in modules]
        return [folder for folder in folders if folder.is_dir()]

    def read(self, path: Path) -> dict[int, Any]:
        labels = parse_labels(path.stem)
        if "headdim" in labels:
            sizes = int(labels["headdim"]), int(labels["dstate"])
            return dict(self.mamba_ssm.get_ssm_configs(*sizes, labels["cache_dtype"]))
        blocks = map(int, labels.get("block_shape", "[0,0]").strip("[]").split(","))
        shape = int(labels["E"]), int(labels["N"])
        return dict(self.fused_moe.get_moe_configs(*shape, labels.get("dtype"), *blocks))


@pytest.fixture
def loaders(monkeypatch: pytest.MonkeyPatch) -> Iterator[VllmLoaders]:
    loaders = VllmLoaders()
    platform = type(loaders.fused_moe.current_platform)
    monkeypatch.setattr(platform, "get_device_name", classmethod(lambda cls, device_id=0: DEVICE))
    loaders.forget()
    yield loaders
    loaders.forget()


def test_vllm_reads_its_own_tables_after_an_import_and_an_export(
    loaders: VllmLoaders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FileStore(tmp_path / "store")
    for folder in loaders.folders:
        store.put_imported(read_foreign_files("vllm", folder))
    files = list(TABLE_FILES["vllm"](collect_tables(store), "any"))
    written = write_tables(files, tmp_path / "tables")
    shipped = {path.name for folder in loaders.folders for path in folder.rglob("*device_name=*")}
    assert {path.name for path in written} == {
        name
        for name in shipped
        if "backend=" not in name  # of other compilers than Triton
    }
    device = f"device_name={DEVICE.replace(' ', '_')}"
    readable = [path for path in written if device in path.stem.split(",")]
    assert len(readable) > 10
    expected = {path: loaders.read(path) for path in readable}
    loaders.forget()
    monkeypatch.setenv("VLLM_TUNED_CONFIG_FOLDER", str(tmp_path / "tables"))
    for module in (loaders.fused_moe, loaders.mamba_ssm):
        monkeypatch.setattr(module, "__file__", "/nowhere")  # nothing is read from the package
    assert {path: loaders.read(path) for path in readable} == expected


def test_vllm_reads_an_exported_table_of_lora(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    utilities = import_module("vllm.lora.ops.triton_ops.utils")
    monkeypatch.setattr("torch.cuda.get_device_name", lambda *_: "NVIDIA H100 80GB-HBM3")
    config = {"block_m": 16, "block_n": 16, "block_k": 256, "split_k": 8, "num_warps": 4}
    config |= {"num_ctas": 1, "group_size_m": 8, "num_stages": 2}
    file = tmp_path / "in" / "NVIDIA_H100_80GB_HBM3_SHRINK.json"
    file.parent.mkdir()
    content = {"4": {"1": {"8": {"4096": {"16": {**config, "max_nreg": None}}}}}}
    file.write_text(json.dumps(content))
    store = FileStore(tmp_path / "store")
    store.put_imported(read_foreign_files("vllm", file.parent))
    write_tables(TABLE_FILES["vllm"](collect_tables(store), ""), tmp_path / "out")
    monkeypatch.setenv("VLLM_TUNED_CONFIG_FOLDER", str(tmp_path / "out"))
    for function in (utilities.load_lora_op_config, utilities.get_lora_op_configs):
        function.cache_clear()
    read = utilities.get_lora_op_configs("shrink", 4, 9, 4096, 16, 1)
    assert read == {**config, "max_nreg": None}
