"""Runs on other machines, through Dask."""
