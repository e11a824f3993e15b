"""Executors of a laboratory's runs: processes on this machine, or a cluster, with one small interface."""
