"""Offline tuning: many scenarios at once, and what is made of the results."""
