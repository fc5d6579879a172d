"""Draw records as one static HTML page."""
