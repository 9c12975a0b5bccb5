"""Pushes by many workers into many servers: the driver of a push, its budgets, and the servers it fills."""
