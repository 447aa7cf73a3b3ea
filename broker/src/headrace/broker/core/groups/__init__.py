"""Consumer groups as pure decisions: who owns which partition, and the next step towards that."""
