"""The pipeline language as a JSON Schema, for editors."""
