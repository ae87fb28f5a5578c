"""What we compare with: the least that does the same work."""
