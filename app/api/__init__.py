"""HTTP in, SSE out."""
