"""Language-model engines behind one port. An engine knows nothing of HTTP, budgets or caches."""
