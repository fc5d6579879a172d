"""Parts of this package that run inside inference engines."""
