"""Chat clients for OpenAI, Azure OpenAI and compatible servers: `perdure.openai` and `perdure.foundry` export them."""
