"""Replace `triton.autotune` in programs that do not know this package."""
