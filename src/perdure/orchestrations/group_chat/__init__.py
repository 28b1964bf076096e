"""Group chat: participants take turns, and an orchestrator selects who speaks next."""
