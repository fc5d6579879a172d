"""Data models and the rules over them: no I/O, no Triton."""
