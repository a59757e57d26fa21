"""What users test their own pipelines and agents with; nothing else of Shoal imports it."""
