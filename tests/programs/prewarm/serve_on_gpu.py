"""Launch kernels that a GPU test tunes, prewarms and serves; the argument is the output file.

A kernel with two specialisations, a matrix product, and attention by three implementations, one of
which launches a second kernel that is not tuned.
"""

from __future__ import annotations

import sys

import products
import torch
import triton

from dejavu_cache.attention.sweep_suite import LAUNCHES, PRESETS, Lengths, batch_of

outputs = []
for n in (1024, 1025, 100_000):
    torch.manual_seed(n)
    x = torch.randn(n, device="cuda")
    y = torch.full_like(x, float("nan"))
    products.add_one[lambda meta, n=n: (triton.cdiv(n, meta["BLOCK"]),)](x, y, n)
    torch.testing.assert_close(y, x + 1)
    outputs.append(y)
torch.manual_seed(0)
a, b = torch.randn(64, 256, device="cuda").half(), torch.randn(256, 512, device="cuda").half()
c = torch.full((64, 512), float("nan"), device="cuda").half()
products.product[
    lambda meta: (triton.cdiv(64, meta["BLOCK_M"]), triton.cdiv(512, meta["BLOCK_N"]))
](a, b, c, 64, 512, 256)
torch.testing.assert_close(c, a @ b, rtol=1e-2, atol=1e-2)
outputs.append(c)
half = torch.ones(64, device="cuda")
products.halve[(1,)](half, BLOCK=64)
outputs.append(half)
BATCHES = {
    "segmented": Lengths("decode", [1] * 4, [1024, 400, 512, 1024]),
    "qblock": Lengths("mixed", [1, 64, 1, 64], [500, 0, 100, 300]),
}
for name, lengths in BATCHES.items():
    torch.manual_seed(len(outputs))
    batch = batch_of(lengths, PRESETS["llama3-8b"], 16, torch.bfloat16)
    if name == "segmented":
        from dejavu_cache.attention.kernels import segmented

        outputs.append(segmented.run(batch))
    else:
        LAUNCHES[name](batch)()
        outputs.append(batch.out)
torch.cuda.synchronize()
torch.save([output.cpu() for output in outputs], sys.argv[1])
