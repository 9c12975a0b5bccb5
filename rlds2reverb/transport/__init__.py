"""Talking to a server: calls, streams that reconnect, and how long each wait may last."""
