"""Pods through kubectl: what users have, with every way of authentication that their kubeconfig names."""
