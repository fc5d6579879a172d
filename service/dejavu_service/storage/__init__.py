"""SQL and nothing else: every function takes a connection inside a transaction."""
