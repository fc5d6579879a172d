"""Command line and HTTP client of dejavu-cache."""
