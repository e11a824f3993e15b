"""A benchmark for diagnosers: broken trainings from published sets, their repaired twins, and healthy odd ones."""
