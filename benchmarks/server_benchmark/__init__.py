"""Parts of the server's benchmark, which `benchmarks/service.py` runs."""
