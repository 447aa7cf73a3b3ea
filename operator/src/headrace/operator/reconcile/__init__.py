"""One pass for a resource: look, plan (`core`), carry out, write status. All I/O is here."""
