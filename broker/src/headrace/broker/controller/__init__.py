"""Cluster-wide: who is there, which topics there are, who leads which partition."""
