"""What carries out the runs of a laboratory: processes on this machine, or a cluster, with one small interface."""
