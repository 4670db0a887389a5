"""What the model is shown: history repair and prompt."""
