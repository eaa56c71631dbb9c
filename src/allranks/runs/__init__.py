"""The run directory: documents, events, logs, history. IO only; what the files mean is decided elsewhere."""
