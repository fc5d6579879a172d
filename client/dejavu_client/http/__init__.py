"""Server access: the remote store and its protocol client, background sender and spool."""
