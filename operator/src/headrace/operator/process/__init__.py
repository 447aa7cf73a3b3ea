"""The operator as a process: settings, watches, who leads, what is due, health, metrics."""
