"""HTML pages: what is tuned, what is missing, what is slow."""
