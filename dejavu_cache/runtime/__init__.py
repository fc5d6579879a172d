"""What happens at a launch: the hot path, and resolving a scenario at first sight."""
