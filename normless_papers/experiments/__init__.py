"""Training sweeps of the papers, and the checks that several artefacts make of them."""
