"""The pusher: a source, judged and cut, into the tables of a server. See docs/architecture.md, the road."""
