"""HTTP routes, a module for each resource: they call a service and shape its result."""
