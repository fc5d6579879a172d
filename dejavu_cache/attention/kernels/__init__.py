"""Implementations of paged attention, one per file."""
