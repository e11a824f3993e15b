"""What carries out the runs of a laboratory: processes on this machine, or a cluster, behind one small interface."""
