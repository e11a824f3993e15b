"""What a step of the optimizer does: to the loss, to the function, to weights and multipliers."""
