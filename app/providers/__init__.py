"""Calls to models: chain, retry, classification, stream deadlines, API modes."""
