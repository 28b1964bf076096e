"""Clients for model providers and MCP servers, each built on the provider's own library."""
