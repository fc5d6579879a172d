"""Tables of LoRA come out as they went in, and serve any slices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from support.command_line import run_cli
from support.tuned_tables import contents, write_content

from dejavu_cache.integrations.tuned_tables import TABLE_FILES, TunedTable, fill_slices


def lora_config(block: int, registers: int | None = None) -> dict[str, Any]:
    blocks = {"block_m": block, "block_n": 16, "block_k": 256, "split_k": 8, "group_size_m": 8}
    return {**blocks, "num_warps": 4, "num_ctas": 1, "num_stages": 2, "max_nreg": registers}


def of_slices(table: dict[str, Any]) -> dict[str, Any]:
    """Return a table that serves any number of slices; vLLM raises for one that is missing."""
    last = table[max(table)]
    return {**{str(number): last for number in range(1, 9)}, **table}


def test_tables_of_lora_come_out_as_they_went_in(tmp_path: Path) -> None:
    sizes = {"64": {"16": lora_config(16)}, "128": {"16": lora_config(32, 96)}}
    tables = {
        "NVIDIA_H100_80GB_HBM3_SHRINK.json": {
            "4": {"1": {"8": sizes, "16": sizes}, "2": {"8": sizes}}
        },
        "NVIDIA_H200_EXPAND_TRUE.json": {"1": {"1": {"8": {"16": {"64": lora_config(64)}}}}},
        "NVIDIA_H200_EXPAND_FALSE.json": {"1": {"1": {"8": {"16": {"64": lora_config(16)}}}}},
        "NVIDIA_H200_FUSED_MOE_LORA_W13_SHRINK.json": {
            "4": {"2": {"8": {"64": {"16": {"768": lora_config(16), "1536": lora_config(32)}}}}}
        },
    }
    for name, content in tables.items():
        write_content(tmp_path / "in" / name, content)
    write_content(tmp_path / "in" / "MY_EXPANDED.json", {"no": "table"})
    seen = run_cli("import", "--vllm", tmp_path / "in")
    assert seen.returncode == 0, seen.stderr
    run_cli("export", "--vllm", tmp_path / "out")
    assert contents(tmp_path / "out") == {
        name: content if "FUSED" in name else {top: of_slices(content[top]) for top in content}
        for name, content in tables.items()
    }
    for engine in ("sglang", "hf"):
        seen = run_cli("export", f"--{engine}", tmp_path / engine)
        assert seen.returncode != 0
        assert f"{engine} reads none of the tables" in seen.stderr
    write_content(tmp_path / "odd" / "NVIDIA_H200_SHRINK.json", {"4": {"1": lora_config(16)}})
    assert "5 levels" in run_cli("import", "--vllm", tmp_path / "odd").stderr


def test_a_table_of_lora_without_the_last_level_does_not_mix_with_one_that_has_it() -> None:
    labels = {"lora": "fused_moe_lora_w2_shrink"}
    labels |= dict.fromkeys(("max_loras", "num_slices", "k", "n"), "1")
    short = TunedTable(labels, "GPU", "", {8: {"block_m": 16}})
    exact = TunedTable({**labels, "moe_intermediate_size": "7"}, "GPU", "", {8: {"block_m": 32}})
    for tables in ([short, exact], [exact, short]):
        (file,) = TABLE_FILES["vllm"](tables, "3.6.0")
        assert file.content == {"1": {"1": {"8": {"1": {"1": {"7": {"block_m": 32}}}}}}}


@given(st.sets(st.integers(1, 12), min_size=1), st.sampled_from(["SHRINK", "EXPAND_TRUE"]))
def test_slices_that_were_not_tuned_take_the_nearest_ones_and_others_stay(
    tuned: set[int], operation: str
) -> None:
    content: Any = {"2": {str(number): {"8": {"block_m": number}} for number in tuned}}
    fill_slices(f"NVIDIA_H200_{operation}.json", content)
    blocks = {int(number): table["8"]["block_m"] for number, table in content["2"].items()}
    assert blocks.keys() == tuned | set(range(1, 9))
    for number, block in blocks.items():
        assert block in tuned
        assert abs(block - number) == min(abs(other - number) for other in tuned)
