"""Responses of a sample stream become batches of columns. Bytes and rules, no sockets."""
