"""What several methods share: replay, selection, losses, old networks."""
