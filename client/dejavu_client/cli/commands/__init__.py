"""The commands, a family a file; each has `register(app)`."""
