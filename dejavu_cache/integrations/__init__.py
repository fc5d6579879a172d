"""Other people's systems, a file each."""
