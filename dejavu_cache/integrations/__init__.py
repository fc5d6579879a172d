"""Other systems: one module for each."""
