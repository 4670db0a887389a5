"""One module per API mode: encode a request, decode a stream. They do not know one another."""
