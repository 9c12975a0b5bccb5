"""Out to learners: batches of a table's items, weights, mixtures, and steps back in. See docs/architecture.md."""
