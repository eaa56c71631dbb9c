"""How well training hides communication behind computation, from traces of torch.profiler (pure)."""
