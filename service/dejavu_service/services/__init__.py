"""Rules of the service: roles, append-only merging, leases, pins and promotion, without HTTP."""
