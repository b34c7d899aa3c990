"""From a trained softmax model to a KerBS model with the same predictions."""
