"""What only `make identity` runs: edits of the attention kernels, and times of first launches."""
