"""Where cluster state lives: `base` is the interface, one module a backend."""
