"""Tools, contexts and a todo store for tests of real tools."""
