"""Making exemplars: what they should match, where they start, and the optimiser loop."""
