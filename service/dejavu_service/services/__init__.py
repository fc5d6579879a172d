"""A resource each: its routes, its rights and its rules."""
