"""The plain words of the service. Imports nothing of ours, does no I/O, reads no clock."""
