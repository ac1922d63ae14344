"""The control channel between runner and agents: messages, frames, handshake, transports."""
