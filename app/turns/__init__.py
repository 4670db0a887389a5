"""One turn from open to closed: runner, active turns, event log, leases and recovery."""
