"""Consumer groups: committed offsets as records of the internal topic `__offsets`."""
