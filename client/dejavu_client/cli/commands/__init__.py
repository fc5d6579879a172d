"""Commands, one family per file; each file has a function `register` that adds them to the app."""
