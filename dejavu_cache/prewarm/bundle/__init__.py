"""Pack a prewarmed folder as one file, or as an image that registries carry."""
