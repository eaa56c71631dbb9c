"""One thin file a verb: options in, one call, exit code out. The only place that catches AllranksError."""
