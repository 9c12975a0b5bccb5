"""A push to several servers: every episode goes to one of them, the same one each time."""
