"""A whole cluster in one process on ports of our own, driven by one seed; docs/simulation.md."""
