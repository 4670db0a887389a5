"""In-memory implementations of the ports, as good as the real ones for what tests look at."""
