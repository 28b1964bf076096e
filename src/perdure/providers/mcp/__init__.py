"""Servers of the Model Context Protocol as tools. Its library is loaded when the first connection is opened."""

from __future__ import annotations

from perdure.providers.mcp.server import MCPSpecificApproval, MCPStdioTool, MCPStreamableHTTPTool, MCPTool

__all__ = ["MCPSpecificApproval", "MCPStdioTool", "MCPStreamableHTTPTool", "MCPTool"]
