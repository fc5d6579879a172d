"""The bulk read: whole contexts, compressed once per revision."""
