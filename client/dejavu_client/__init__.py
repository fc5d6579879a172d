"""What a person or a process uses to reach a cache: the command line and the HTTP client."""
