"""Command line of dejavu-cache."""
