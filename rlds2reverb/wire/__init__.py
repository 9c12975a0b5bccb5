"""What both directions share: how Reverb writes keys, tensors, signatures and messages."""
