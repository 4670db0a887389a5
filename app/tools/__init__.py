"""What a turn can call."""
