"""Where nodes come from and how they are reached: local, ssh. IO, but no decisions about the gang."""
