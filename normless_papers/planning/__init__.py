"""What a budget still needs on a card, how long it takes, and in which order it decides most per minute."""
