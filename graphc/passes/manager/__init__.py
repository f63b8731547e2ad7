"""What a pass is, pipelines of them, and what runs these."""
