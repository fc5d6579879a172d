"""Files, threads, signals, child processes and the log: the system around the library."""
