"""Records shipped with the package: a read-only file store with tuned configs for some GPUs."""
