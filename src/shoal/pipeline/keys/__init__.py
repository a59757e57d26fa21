"""The keys of a pipeline file that have rules of their own, one file each."""
