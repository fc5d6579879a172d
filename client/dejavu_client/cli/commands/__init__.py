"""Commands, one family per file, each of which adds its own to `application.app`."""
