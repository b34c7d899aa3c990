"""What runs around fairseq's updates."""
