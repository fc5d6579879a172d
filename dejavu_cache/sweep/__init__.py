"""Tune many scenarios ahead of time."""
