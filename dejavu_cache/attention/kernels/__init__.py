"""The implementations of paged attention, a file each."""
