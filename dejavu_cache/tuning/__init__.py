"""Find the best config of a scenario by measuring."""
