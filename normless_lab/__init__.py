"""The laboratory: training runs and sweeps of them, their data sets, plots and pages, and benchmarks."""
