"""The server as a store: protocol client, background sender, spool and circuit breaker."""
