"""Hooks and checks around fairseq's training loop."""
