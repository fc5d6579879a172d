"""Helpers of the tests: records, kernels, processes and servers."""
