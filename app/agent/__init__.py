"""The loop and its policies; knows ports only."""
