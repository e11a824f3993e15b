"""Theory of the papers: random matrix products, linear networks, homogeneous networks and their gradient bounds."""
