"""Several servers as one: tables that have one name are sampled, and changed, together."""
