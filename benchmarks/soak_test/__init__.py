"""Parts of the soak test, which `benchmarks/soak.py` runs."""
