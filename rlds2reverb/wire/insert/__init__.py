"""Into Reverb: cuts become chunks, items and requests, and a session knows what is confirmed. Bytes and rules, no sockets."""
