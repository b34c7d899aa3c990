"""What the senses of a trained model learned."""
