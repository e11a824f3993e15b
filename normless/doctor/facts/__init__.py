"""What a diagnosis knows of a network and its training: recorded passes, and what follows from them."""
