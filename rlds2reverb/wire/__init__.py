"""How Reverb writes keys, tensors, signatures and messages, and the rules of its two streams. Bytes and rules, no sockets."""
