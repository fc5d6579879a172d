"""What the library does with the system around it: files, threads, child processes and its log."""
