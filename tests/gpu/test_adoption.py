"""On a real GPU, unmodified kernels of other libraries are tuned once."""

import importlib.util
import os
import sys
import textwrap
import zipfile
from pathlib import Path

import pytest
import torch
from support.processes import ROOT, environment, run_command

pytestmark = pytest.mark.gpu

COUNT = """
    import gc
    from dejavu_cache import CachedAutotuner
    from triton.runtime.autotuner import Autotuner
    launched = [each for each in gc.get_objects() if isinstance(each, Autotuner) and each.cache]
    # A library's own class hands its launches over to an autotuner of ours.
    tuners = {getattr(each, "_adopted", None) or each for each in launched}
    assert all(type(each) is CachedAutotuner and each.is_adopted for each in tuners), tuners
    print("benchmarked", sum(each.benchmarked for each in tuners), "by", len(tuners))
"""

LINEAR_ATTENTION = """
    import sys
    if sys.argv[2] == "install":
        import dejavu_cache
        dejavu_cache.install()
    import torch
    from fla.ops.delta_rule import chunk_delta_rule
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule
    from fla.ops.gla import chunk_gla
    from fla.ops.gla.naive import naive_recurrent_gla
    from fla.ops.retention import chunk_retention
    from fla.ops.simple_gla import chunk_simple_gla
    from fla.ops.simple_gla.naive import naive_recurrent_simple_gla

    torch.manual_seed(0)
    shape = dict(device="cuda", dtype=torch.float32)
    q, k, v = (torch.randn(1, 256, 2, 64, **shape) / 8 for _ in range(3))
    g = torch.nn.functional.logsigmoid(torch.randn(1, 256, 2, 64, **shape))
    gate, beta = g[..., 0].contiguous(), torch.rand(1, 256, 2, **shape)
    k = torch.nn.functional.normalize(k, dim=-1)
    half = (q.bfloat16(), k.bfloat16(), v.bfloat16())
    out = {
        "gla": chunk_gla(q, k, v, g)[0],
        "simple_gla": chunk_simple_gla(q, k, v, gate)[0],
        "retention": chunk_retention(q, k, v)[0],
        "delta_rule": chunk_delta_rule(*half, beta.bfloat16())[0],
        "gated_delta_rule": chunk_gated_delta_rule(*half, gate, beta.bfloat16())[0],
    }
    close = dict(rtol=2e-2, atol=2e-2)
    torch.testing.assert_close(out["gla"], naive_recurrent_gla(q, k, v, g)[0], **close)
    simple = naive_recurrent_simple_gla(q, k, v, gate)[0]
    torch.testing.assert_close(out["simple_gla"], simple, **close)
    torch.save({name: value.cpu() for name, value in out.items()}, sys.argv[1])
"""

OWN = """
    import sys
    if sys.argv[2] == "install":
        import dejavu_cache
        dejavu_cache.install()
    import torch, triton
    from kernels import add_norm, decorate_add_norm, matmul, matmul_configs, matmul_kernel

    torch.manual_seed(0)
    product = triton.autotune(configs=matmul_configs()[::6], key=["M", "N", "K"])(matmul_kernel)
    norm = decorate_add_norm(triton.autotune)
    a, b = torch.randn(2, 512, 512, device="cuda", dtype=torch.bfloat16)
    x, residual = torch.randn(2, 300, 1024, device="cuda")
    out = {"matmul": matmul(product, a, b)}
    for name, weight in (("weighted", torch.randn(1024, device="cuda")), ("plain", None)):
        y, after, rows = add_norm(norm, x, residual, weight)
        torch.testing.assert_close(after, x + residual)
        assert rows.item() == 300
        out[name] = y
    torch.testing.assert_close(out["matmul"], a @ b, rtol=2e-2, atol=0.5)
    torch.save({name: value.cpu() for name, value in out.items()}, sys.argv[1])
"""


def run(program: str, folder: Path, how: str, *path: Path) -> tuple[dict[str, torch.Tensor], int]:
    """Run a program in a fresh process; return its results and how many configs it benchmarked."""
    script, saved = folder / "program.py", folder / f"{how}.pt"
    script.write_text(textwrap.dedent(program) + textwrap.dedent(COUNT))
    command = [sys.executable, str(script), str(saved), how]
    if how == "run":
        command = [sys.executable, "-m", "dejavu_client", "run", "--", *command]
    policy = folder / "policy.toml"
    policy.write_text('[[kernel]]\nmatch = "*"\ntune_configs = 8\n')
    url = (folder / "store").as_uri()
    env = environment(DEJAVU_CACHE_URL=url, DEJAVU_CACHE_POLICY=str(policy))
    env["PYTHONPATH"] = os.pathsep.join(
        [*map(str, path), str(ROOT / "benchmarks"), env["PYTHONPATH"]]
    )
    seen = run_command(*command, env=env, check=False)
    assert seen.returncode == 0, seen.stdout[-2000:] + seen.stderr[-6000:]
    words = seen.stdout.split()
    assert int(words[words.index("by") + 1]) > 0, "no kernel was adopted"
    return torch.load(saved), int(words[words.index("benchmarked") + 1])


def check(program: str, folder: Path, *path: Path) -> None:
    first, benchmarked = run(program, folder, "install", *path)
    assert benchmarked > 0
    second, again = run(program, folder, "run", *path)
    assert again == 0
    for name, value in first.items():
        assert torch.equal(second[name], value), (
            f"{name} differs by {(second[name] - value).abs().max()}"
        )


def test_flash_linear_attention_runs_unmodified(tmp_path: Path) -> None:
    wheels = os.environ.get("FLA_WHEELS")
    if wheels is None and importlib.util.find_spec("fla") is None:
        pytest.skip("neither FLA_WHEELS nor fla")
    unpacked = tmp_path / "wheels"
    for wheel in Path(wheels).glob("*.whl") if wheels else ():
        zipfile.ZipFile(wheel).extractall(unpacked)
    check(LINEAR_ATTENTION, tmp_path, unpacked)


def test_hooks_restores_heuristics_and_pruning_run_unmodified(tmp_path: Path) -> None:
    check(OWN, tmp_path)
