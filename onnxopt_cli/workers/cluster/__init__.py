"""Other machines, through Dask."""
