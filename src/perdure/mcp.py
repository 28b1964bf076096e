"""Servers of the Model Context Protocol as tools of an agent."""

from perdure.providers.mcp import MCPSpecificApproval, MCPStdioTool, MCPStreamableHTTPTool, MCPTool

__all__ = ["MCPSpecificApproval", "MCPStdioTool", "MCPStreamableHTTPTool", "MCPTool"]
