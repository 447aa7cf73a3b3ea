"""What to do, from what there is: pure decisions, one module each (docs/operator.md)."""
