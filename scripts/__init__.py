"""Programs for the developers of Shoal."""
