"""Fit decision trees to records."""
