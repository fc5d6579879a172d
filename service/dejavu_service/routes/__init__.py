"""The paths, a file for each resource: a route asks a rule and gives its answer a shape."""
