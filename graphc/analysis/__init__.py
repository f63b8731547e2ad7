"""What a model costs: operations and bytes by operator, time by roofline, and the memory plan."""
