"""Talking to a server: calls, streams that are taken up again, and how long each wait may last."""
