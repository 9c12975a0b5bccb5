"""What is done to step columns on the way in: a declaration, checked against a spec, then applied to every episode."""
