"""Program that runs its kernel once, with a config and a binary from the prewarmed folder."""

import torch
import triton
from kernels import scale

x = torch.arange(4096, device="cuda", dtype=torch.float32)
y = torch.empty_like(x)
scale[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, y, 2.0, x.numel())
assert torch.equal(y, 2 * x)
print(scale.explain(x, y, 2.0, x.numel()))
